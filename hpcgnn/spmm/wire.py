"""Wire formats: how the numbers of a row travel between ranks."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.typing import Array

WIRES = ("native", "bfloat16", "float16")
"""Names of wire formats; native is the dtype of the arrays."""

ROWS: WireFormat = "bfloat16"
"""What rows of uint16 hold that are multiplied and sent as they are."""


@dataclass(frozen=True)
class Wire:
    """How a number travels: in the dtype of the arrays, or as a 16-bit float.

    Products read 16-bit ghosts directly and accumulate in float32; partial sums are rounded once,
    when they are sent.
    """

    format: WireFormat | None = None

    @property
    def half(self) -> WireFormat:
        """What uint16 stands for in rows that were sent."""
        return self.format or ROWS

    def dtype(self, like: Array) -> np.dtype[np.generic]:
        """Return the dtype of buffers for rows of `like`; only float32 is narrowed."""
        narrow = self.format is not None and like.dtype == np.float32
        return np.dtype(np.uint16) if narrow else like.dtype


def make_wire(name: str) -> Wire:
    """Return the wire format called `name`.

    Raises
    ------
    InputError
        When there is no such format.
    """
    if name not in WIRES:
        raise InputError(f"wire format {name!r} is unknown; choose one of {', '.join(WIRES)}")
    if name == "bfloat16":
        return Wire("bfloat16")
    return Wire("float16") if name == "float16" else Wire()
