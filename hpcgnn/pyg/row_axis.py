"""Marks on tensors that record the axis of their rows, passed on from tensor to tensor.

A tensor's shape does not tell it: a rank may have as many nodes as a layer has columns.
"""

from collections.abc import Callable, Hashable
from functools import cache, wraps
from typing import Any, NamedTuple, Self, TypeAlias

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
    vars(tensor).pop("_total", None)
    tensor._rows = Axis(dim, times, kind, numbers)  # type: ignore[attr-defined]
    return tensor


def are_numbers(value: Any) -> bool:
    """Return whether the entries of a tensor are numbers of rows."""
    rows = rows_of(value)
    return rows is not None and rows.numbers


class RowCount(int):
    """The size of an axis with rows over all ranks: `times` for each row, plus `more`.

    It is `local` on this rank, which torch's functions get in its place. It also equals a number
    that is `local` on every rank.
    """

    local: int
    times: int
    more: int
    sums: RankSums

    @classmethod
    def of(cls, total: int, local: int, times: int, more: int, sums: RankSums) -> Self:
        """Return a count of these numbers; see the class."""
        count = cls(total)
        count.local, count.times, count.more, count.sums = local, times, more, sums
        return count

    def _linear(self, factor: int, other: int) -> "RowCount":
        """Return the count times `factor` plus `other`."""
        numbers = (int(self), self.local, self.more)
        total, local, more = (number * factor + other for number in numbers)
        return self.of(total, local, self.times * factor, more, self.sums)

    @override
    def __add__(self, other: Any) -> Any:
        if isinstance(other, RowCount):
            total, local = int(self) + int(other), self.local + other.local
            times, more = self.times + other.times, self.more + other.more
            return self.of(total, local, times, more, self.sums)
        return self._linear(1, other) if isinstance(other, int) else NotImplemented

    __radd__ = __add__

    @override
    def __neg__(self) -> Any:
        return self._linear(-1, 0)

    @override
    def __sub__(self, other: Any) -> Any:
        return self + -other if isinstance(other, int) else NotImplemented

    @override
    def __rsub__(self, other: Any) -> Any:
        return -self + other

    @override
    def __mul__(self, other: Any) -> Any:
        if isinstance(other, RowCount):
            return int(self) * int(other)
        return self._linear(other, 0) if isinstance(other, int) else NotImplemented

    __rmul__ = __mul__

    @override
    def __floordiv__(self, other: Any) -> Any:
        numbers = (int(self), self.local, self.times, self.more)
        if type(other) is int and other and not any(number % other for number in numbers[2:]):
            total, local, times, more = (number // other for number in numbers)
            return self.of(total, local, times, more, self.sums)
        return int(self) // other

    @override
    def __eq__(self, other: object) -> bool:
        if isinstance(other, RowCount) or not isinstance(other, int):
            return int.__eq__(self, other)
        differs = np.array([self.local != other], np.float64)
        self.sums(differs)
        return int(self) == other or differs[0] == 0

    @override
    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


def localized(value: Any) -> Any:
    """Return an argument of a torch function with sizes on this rank in place of counts."""
    if isinstance(value, RowCount):
        return value.local
    if type(value) in (list, tuple, torch.Size):
        return type(value)(map(localized, value))
    if isinstance(value, slice):
        return slice(*map(localized, (value.start, value.stop, value.step)))
    return value


@cache
def with_local_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a torch function that takes counts of rows as sizes on this rank."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        named = {name: localized(value) for name, value in kwargs.items()}
        return function(*map(localized, args), **named)

    return call


def total_rows(tensor: Tensor) -> list[int]:
    """Return the number of a tensor's rows on all ranks, empty before it is known; changeable."""
    known: list[int] = vars(tensor).setdefault("_total", [])
    return known


@collective
def sizes(tensor: Tensor, sums: RankSums) -> torch.Size:
    """Return the shape of a tensor, with a `RowCount` as its size along its rows."""
    rows, shape = rows_of(tensor), tensor.shape
    if rows is None:
        return shape
    local, known = shape[rows.dim], total_rows(tensor)
    if not known:
        number = np.array([local // rows.times], np.float64)
        sums(number)
        known.append(int(number[0]))
    count = RowCount.of(known[0] * rows.times, local, rows.times, 0, sums)
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
