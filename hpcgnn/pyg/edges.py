"""The edges of a rank as modules of one process take them, (2, E), and what stands for an index.

`Edges` and `Sources` are tensors of numbers that only `hpcgnn.pyg.mode` knows to read: elsewhere
an index of the rows that other ranks own would be one out of range, or of another node.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.comm import allreduce_max, allreduce_sum
from hpcgnn.errors import InputError
from hpcgnn.messages import MessageOperator, source_places
from hpcgnn.pyg.ghosts import take_home, with_ghosts
from hpcgnn.pyg.marks import Axis, axis_of, mark, rows_of
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

    share: "EdgeShare"
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
            found = self.as_subclass(Tensor)
        return mark(found, *self.rows)


class Edges(Index):
    """(2, E) int64: the row `source_row` are sources, the other one targets, own rows."""

    source_row: int

    @classmethod
    def of(cls, numbers: Tensor, share: "EdgeShare", source_row: int) -> "Edges":
        """Return numbers (2, E) as edges."""
        edges = numbers.as_subclass(cls)
        edges.share, edges.source_row, edges.rows = share, source_row, Axis(1)
        return edges


class Nodes(Index):
    """Any shape of int64."""

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


@dataclass(frozen=True, eq=False)
class EdgeShare:
    """The edges that end at a rank's nodes, ordered by target.

    Parameters
    ----------
    node_ids
        (N,) int64 original ids.
    order
        (E,) int64 where each edge is among those of the operator.
    numbers
        (2, E) int64 sources and targets.
    num_rows
        N and the rows that other ranks own, N + G.
    """

    operator: MessageOperator
    node_ids: GlobalIndices
    order: Tensor
    numbers: Tensor
    num_rows: int

    @classmethod
    def of(cls, operator: MessageOperator, node_ids: GlobalIndices) -> "EdgeShare":
        """Return the edges of an operator."""
        order = np.argsort(operator.targets, kind="stable")
        numbers = np.stack([source_places(operator), operator.targets])[:, order]
        num_rows = sum(part.block.shape[1] for part in operator.parts)
        return cls(operator, node_ids, torch.from_numpy(order), torch.from_numpy(numbers), num_rows)

    @cached_property
    @collective
    def ids(self) -> GlobalIndices:
        """(N + G,) int64 original ids of what sources are numbers of."""
        # Fewer nodes than 2^53 have ids that float64 holds exactly.
        known = torch.from_numpy(self.node_ids.astype(np.float64))[:, None]
        return with_ghosts(known, self.operator)[:, 0].numpy().astype(np.int64)

    @collective
    def sums(self, array: Array) -> None:
        """Replace an array by its sum over the block rows."""
        allreduce_sum(self.operator.comm, array)

    @collective
    def maxima(self, array: Array) -> None:
        """Replace an array by its maximum over the block rows."""
        allreduce_max(self.operator.comm, array)

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.operator.shape[0]

    @property
    def index(self) -> Edges:
        """(2, E) the edges, sources first."""
        return Edges.of(self.numbers, self, 0)

    @cached_property
    def features(self) -> Tensor:
        """(E, F) of the edges."""
        return torch.from_numpy(self.operator.features)[self.order]

    @collective
    def edge_ids(self, edges: Edges) -> GlobalIndices:
        """Return (E,) int64 names of edges, the same at any number of ranks."""
        numbers = edges.plain.numpy()
        sources, targets = numbers[edges.source_row], numbers[1 - edges.source_row]
        ends = np.stack([self.ids[sources], self.ids[targets]]).astype(np.uint64)
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
        return self._along(x, dim, with_ghosts)

    @collective
    def take_home(self, x: Tensor, dim: int) -> Tensor:
        """Return the sums at own rows along a dimension, of those at own and at fetched ones."""
        return self._along(x, dim, take_home)

    def _along(self, x: Tensor, dim: int, move: Any) -> Tensor:
        rows = x.movedim(dim, 0)
        shape = rows.shape[1:]
        flat = rows.reshape(len(rows), shape.numel())
        # Numbers of other types are small enough for float64 to hold.
        as_sent = flat if flat.dtype in (torch.float32, torch.float64) else flat.double()
        moved = move(as_sent, self.operator).to(x.dtype)
        return moved.view(len(moved), *shape).movedim(0, dim)

    def check_rows(self, x: Tensor, dim: int) -> None:
        """Raise `InputError` where a tensor has no row for each own node along a dimension."""
        if axis_of(x) != dim % x.dim() or x.shape[dim] != self.num_nodes:
            raise InputError(
                f"a tensor of shape {tuple(x.shape)} is indexed by the sources of edges: it has no "
                f"row for each of the {self.num_nodes} nodes of this rank"
            )
