"""Features of nodes whose type says how many they have."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

__all__ = ["NodeFeatures", "TypedRows", "tensors_of"]


@dataclass(frozen=True, eq=False)
class TypedRows:
    """Node rows with a table of features for each node type; no table is padded.

    Parameters
    ----------
    parts
        For each type, at least one: (n_t, F_t) the features of its nodes; F_t is 0 without any.
    types
        (N,) integer type of each node.
    places
        (N,) int64 row of each node in the part of its type.
    numbers
        (N,) int64 number of each node among its rank's nodes of its type; None where no type has
        vectors for its nodes.
    """

    parts: tuple[Tensor, ...]
    types: Tensor
    places: Tensor
    numbers: Tensor | None = None

    @classmethod
    def in_order(cls, parts: Sequence[Tensor], types: Tensor) -> "TypedRows":
        """Return rows from parts that hold the nodes of a type in the order of all nodes.

        Not collective.

        Raises
        ------
        ValueError
            When a part has another number of rows than its type has nodes.
        """
        places = torch.empty(len(types), dtype=torch.int64, device=types.device)
        for number, part in enumerate(parts):
            rows = _rows_of(types, number)
            if len(rows) != len(part):
                raise ValueError(f"type {number} has {len(rows)} nodes and {len(part)} rows")
            places[rows] = torch.arange(len(rows), device=types.device)
        return cls(tuple(parts), types, places)

    def __len__(self) -> int:
        return len(self.types)

    def __getitem__(self, rows: Tensor) -> "TypedRows":
        """Return chosen rows, (m,) int64 in any order."""
        taken = [part[places] for part, places, _ in self.by_type(rows)]
        numbers = None if self.numbers is None else self.numbers[rows]
        return replace(TypedRows.in_order(taken, self.types[rows]), numbers=numbers)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the features."""
        return self.parts[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(each.nbytes for each in (*self.parts, self.types, self.places))

    @cached_property
    def rows(self) -> tuple[Tensor, ...]:
        """For each type (n_t,) int64 the rows of its nodes, in the order of its part."""
        found = []
        for number, part in enumerate(self.parts):
            rows = _rows_of(self.types, number)
            ordered = torch.empty(len(part), dtype=torch.int64, device=rows.device)
            ordered[self.places[rows]] = rows
            found.append(ordered)
        return tuple(found)

    def by_type(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield for each type its part, the places of chosen nodes there, and which of `rows`.

        Not collective.

        Parameters
        ----------
        rows
            (m,) int64 nodes.
        """
        types, places = self.types[rows], self.places[rows]
        for number, part in enumerate(self.parts):
            chosen = _rows_of(types, number)
            yield part, places[chosen], chosen

    def to(self, device: torch.device) -> "TypedRows":
        """Return the rows in the memory of a device, themselves where they are there already.

        Not collective.
        """
        parts = tuple(each.to(device) for each in self.parts)
        numbers = None if self.numbers is None else self.numbers.to(device)
        return TypedRows(parts, self.types.to(device), self.places.to(device), numbers)

    def clone(self) -> "TypedRows":
        """Return rows with features of their own.

        Not collective.
        """
        return replace(self, parts=tuple(each.clone() for each in self.parts))


NodeFeatures: TypeAlias = Tensor | TypedRows
"""(N, F), or rows that depend on node types."""


def tensors_of(features: NodeFeatures) -> tuple[Tensor, ...]:
    """Return the tensors that hold features.

    Not collective.
    """
    return features.parts if isinstance(features, TypedRows) else (features,)


def _rows_of(types: Tensor, number: int) -> Tensor:
    return torch.nonzero(types == number)[:, 0]
