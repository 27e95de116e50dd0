"""Wire formats: how the numbers of a row travel between ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm import Instant, Moment, Way
from hpcgnn.errors import InputError
from hpcgnn.kernels import quantised_bytes
from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.support import Trait, Traits, lacks, needs, union
from hpcgnn.typing import Array

WIRES = ("native", "bfloat16", "float16", "int8", "int4", "int2")
"""Names of wire formats; native is the dtype of the arrays."""

INTEGER_BITS, SUM_BYTES = 30, (4, 5, 6)
"""Of an integer without its sign, which travels in 4 bytes; and those of a sum, with its sign."""

_BITS = {"native": None, "int8": 8, "int4": 4, "int2": 2}
"""Of the formats that activations and gradients may have apart."""

ROWS: WireFormat = "bfloat16"
"""What rows of uint16 hold that are multiplied and sent as they are."""


@dataclass(frozen=True)
class Columns:
    """Consecutive columns of rows, `width` of them, which are packed apart from those beside them.

    `drawn` says when their rounding is drawn; None: never, they travel as they are.
    """

    width: int
    drawn: Instant | None


Packing: TypeAlias = Sequence[Columns]
"""All columns of rows, in order."""


@dataclass(frozen=True)
class Wire:
    """How a number travels: in the dtype of the arrays, as a 16-bit float, or in fewer bits.

    Products read 16-bit ghosts directly and accumulate in float32; partial sums are rounded once,
    when they are sent. Rows of fewer bits are packed and unpacked on their way, see `Route`.
    float64 is never narrowed. `format` is that of rows in the buffers of an exchange, None: that of
    the arrays; `bits` and `gradient_bits` are those of a number on the way in a forward and in a
    backward pass, None: as in the buffers. With `integers` rows of float64 that go to owners are
    sums of int32, of at most 47 bits, and each travels in the bytes that its terms ask for.
    """

    format: WireFormat | None = None
    bits: int | None = None
    gradient_bits: int | None = None
    integers: bool = False

    @property
    def half(self) -> WireFormat:
        """What uint16 stands for in rows that were sent."""
        return self.format or ROWS

    @property
    def quantises(self) -> bool:
        """Whether rows are ever packed."""
        return self.bits is not None or self.gradient_bits is not None

    def dtype(self, like: Array) -> np.dtype[np.generic]:
        """Return the dtype of buffers for rows of `like`; only float32 is narrowed."""
        narrow = self.format is not None and like.dtype == np.float32
        return np.dtype(np.uint16) if narrow else like.dtype

    def bits_of(self, dtype: DTypeLike, way: Way) -> int | None:
        """Return the bits in which numbers of the dtype of buffers travel; None: all."""
        if dtype == np.float64 or way == "unpacked":
            return None
        return self.gradient_bits if way == "backward" else self.bits

    def row_bytes(self, like: Array, way: Way = "forward") -> int:
        """Return the bytes that a row of the width and dtype of `like` has on its way."""
        dtype, width = self.dtype(like), like.shape[1]
        bits = self.bits_of(dtype, way)
        return width * dtype.itemsize if bits is None else quantised_bytes(width, bits)

    def has_sums(self, like: Array, *, forward: bool) -> bool:
        """Return whether rows of the dtype of `like` are sums of integers on their way."""
        return self.integers and not forward and like.dtype == np.float64

    def packing(
        self, like: Array, now: Instant, columns: Packing | None = None
    ) -> list[tuple[Columns, int, int | None]]:
        """Return the columns of rows of the dtype of `like`, and the bytes and bits of each.

        No `columns` are one of the width of `like`. Bits of None: these travel as they are.
        """
        dtype, ways = self.dtype(like), []
        for each in columns or (Columns(like.shape[1], now),):
            bits = None if each.drawn is None else self.bits_of(dtype, each.drawn.way)
            whole = each.width * dtype.itemsize
            ways.append((each, whole if bits is None else quantised_bytes(each.width, bits), bits))
        return ways

    def way_bytes(
        self, like: Array, moment: Moment, columns: Packing | None = None, *, forward: bool
    ) -> int:
        """Return the bytes of a row on its way, or those of the longest sums of integers."""
        if self.has_sums(like, forward=forward):
            return like.shape[1] * moment.sum_bytes
        return sum(size for _, size, _ in self.packing(like, moment.now, columns))


def sum_bytes(log_terms: Array, bits: int) -> Array:
    """Return (n,) the bytes of a sum of less than 2^`log_terms`, (n,), integers of so many bits."""
    # With its sign.
    sizes: Array = (np.asarray(log_terms, np.int64) + bits + 8) // 8
    return sizes.clip(SUM_BYTES[0], SUM_BYTES[-1])


def quantises(name: str) -> bool:
    """Return whether a wire of this name, which `make_wire` takes, ever packs rows."""
    return make_wire(name).quantises


def make_wire(name: str) -> Wire:
    """Return the wire format `name`; raises InputError when there is none of that name.

    It is one of `WIRES`; or two of native, int8, int4 and int2 as ``int8/native``: of forward and
    of backward passes.
    """
    forward, both, backward = name.partition("/")
    if forward in _BITS and (backward in _BITS or not both):
        return Wire(None, _BITS[forward], _BITS[backward if both else forward])
    if name not in WIRES:
        raise InputError(
            f"wire format {name!r} is unknown; choose one of {', '.join(WIRES)}, or two of native, "
            "int8, int4 and int2 as in int8/native, for activations and gradients"
        )
    return Wire("bfloat16") if name == "bfloat16" else Wire("float16")


_NARROW = needs(
    Trait.ROUNDED_ROWS, lacks={Trait.EQUAL_BITS: "it rounds what comes from other ranks alone"}
)
_TRAITS = {
    "native": Traits(),
    "bfloat16": _NARROW,
    "float16": union(
        _NARROW, lacks({Trait.SIXTEEN_BITS: "rows in bfloat16 travel as they are, or packed"})
    ),
}
_PACKED = union(
    _NARROW, needs(Trait.PACKED_ROWS, lacks={Trait.GPU: "rows are packed in main memory so far"})
)


def wire_traits(name: str) -> Traits:
    """Return what a wire format needs of other features, and lacks."""
    wire = make_wire(name)
    if not wire.quantises:
        return _TRAITS[name]
    return (
        union(_PACKED, needs(Trait.TWO_BIT_ROWS))
        if 2 in (wire.bits, wire.gradient_bits)
        else _PACKED
    )
