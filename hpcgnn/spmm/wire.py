"""Wire formats: how the numbers of a row travel between ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm import Instant, RunPosition, Way
from hpcgnn.errors import InputError
from hpcgnn.kernels import quantised_bytes
from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.support import Trait, Traits, lacks, needs, union
from hpcgnn.typing import Array

WIRES = ("native", "bfloat16", "float16", "int8", "int4", "int2")
"""Names of wire formats; native is the dtype of the arrays."""

INTEGER_BITS, SUM_BYTES = 30, (4, 5, 6)
"""Bits of an integer without its sign, sent in 4 bytes, and possible bytes of a signed sum."""

_BITS = {"native": None, "int8": 8, "int4": 4, "int2": 2}
"""Bits of the formats that can be chosen separately for activations and gradients."""

ROWS: WireFormat = "bfloat16"
"""Format of uint16 rows that are multiplied and sent without conversion."""


@dataclass(frozen=True)
class ColumnRange:
    """A range of `width` columns that is packed separately from those beside it.

    `instant` determines the draws of its rounding; None: it is sent as it is.
    """

    width: int
    instant: Instant | None


Packing: TypeAlias = Sequence[ColumnRange]
"""All column ranges of rows, in order."""


@dataclass(frozen=True)
class Wire:
    """The format of numbers on the wire: the arrays' dtype, a 16-bit float, or fewer bits.

    Products read 16-bit ghosts directly and accumulate in float32; partial sums are rounded once,
    when they are sent. Rows of fewer bits are packed for sending and unpacked on arrival, see
    `Route`. float64 is never narrowed. `format` is the format of rows in the buffers of an
    exchange; None: that of the arrays. `bits` and `gradient_bits` are the bits of a number on the
    wire in forward and backward passes; None: as in the buffers. With `integers`, float64 rows sent
    to owners are sums of int32, of at most 47 bits, each in as few bytes as its terms allow.
    """

    format: WireFormat | None = None
    bits: int | None = None
    gradient_bits: int | None = None
    integers: bool = False

    @property
    def half(self) -> WireFormat:
        """The format that uint16 means in received rows."""
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
        """Return the bits of a number on the wire, for a buffer's dtype; None: not packed."""
        if dtype == np.float64 or way == "unpacked":
            return None
        return self.gradient_bits if way == "backward" else self.bits

    def row_bytes(self, like: Array, way: Way = "forward") -> int:
        """Return the bytes on the wire of a row of the width and dtype of `like`."""
        dtype, width = self.dtype(like), like.shape[1]
        bits = self.bits_of(dtype, way)
        return width * dtype.itemsize if bits is None else quantised_bytes(width, bits)

    def has_sums(self, like: Array, *, forward: bool) -> bool:
        """Return whether rows of the dtype of `like` travel as sums of integers."""
        return self.integers and not forward and like.dtype == np.float64

    def packing(
        self, like: Array, instant: Instant, columns: Packing | None = None
    ) -> list[tuple[ColumnRange, int, int | None]]:
        """Return the column ranges of rows of the dtype of `like`, with the bytes and bits of each.

        Without `columns` there is one range of the width of `like`. Bits are None for ranges that
        are not packed.
        """
        dtype, packing = self.dtype(like), []
        for part in columns or (ColumnRange(like.shape[1], instant),):
            bits = None if part.instant is None else self.bits_of(dtype, part.instant.way)
            whole = part.width * dtype.itemsize
            size = whole if bits is None else quantised_bytes(part.width, bits)
            packing.append((part, size, bits))
        return packing

    def way_bytes(
        self,
        like: Array,
        run_position: RunPosition,
        columns: Packing | None = None,
        *,
        forward: bool,
    ) -> int:
        """Return the bytes of a row on the wire; of sums of integers, those of the longest."""
        if self.has_sums(like, forward=forward):
            return like.shape[1] * run_position.sum_bytes
        return sum(size for _, size, _ in self.packing(like, run_position.now, columns))


def sum_bytes(log_terms: Array, bits: int) -> Array:
    """Return (n,) the bytes of a sum of fewer than 2^`log_terms` (n,) integers of `bits`."""
    # One more bit for the sign, rounded up to bytes.
    sizes: Array = (np.asarray(log_terms, np.int64) + bits + 8) // 8
    return sizes.clip(SUM_BYTES[0], SUM_BYTES[-1])


def quantises(name: str) -> bool:
    """Return whether the wire format `name`, as in `make_wire`, ever packs rows."""
    return make_wire(name).quantises


def make_wire(name: str) -> Wire:
    """Return the wire format `name`; raises InputError if there is none of that name.

    `name` is one of `WIRES`, or two of native, int8, int4 and int2, such as ``int8/native``, for
    forward and backward passes.
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
    Trait.ROUNDED_ROWS, lacks={Trait.EQUAL_BITS: "it rounds only rows from other ranks"}
)
_TRAITS = {
    "native": Traits(),
    "bfloat16": _NARROW,
    "float16": union(
        _NARROW, lacks({Trait.SIXTEEN_BITS: "bfloat16 rows travel unchanged or packed"})
    ),
}
_PACKED = union(
    _NARROW, needs(Trait.PACKED_ROWS, lacks={Trait.GPU: "rows are packed in main memory so far"})
)

_IN_COMMANDS = lacks({Trait.OWN_LOOPS: "your own loops send gradients in the format of rows"})


def wire_traits(name: str) -> Traits:
    """Return the traits that a wire format needs of other features, and those it lacks."""
    wire = make_wire(name)
    if not wire.quantises:
        return _TRAITS[name]
    in_two_bits = 2 in (wire.bits, wire.gradient_bits)
    return union(
        _PACKED,
        needs(Trait.TWO_BIT_ROWS) if in_two_bits else Traits(),
        Traits() if wire.bits == wire.gradient_bits else _IN_COMMANDS,
    )
