"""The edges of a rank in the form that modules of one process take, (2, E), and index tensors.

Only `hpcgnn.pyg.torch_function_mode` can read the numbers of `EdgeList` and `Sources`: elsewhere,
the index of a row that another rank owns would be out of range or mean another node.
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
from hpcgnn.pyg.ghosts import (
    halves,
    joined_halves,
    refuse_complex,
    take_home,
    with_ghosts,
)
from hpcgnn.pyg.row_axis import Axis, axis_of, kind_of, mark, rows_of
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
"""Functions allowed on an index outside of a distributed module, as they reveal no node."""


def name_of(function: Any) -> str:
    """Return the name of a torch function or property."""
    name: str = function.__name__
    return name if name != "__get__" else function.__self__.__name__


class Index(Tensor):
    """Numbers of nodes of a distributed graph."""

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
            f"torch.{name_of(func)}: edges of a distributed graph can only be read inside modules "
            "given to hpcgnn.distribute"
        )

    @property
    def plain(self) -> Tensor:
        """The numbers as an ordinary tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            values = self.as_subclass(Tensor)
        return mark(values, *self.rows)


class EdgePlaceholder(Index):
    """A placeholder for edges that only layers on this package's operators use; see `OwnLayer`."""

    @classmethod
    def of(cls, share: "RowShare") -> "EdgePlaceholder":
        """Return the placeholder for the edges of a share."""
        pattern = torch.empty((2, 0), dtype=torch.long).as_subclass(cls)
        pattern.share, pattern.rows = share, Axis(1)
        return pattern


class EdgeList(Index):
    """(2, E) int64 edges: row `source_row` holds sources, the other targets, which are own rows.

    `is_whole` tells that they are all edges of the share, in its order.
    """

    share: "EdgeShare"
    source_row: int
    is_whole: bool = False

    @classmethod
    def of(cls, numbers: Tensor, share: "EdgeShare", source_row: int) -> "EdgeList":
        """Return numbers (2, E) as edges."""
        edges = numbers.as_subclass(cls)
        edges.share, edges.source_row, edges.rows = share, source_row, Axis(1)
        return edges


class NodeIndex(Index):
    """Nodes in a tensor of int64, of any shape."""

    share: "EdgeShare"

    @classmethod
    def of(cls, numbers: Tensor, share: "EdgeShare") -> Self:
        """Return numbers as nodes of a share."""
        nodes = numbers.as_subclass(cls)
        nodes.share, nodes.rows = share, rows_of(numbers) or Axis(0)
        return nodes


class Sources(NodeIndex):
    """Sources of edges: own rows, followed by rows that other ranks own."""


class TargetIndex(NodeIndex):
    """Targets of edges, which are own rows."""


class RowShare(ABC):
    """The rows of a rank's nodes, and sums over those of all ranks."""

    types: Mapping[Hashable, GlobalIndices]
    """Node type -> (N,) int64 original ids; the key is None if there is one type."""
    kinds: tuple[Hashable, Hashable]
    """The types of sources and of targets."""

    @property
    def node_ids(self) -> GlobalIndices:
        """(N,) int64 original ids of the nodes of the targets' type."""
        return self.types[self.kinds[1]]

    def num_nodes(self, node_type: Hashable = None) -> int:
        """Return the number of own nodes of a type."""
        return len(self.types[node_type])

    @property
    def lengths(self) -> tuple[int, ...]:
        """Numbers of rows of tensors of nodes, and of edges if there are any."""
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

    `types` has (N,) int64 original ids for each type of nodes; the rows of the operator are all of
    them, type after type. `kinds` are the types of sources and of targets. `order` (E,) int64 is
    the position of each edge among those of the operator; `numbers` (2, E) int64 are sources and
    targets. `num_rows`, N + G, counts the nodes of the sources' type and other ranks' rows.
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
        sources, targets = (_rows_of(types, node_type) for node_type in types_of_ends)
        positions, num_local = source_places(operator)[order], operator.shape[0]
        # Leave out the rows of other types, at which no edge starts.
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
        """(N + G,) int64 original ids of the rows that sources number."""
        return self.of_sources(self.types[self.kinds[0]])

    @collective
    def of_sources(self, numbers: GlobalIndices) -> GlobalIndices:
        """Return (N + G,) int64 the `numbers` of own nodes followed by those of ghosts."""
        # Numbers of nodes are below 2^53, which float64 holds exactly.
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
    def index(self) -> EdgeList:
        """(2, E) all edges, with sources first."""
        edges = EdgeList.of(self.numbers, self, 0)
        edges.is_whole = True
        return edges

    @cached_property
    def features(self) -> Tensor:
        """(E, F) features of the edges."""
        return torch.from_numpy(self.operator.features)[self.order]

    @cached_property
    def _named(self) -> dict[int, tuple[Tensor, GlobalIndices]]:
        """Row of the sources -> the edges that `edge_ids` last got, and their ids."""
        return {}

    @collective
    def edge_ids(self, edges: EdgeList) -> GlobalIndices:
        """Return (E,) int64 ids of edges, which do not depend on the number of ranks."""
        numbers, row = edges.plain, edges.source_row
        # Layers add loops to the same edges each time. All ranks evaluate `ids`, a collective.
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
        # Distinguish parallel edges by their order.
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
        """Return `x`, of size N along `dim`, followed by the rows of other ranks."""
        self.check_rows(x, dim)
        return self._along(x, dim, self._fetch)

    @collective
    def take_home(self, x: Tensor, dim: int) -> Tensor:
        """Return the sums at own rows, given sums at own and fetched rows along `dim`."""
        return self._along(x, dim, self._return)

    @collective
    def _fetch(self, rows: Tensor) -> Tensor:
        rows_of_type, num_local = _rows_of(self.types, self.kinds[0]), self.operator.shape[0]
        if len(rows) == num_local:
            return with_ghosts(rows, self.operator)
        rows = nn.functional.pad(rows, (0, 0, rows_of_type.start, num_local - rows_of_type.stop))
        sources = with_ghosts(rows, self.operator)
        return torch.cat([sources[rows_of_type], sources[num_local:]])

    @collective
    def _return(self, rows: Tensor) -> Tensor:
        rows_of_type, num_local = _rows_of(self.types, self.kinds[0]), self.operator.shape[0]
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
        refuse_complex(x)
        if x.dtype == torch.int64:
            parts = move(torch.cat(halves(flat), dim=1).double()).chunk(2, dim=1)
            moved = joined_halves(*parts)
        else:
            # float64 holds the numbers of all other types.
            as_sent = flat if flat.dtype in (torch.float32, torch.float64) else flat.double()
            moved = move(as_sent).to(x.dtype)
        return moved.view(len(moved), *shape).movedim(0, dim)

    def check_rows(self, x: Tensor, dim: int) -> None:
        """Raise `InputError` unless a tensor has a row for each own node along a dimension."""
        count, node_type = self.num_nodes(self.kinds[0]), kind_of(x)
        fits = axis_of(x) == dim % x.dim() and node_type in (None, self.kinds[0])
        if not fits or x.shape[dim] != count:
            raise InputError(
                f"a tensor of shape {tuple(x.shape)} is indexed by the sources of edges: it has no "
                f"row for each of the {count} nodes of this rank"
            )


def _rows_of(types: Mapping[Hashable, GlobalIndices], node_type: Hashable) -> slice:
    start = 0
    for name, ids in types.items():
        if name == node_type:
            return slice(start, start + len(ids))
        start += len(ids)
    raise KeyError(node_type)
