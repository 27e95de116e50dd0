"""What is known of a tensor's rows: the axis that they are on, carried from tensor to tensor.

Sizes of a tensor do not tell it: a rank may have as many nodes as a layer has columns.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.operator import RankSums
from hpcgnn.spmd import collective


class Axis(NamedTuple):
    """The axis of a tensor that has `times` entries for each row, one behind the other.

    `kind` is the type of nodes whose rows these are, in a graph of several types.
    """

    place: int
    times: int = 1
    kind: Hashable = None


def rows_of(value: Any) -> Axis | None:
    """Return where a tensor has rows, None where it has none."""
    return getattr(value, "_rows", None)


def axis_of(value: Any) -> int | None:
    """Return the axis of a tensor's rows, None where it has none."""
    rows = rows_of(value)
    return None if rows is None else rows.place


def kind_of(value: Any) -> Hashable:
    """Return the type of nodes that a tensor has rows of, None where it is not known."""
    rows = rows_of(value)
    return None if rows is None else rows.kind


def mark(tensor: Tensor, place: int, times: int = 1, kind: Hashable = None) -> Tensor:
    """Note that an axis of a tensor has rows, and return the tensor."""
    tensor._rows = Axis(place, times, kind)  # type: ignore[attr-defined]
    return tensor


class RowCount(int):
    """How many rows a rank has, times a number: the size of an axis.

    Where it makes a shape it is this rank's; as a number it is that of all ranks.
    """

    times: int
    sums: RankSums

    @classmethod
    def of(cls, size: int, times: int, sums: RankSums) -> "RowCount":
        """Return a size of which a row has `times`."""
        count = cls(size)
        count.times, count.sums = times, sums
        return count

    @property
    @collective
    def total(self) -> float:
        """The count of all ranks."""
        array = np.array([int(self)], np.float64)
        self.sums(array)
        return float(array[0])

    @override
    def __mul__(self, other: Any) -> Any:
        if isinstance(other, RowCount):
            return int(self) * int(other)
        if isinstance(other, int):
            return RowCount.of(int(self) * other, self.times * other, self.sums)
        return self.total * other if isinstance(other, float) else NotImplemented

    __rmul__ = __mul__

    @override
    def __floordiv__(self, other: Any) -> Any:
        if type(other) is int and other and self.times % other == 0:
            return RowCount.of(int(self) // other, self.times // other, self.sums)
        return self.total // other

    @override
    def __truediv__(self, other: Any) -> Any:
        return self.total / float(other)

    @override
    def __rtruediv__(self, other: Any) -> Any:
        return other / self.total

    @override
    def __pow__(self, other: Any, modulus: None = None) -> Any:  # type: ignore[override]
        return self.total**other

    @override
    def __float__(self) -> float:
        return self.total


def sizes(tensor: Tensor, sums: RankSums) -> torch.Size:
    """Return the shape of a tensor, whose size along its rows is a `RowCount`."""
    rows, shape = rows_of(tensor), tensor.shape
    if rows is None:
        return shape
    count = RowCount.of(shape[rows.place], rows.times, sums)
    return torch.Size((*shape[: rows.place], count, *shape[rows.place + 1 :]))


ROWS = 2**31 - 1
"""A number of rows that no other size of a tensor is a multiple of: a prime, larger than all."""

Placed: TypeAlias = Callable[[Tensor], int | None]
"""Tells the axis of a tensor without marks that has rows all the same."""


def with_rows(value: Any, placed: Placed) -> Any:
    """Return an argument whose tensors are empty shapes, as if a rank had `ROWS` rows."""
    if isinstance(value, Tensor):
        rows, shape = rows_of(value), list(value.shape)
        if rows is not None:
            shape[rows.place] = ROWS * rows.times
        elif (place := placed(value)) is not None:
            shape[place] = ROWS
        return torch.empty(shape, dtype=value.dtype, device="meta")
    if isinstance(value, RowCount):
        return ROWS * value.times
    if isinstance(value, (list, tuple)):
        copies = [with_rows(item, placed) for item in value]
        return tuple(copies) if isinstance(value, tuple) else copies
    if isinstance(value, dict):
        return {name: with_rows(item, placed) for name, item in value.items()}
    return value


def key_of(value: Any) -> Any:
    """Return what the axes of results depend on: the argument without its number of rows."""
    if isinstance(value, Tensor):
        rows, shape = rows_of(value), tuple(value.shape)
        if rows is None:
            return value.dtype, shape
        return value.dtype, rows, shape[: rows.place], shape[rows.place + 1 :]
    if isinstance(value, RowCount):
        return "rows", value.times
    if isinstance(value, (list, tuple)):
        return tuple(map(key_of, value))
    if isinstance(value, dict):
        return tuple((name, key_of(item)) for name, item in value.items())
    return value if not isinstance(value, slice) else repr(value)
