"""Marks on tensors that record the axis of their rows, passed on from tensor to tensor.

A tensor's shape does not tell it: a rank may have as many nodes as a layer has columns.
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
    """The axis `dim` of a tensor, with `times` consecutive entries for each row.

    `kind` is the type of the rows' nodes in a graph of several types. The entries of `numbers` are
    numbers of rows, which only pick rows.
    """

    dim: int
    times: int = 1
    kind: Hashable = None
    numbers: bool = False


def rows_of(value: Any) -> Axis | None:
    """Return the mark of a tensor's rows, None if it has none."""
    return getattr(value, "_rows", None)


def axis_of(value: Any) -> int | None:
    """Return the axis of a tensor's rows, None if it has none."""
    rows = rows_of(value)
    return None if rows is None else rows.dim


def kind_of(value: Any) -> Hashable:
    """Return the type of the nodes that a tensor has rows of, None if not known."""
    rows = rows_of(value)
    return None if rows is None else rows.kind


def mark(
    tensor: Tensor, dim: int, times: int = 1, kind: Hashable = None, numbers: bool = False
) -> Tensor:
    """Mark an axis of a tensor as its rows, and return the tensor."""
    tensor._rows = Axis(dim, times, kind, numbers)  # type: ignore[attr-defined]
    return tensor


def are_numbers(value: Any) -> bool:
    """Return whether the entries of a tensor are numbers of rows."""
    rows = rows_of(value)
    return rows is not None and rows.numbers


class RowCount(int):
    """The size of an axis with rows: a rank's number of rows times an integer, plus `more`.

    In shapes it is the size on this rank; in arithmetic, and compared with other numbers, its value
    is that of all ranks. It also equals a number that is its size on every rank.
    """

    size: int
    times: int
    more: int
    sums: RankSums

    @classmethod
    def of(cls, size: int, times: int, sums: RankSums, more: int = 0) -> "RowCount":
        """Return `size`, which has `times` entries for each row, plus `more`."""
        count = cls(size + more)
        count.size, count.times, count.more, count.sums = size, times, more, sums
        return count

    @property
    @collective
    def total(self) -> float:
        """The size over all ranks."""
        array = np.array([self.size], np.float64)
        self.sums(array)
        return float(array[0]) + self.more

    @override
    def __add__(self, other: Any) -> Any:
        if isinstance(other, RowCount):
            return int(self) + int(other)
        if isinstance(other, int):
            return RowCount.of(self.size, self.times, self.sums, self.more + other)
        return self.total + other if isinstance(other, float) else NotImplemented

    __radd__ = __add__

    @override
    def __neg__(self) -> Any:
        return self * -1

    @override
    def __sub__(self, other: Any) -> Any:
        return self + -other if isinstance(other, (int, float)) else NotImplemented

    @override
    def __rsub__(self, other: Any) -> Any:
        return -self + other

    @override
    def __mul__(self, other: Any) -> Any:
        if isinstance(other, RowCount):
            return int(self) * int(other)
        if isinstance(other, int):
            return RowCount.of(self.size * other, self.times * other, self.sums, self.more * other)
        return self.total * other if isinstance(other, float) else NotImplemented

    __rmul__ = __mul__

    @override
    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, RowCount):
            return self.times // other.times
        if type(other) is int and other and not (self.times % other or self.more % other):
            return RowCount.of(
                self.size // other, self.times // other, self.sums, self.more // other
            )
        return self.total // other

    @override
    def __rfloordiv__(self, other: Any) -> Any:
        return other // self.total

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

    @override
    def __mod__(self, other: Any) -> Any:
        return int(self.total) % other

    @override
    def __bool__(self) -> bool:
        return self.total != 0

    @override
    def __eq__(self, other: object) -> bool:
        if isinstance(other, RowCount) or not isinstance(other, (int, float)):
            return int.__eq__(self, other)
        array = np.array([self.size, int(self) != other], np.float64)
        self.sums(array)
        return bool(array[0] + self.more == other or array[1] == 0)

    @override
    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    @override
    def __lt__(self, other: Any) -> bool:
        return bool(self.total < other)

    @override
    def __le__(self, other: Any) -> bool:
        return bool(self.total <= other)

    @override
    def __gt__(self, other: Any) -> bool:
        return bool(self.total > other)

    @override
    def __ge__(self, other: Any) -> bool:
        return bool(self.total >= other)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        values = [value.total if isinstance(value, RowCount) else value for value in inputs]
        return getattr(ufunc, method)(*values, **options)


def sizes(tensor: Tensor, sums: RankSums) -> torch.Size:
    """Return the shape of a tensor, with a `RowCount` as its size along its rows."""
    rows, shape = rows_of(tensor), tensor.shape
    if rows is None:
        return shape
    count = RowCount.of(shape[rows.dim], rows.times, sums)
    return torch.Size((*shape[: rows.dim], count, *shape[rows.dim + 1 :]))


ROWS = 2**31 - 1
"""A number of rows of which no other size of a tensor is a multiple: a large prime."""

Placed: TypeAlias = Callable[[Tensor], int | None]
"""Returns the axis of a tensor that has rows although it is not marked, or None."""


def with_rows(value: Any, placed: Placed) -> Any:
    """Return an argument with meta tensors in place of tensors, as if a rank had `ROWS` rows."""
    if isinstance(value, Tensor):
        rows, shape = rows_of(value), list(value.shape)
        if rows is not None:
            shape[rows.dim] = ROWS * rows.times
        elif (dim := placed(value)) is not None:
            shape[dim] = ROWS
        return torch.empty(shape, dtype=value.dtype, device="meta")
    if isinstance(value, RowCount):
        return ROWS * value.times + value.more
    if isinstance(value, (list, tuple)):
        copies = [with_rows(item, placed) for item in value]
        return tuple(copies) if isinstance(value, tuple) else copies
    if isinstance(value, dict):
        return {name: with_rows(item, placed) for name, item in value.items()}
    return value


def key_of(value: Any) -> Any:
    """Return a key of an argument without its number of rows; it determines results' axes."""
    if isinstance(value, Tensor):
        rows, shape = rows_of(value), tuple(value.shape)
        if rows is None:
            return value.dtype, shape
        return value.dtype, rows, shape[: rows.dim], shape[rows.dim + 1 :]
    if isinstance(value, RowCount):
        return "rows", value.times, value.more
    if isinstance(value, (list, tuple)):
        return tuple(map(key_of, value))
    if isinstance(value, dict):
        return tuple((name, key_of(item)) for name, item in value.items())
    return value if not isinstance(value, slice) else repr(value)
