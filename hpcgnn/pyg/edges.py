"""The edges of a rank as modules of one process take them, (2, E), and what stands for an index.

`Edges` and `Sources` are tensors of numbers that only `hpcgnn.pyg.mode` knows to read: elsewhere
an index of the rows that other ranks own would be one out of range, or of another node.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.comm import allreduce_max, allreduce_sum
from hpcgnn.errors import InputError
from hpcgnn.messages import MessageOperator, source_places
from hpcgnn.pyg.ghosts import take_home, with_ghosts
from hpcgnn.pyg.marks import Axis, axis_of, kind_of, mark, rows_of
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, GlobalIndices


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


DESCRIBES = words(
    "dim size numel ndimension nelement is_floating_point is_complex is_contiguous stride __len__ "
    "__hash__ __repr__ __format__ element_size get_device "
    # Properties.
    "shape dtype device layout ndim requires_grad is_sparse is_cuda is_meta is_nested is_mkldnn "
    "is_sparse_csr is_quantized is_leaf grad_fn"
)
"""What may be asked of an index outside of a distributed module: it tells of no node."""


def name_of(function: Any) -> str:
    """Return the name of a function of torch, of a property that of the property."""
    name: str = function.__name__
    return name if name != "__get__" else function.__self__.__name__


class Index(Tensor):
    """Numbers that stand for nodes of a distributed graph."""

    share: "RowShare"
    rows: Axis

    @classmethod
    @override
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if name_of(func) in DESCRIBES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise InputError(
            f"torch.{name_of(func)}: edges of a distributed graph are read by modules that "
            "hpcgnn.distribute has taken"
        )

    @property
    def plain(self) -> Tensor:
        """The numbers."""
        with torch._C.DisableTorchFunctionSubclass():
            values = self.as_subclass(Tensor)
        return mark(values, *self.rows)


class Pattern(Index):
    """Stands for edges that only layers on operators of this package read; see `OwnLayer`."""

    @classmethod
    def of(cls, share: "RowShare") -> "Pattern":
        """Return what stands for the edges of a share."""
        pattern = torch.empty((2, 0), dtype=torch.long).as_subclass(cls)
        pattern.share, pattern.rows = share, Axis(1)
        return pattern


class Edges(Index):
    """(2, E) int64: the row `source_row` are sources, the other one targets, own rows.

    They are all edges of the share, in its order, where `is_whole`.
    """

    share: "EdgeShare"
    source_row: int
    is_whole: bool = False

    @classmethod
    def of(cls, numbers: Tensor, share: "EdgeShare", source_row: int) -> "Edges":
        """Return numbers (2, E) as edges."""
        edges = numbers.as_subclass(cls)
        edges.share, edges.source_row, edges.rows = share, source_row, Axis(1)
        return edges


class Nodes(Index):
    """Any shape of int64."""

    share: "EdgeShare"

    @classmethod
    def of(cls, numbers: Tensor, share: "EdgeShare") -> Self:
        """Return numbers as nodes of a share."""
        nodes = numbers.as_subclass(cls)
        nodes.share, nodes.rows = share, rows_of(numbers) or Axis(0)
        return nodes


class Sources(Nodes):
    """Own rows, and behind them rows that other ranks own."""


class Targets(Nodes):
    """Own rows, that edges end at."""


class RowShare(ABC):
    """The rows of a rank's nodes, and sums over those of all ranks."""

    types: Mapping[Hashable, GlobalIndices]
    """Type of nodes -> (N,) int64 original ids; None where there is one type."""
    kinds: tuple[Hashable, Hashable]
    """The types of sources and of targets."""

    @property
    def node_ids(self) -> GlobalIndices:
        """(N,) int64 original ids of the type of the targets."""
        return self.types[self.kinds[1]]

    def num_nodes(self, node_type: Hashable = None) -> int:
        """Return the number of own nodes of a type."""
        return len(self.types[node_type])

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many rows tensors of nodes have, and those of edges."""
        return (self.num_nodes(),)

    @abstractmethod
    @collective
    def sums(self, array: Array) -> None:
        """Replace an array by its sum over the block rows."""

    @abstractmethod
    @collective
    def maxima(self, array: Array) -> None:
        """Replace an array by its maximum over the block rows."""


@dataclass(frozen=True, eq=False)
class EdgeShare(RowShare):
    """The edges that end at a rank's nodes, ordered by target.

    `types` has for each type of nodes (N,) int64 original ids, one behind the other the rows of the
    operator; None where there is one type. `kinds` are the types of sources and of targets. `order`
    (E,) int64 is where each edge is among those of the operator, `numbers` (2, E) int64 are sources
    and targets. `num_rows` counts the nodes of the type of sources, and the rows that other ranks
    own, N + G.
    """

    operator: MessageOperator
    types: Mapping[Hashable, GlobalIndices]
    kinds: tuple[Hashable, Hashable]
    order: Tensor
    numbers: Tensor
    num_rows: int

    @classmethod
    def of(cls, operator: MessageOperator, node_ids: GlobalIndices) -> "EdgeShare":
        """Return the edges of an operator."""
        return cls.of_types(operator, {None: node_ids}, (None, None))

    @classmethod
    def of_types(
        cls,
        operator: MessageOperator,
        types: Mapping[Hashable, GlobalIndices],
        types_of_ends: tuple[Hashable, Hashable],
    ) -> "EdgeShare":
        """Return the edges of an operator from one type of nodes to another."""
        order = np.argsort(operator.targets, kind="stable")
        sources, targets = (_place(types, node_type) for node_type in types_of_ends)
        positions, num_local = source_places(operator)[order], operator.shape[0]
        # Behind the rows of one type are those of the others, which no edge starts at.
        skipped = sources.start + (num_local - sources.stop) * (positions >= num_local)
        numbers = np.stack([positions - skipped, operator.targets[order] - targets.start])
        num_rows = sum(part.block.shape[1] for part in operator.parts)
        num_rows -= num_local - (sources.stop - sources.start)
        return cls(
            operator,
            types,
            types_of_ends,
            torch.from_numpy(order),
            torch.from_numpy(numbers),
            num_rows,
        )

    @property
    @override
    def lengths(self) -> tuple[int, ...]:
        return self.num_nodes(), self.numbers.shape[1]

    @cached_property
    @collective
    def ids(self) -> GlobalIndices:
        """(N + G,) int64 original ids of what sources are numbers of."""
        return self.of_sources(self.types[self.kinds[0]])

    @collective
    def of_sources(self, numbers: GlobalIndices) -> GlobalIndices:
        """Return (N + G,) int64 numbers of what sources are numbers of, from those of own nodes."""
        # Fewer nodes than 2^53 have numbers that float64 holds exactly.
        known = torch.from_numpy(numbers.astype(np.float64))
        return self._along(known, 0, self._fetch).numpy().astype(np.int64)

    @collective
    @override
    def sums(self, array: Array) -> None:
        allreduce_sum(self.operator.comm, array)

    @collective
    @override
    def maxima(self, array: Array) -> None:
        allreduce_max(self.operator.comm, array)

    @property
    def index(self) -> Edges:
        """(2, E) the edges, sources first."""
        edges = Edges.of(self.numbers, self, 0)
        edges.is_whole = True
        return edges

    @cached_property
    def features(self) -> Tensor:
        """(E, F) of the edges."""
        return torch.from_numpy(self.operator.features)[self.order]

    @cached_property
    def _named(self) -> dict[int, tuple[Tensor, GlobalIndices]]:
        """Row of the sources -> the edges that were named last, and their names."""
        return {}

    @collective
    def edge_ids(self, edges: Edges) -> GlobalIndices:
        """Return (E,) int64 names of edges, the same at any number of ranks."""
        numbers, row = edges.plain, edges.source_row
        # Layers add loops to the same edges each time. The ids of nodes come with the first call.
        known, names = self._named.get(row, (None, self.ids[:0]))
        if known is None or not torch.equal(known, numbers):
            names = self._names(numbers.numpy(), row)
            self._named[row] = numbers, names
        return names

    def _names(self, numbers: Array, source_row: int) -> GlobalIndices:
        sources, targets = numbers[source_row], numbers[1 - source_row]
        ends = np.stack([self.ids[sources], self.node_ids[targets]]).astype(np.uint64)
        order = np.lexsort((ends[0], ends[1]))
        ends = ends[:, order]
        # Edges with both ends alike are told apart by their order.
        new = np.ones(len(order), np.bool_)
        new[1:] = (ends[:, 1:] != ends[:, :-1]).any(0)
        first = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
        word = np.zeros(len(order), np.uint64)
        for field in (*ends, (np.arange(len(order)) - first).astype(np.uint64)):
            word = (word ^ field) * np.uint64(0xFF51AFD7ED558CCD)
            word ^= word >> np.uint64(33)
        names = np.empty(len(order), np.uint64)
        names[order] = word
        return names.view(np.int64)

    @collective
    def with_ghosts(self, x: Tensor, dim: int) -> Tensor:
        """Return `x` with the rows of other ranks behind its own along a dimension, N there."""
        self.check_rows(x, dim)
        return self._along(x, dim, self._fetch)

    @collective
    def take_home(self, x: Tensor, dim: int) -> Tensor:
        """Return the sums at own rows along a dimension, of those at own and at fetched ones."""
        return self._along(x, dim, self._return)

    @collective
    def _fetch(self, rows: Tensor) -> Tensor:
        rows_of_type, num_local = _place(self.types, self.kinds[0]), self.operator.shape[0]
        if len(rows) == num_local:
            return with_ghosts(rows, self.operator)
        rows = nn.functional.pad(rows, (0, 0, rows_of_type.start, num_local - rows_of_type.stop))
        sources = with_ghosts(rows, self.operator)
        return torch.cat([sources[rows_of_type], sources[num_local:]])

    @collective
    def _return(self, rows: Tensor) -> Tensor:
        rows_of_type, num_local = _place(self.types, self.kinds[0]), self.operator.shape[0]
        count = rows_of_type.stop - rows_of_type.start
        if count == num_local:
            return take_home(rows, self.operator)
        local = nn.functional.pad(
            rows[:count], (0, 0, rows_of_type.start, num_local - rows_of_type.stop)
        )
        return take_home(torch.cat([local, rows[count:]]), self.operator)[rows_of_type]

    def _along(self, x: Tensor, dim: int, move: Any) -> Tensor:
        rows = x.movedim(dim, 0)
        shape = rows.shape[1:]
        flat = rows.reshape(len(rows), shape.numel())
        # Numbers of other types are small enough for float64 to hold.
        as_sent = flat if flat.dtype in (torch.float32, torch.float64) else flat.double()
        moved = move(as_sent).to(x.dtype)
        return moved.view(len(moved), *shape).movedim(0, dim)

    def check_rows(self, x: Tensor, dim: int) -> None:
        """Raise `InputError` where a tensor has no row for each own node along a dimension."""
        count, node_type = self.num_nodes(self.kinds[0]), kind_of(x)
        fits = axis_of(x) == dim % x.dim() and node_type in (None, self.kinds[0])
        if not fits or x.shape[dim] != count:
            raise InputError(
                f"a tensor of shape {tuple(x.shape)} is indexed by the sources of edges: it has no "
                f"row for each of the {count} nodes of this rank"
            )


def _place(types: Mapping[Hashable, GlobalIndices], node_type: Hashable) -> slice:
    """Return the rows of a type among those of all types."""
    start = 0
    for name, ids in types.items():
        if name == node_type:
            return slice(start, start + len(ids))
        start += len(ids)
    raise KeyError(node_type)
