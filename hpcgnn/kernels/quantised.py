"""Rows in 8, 4 or 2 bits an element, for exchanges: levels for each row, rounded at random.

A packed row is a head and a level an element. The head says the lowest level and the step between
two, both bfloat16. Rows of 2 bits have a head of two bytes for every 64 elements, whose levels span
0 as well.
"""

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, execution
from hpcgnn.typing import Array, GlobalIndices


def quantised_bytes(width: int, bits: int) -> int:
    """Return the bytes of a packed row of `width` elements."""
    heads = -(-width // 64) * 2 if bits == 2 else 4 * (width > 0)
    return heads + (width * bits + 7) // 8


def quantise_rows(
    x: Array,
    row_ids: GlobalIndices,
    key: int,
    bits: int,
    packed: Array,
    **run: Unpack[Run],
) -> None:
    """Pack rows: an element becomes one of the two levels next to it, the nearer the likelier.

    So the expectation of what `dequantise_rows` returns is the element, to 2^-16 of a step. Which
    level depends on `key`, ``row_ids[i]``, the column and the row alone: the same at any number of
    ranks and threads. A row that is not finite arrives as NaN.

    `x` is ``(m, w)`` float32, or bfloat16 as uint16, `row_ids` ``(m,)`` int64 global names of the
    rows, `key` in ``[0, 2**64)``, another one for each draw. There are 8, 4 or 2 bits, and `packed`
    is ``(m, quantised_bytes(w, bits))`` uint8. Both may be columns of wider arrays.
    """
    _kernels.quantise_rows(x, row_ids, key, bits, packed, *execution(**run))


def dequantise_rows(
    packed: Array,
    row_ids: GlobalIndices,
    key: int,
    bits: int,
    out: Array,
    **run: Unpack[Run],
) -> None:
    """Write the rows that `quantise_rows` packed with these names and this key.

    Of 2 bits with levels below 0 it takes away the random number that chose the level: what arrives
    lies between levels, within half a step of the element.

    `out` is ``(m, w)`` float32, or bfloat16 as uint16; it and `packed` may be columns of wider
    arrays.
    """
    _kernels.dequantise_rows(packed, row_ids, key, bits, out, *execution(**run))
