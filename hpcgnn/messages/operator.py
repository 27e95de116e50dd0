"""The edges of a distributed pattern, and the rows of their sources under every exchange.

Edges and their states belong to the owners of their targets; source rows are fetched, and their
gradients sent back. Edges are ordered as rows arrive: first those with own sources, then those of
each stage, so that the states of a part are contiguous. This is case 2 of "Sequential Aggregation
and Rematerialization": the resident schedule keeps fetched rows from the forward pass, the
sequential one fetches them again, stage by stage.

In an exchange that pushes, the edges of a cover belong to the owners of their sources instead,
which send sums of messages to the targets' owners. These edges come last.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcgnn.comm import Communicator
from hpcgnn.messages.remote_rows import RemoteRows
from hpcgnn.sparse import DistCSR, EdgeTable, LocalCSR, LocalMatrix
from hpcgnn.sparse.device import DeviceCSR
from hpcgnn.spmd import collective
from hpcgnn.spmm.product import DistributedSpMM
from hpcgnn.spmm.remote import Exchange
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets


@dataclass(frozen=True, eq=False)
class EdgePart:
    """The edges whose sources are rows of one array, ordered by target.

    `block` has an entry for each edge: its row is the target, its column the row of the source.
    `sources` (edges,) int32 number the sources for the push of gradients, which may differ from the
    columns of the fetch. `edges` is their range among all edges of the rank.
    """

    block: LocalCSR
    sources: LocalIndices
    edges: slice


@dataclass(frozen=True, eq=False)
class PushedEdges:
    """Edges with own sources whose targets other ranks own.

    `rows` fetches rows of these targets and sends sums to their owners. `parts` are the edges of
    each stage; a block's rows are its targets, numbered as in a push. `features` are (edges, F).
    """

    rows: RemoteRows
    parts: tuple[EdgePart, ...]
    features: FloatArray


class MessageOperator(DistributedSpMM):
    """A pattern whose entries are edges with features; in products every entry counts as 1.

    The values of `matrix` are the numbers of its entries in `table`, the edges of the rank. With
    `states_again`, models recompute edge states in the backward pass instead of keeping them;
    models with edge states need an exchange that pushes nothing.

    `numbers` (E,) integers are the table rows of the edges, without pushed ones, computed on first
    use; None if the edges are in the table's order. `sources` fetches rows of the edges' sources
    from other ranks. `pushed` are edges whose messages are summed for other ranks; None if no rank
    has any. `num_edges` counts the edges whose messages this rank computes, with pushed ones at the
    end; `features` (num_edges, F) are in their order.
    """

    @collective
    def __init__(
        self, matrix: DistCSR, exchange: Exchange, table: EdgeTable, *, states_again: bool = False
    ) -> None:
        self.states_again = states_again
        super().__init__(matrix, exchange)
        fetched, own = self._fetched, self._diagonal
        assert fetched is not None
        self._columns = matrix.row_map.start, matrix.column_nodes
        self.sources = RemoteRows(fetched, self.run_position, self.trace)
        blocks = [_expanded(block, table) for block in (own, *fetched.blocks)]
        ends = np.cumsum([0, *(block.nnz for block, _ in blocks)])
        same = fetched.push_blocks is fetched.blocks
        pushed = None if same else [_expanded(block, table)[0] for block in fetched.push_blocks]
        # The numbers of entries have been read; from here on these blocks only multiply.
        self._diagonal, fetched.blocks, fetched.push_blocks = (
            self._multiplied(own),
            tuple(map(self._multiplied, fetched.blocks)),
            () if same else tuple(map(self._multiplied, fetched.push_blocks)),
        )
        if same:
            fetched.push_blocks = fetched.blocks
        if self._pushed is not None:
            pattern = self._pushed
            pattern.blocks = tuple(map(self._multiplied, pattern.blocks))
            pattern.push_blocks = tuple(map(self._multiplied, pattern.push_blocks))
        self.own, *self.stages = (
            EdgePart(block, block.indices, slice(int(ends[i]), int(ends[i + 1])))
            for i, (block, _) in enumerate(blocks)
        )
        if pushed is not None:
            self.stages = [
                EdgePart(stage.block, block.indices, stage.edges)
                for stage, block in zip(self.stages, pushed, strict=True)
            ]
        self.num_edges, self._degrees_elsewhere = int(ends[-1]), np.zeros(self.shape[0], np.int64)
        self.pushed = self._bind_pushed(matrix, exchange, table)
        numbers = np.concatenate([of_block for _, of_block in blocks])
        self._num_in_table = len(table.features)
        in_order = len(numbers) == self._num_in_table and _rise(numbers)
        self.features = table.features if in_order else table.features[numbers]
        # A whole pattern's own edges are those not in `_elsewhere`, in the table's order. A
        # sampled pattern has few of its table's edges, so all numbers are kept.
        self._elsewhere = numbers[self.own.edges.stop :].copy()
        whole = len(numbers) == self._num_in_table and _rise(numbers[self.own.edges])
        self._numbers = None if whole else numbers
        if self.pushed is not None:
            self.features = np.concatenate([self.features, self.pushed.features])
        self._kept: tuple[MessageOperator, LocalIndices] | None = None

    @collective
    def _bind_pushed(
        self, matrix: DistCSR, exchange: Exchange, table: EdgeTable
    ) -> PushedEdges | None:
        bound = exchange.bind_edges(matrix, table)
        if bound is None:
            return None
        remote, table, per_row = bound
        self._degrees_elsewhere = per_row
        rows = RemoteRows(remote, self.run_position, self.trace)
        parts, numbers = [], []
        for stage in remote.push_blocks:
            block, of_stage = _expanded(_on_host(stage).transposed, table)
            edges = slice(self.num_edges, self.num_edges + block.nnz)
            parts.append(EdgePart(block, block.indices, edges))
            numbers.append(of_stage)
            self.num_edges = edges.stop
        features = table.features[np.concatenate([np.empty(0, np.int64), *numbers])]
        return PushedEdges(rows, tuple(parts), features)

    def _multiplied(self, block: LocalMatrix | None) -> LocalMatrix:
        return self.memory.matrix(_pattern(_on_host(block)))

    @property
    def comm(self) -> Communicator:
        """The ranks that the edges are distributed over, one for each block row."""
        return self.grid.layer

    @property
    def parts(self) -> tuple[EdgePart, ...]:
        """All edges computed on this rank whose targets it owns."""
        return (self.own, *self.stages)

    @property
    def column_numbers(self) -> GlobalIndices:
        """(columns,) int64 global number of each input row."""
        start, nodes = self._columns
        return start + (np.arange(self.shape[1]) if nodes is None else nodes.astype(np.int64))

    @cached_property
    def numbers(self) -> Array | None:
        """See the class."""
        if self._numbers is not None or not len(self._elsewhere):
            return self._numbers
        is_own = np.ones(self._num_in_table, np.bool_)
        is_own[self._elsewhere] = False
        return np.concatenate([np.flatnonzero(is_own), self._elsewhere]).astype(np.int32)

    @cached_property
    def targets(self) -> GlobalIndices:
        """(E,) int64 target rows of the edges, without pushed ones."""
        parts = [part.block.entry_rows() for part in self.parts]
        return np.concatenate(parts).astype(np.int64)

    @cached_property
    def degrees(self) -> Offsets:
        """(rows,) int64 number of edges into each row."""
        return np.bincount(self.targets, minlength=self.shape[0]) + self._degrees_elsewhere

    @cached_property
    def positions(self) -> LocalIndices | None:
        """(E,) int32 position of each edge of the table; None: edges are in the table's order."""
        return None if self.numbers is None else np.argsort(self.numbers).astype(np.int32)

    def positions_in(self, before: "MessageOperator") -> LocalIndices | None:
        """Return (E,) int32 edge positions in `before`, of the same or more edges; None: equal."""
        if before is self or (self.numbers is None and before.numbers is None):
            return None
        if self._kept is None or self._kept[0] is not before:
            positions = np.empty(self._num_in_table, np.int32)
            known = slice(None) if before.numbers is None else before.numbers
            positions[known] = np.arange(before.num_edges)
            own = slice(None) if self.numbers is None else self.numbers
            self._kept = before, positions[own]
        return self._kept[1]


def _rise(numbers: Array) -> bool:
    return not bool((numbers[1:] < numbers[:-1]).any())


def _expanded(block: LocalMatrix | None, table: EdgeTable) -> tuple[LocalCSR, Array]:
    """Return a block with an entry for each edge, and the numbers of the edges."""
    block = _on_host(block)
    # A block without entries may have no values.
    values = np.zeros(block.nnz) if block.values is None else block.values
    assert block.values is not None or block.nnz == 0
    numbers: Array = values if values.dtype == np.int32 else values.astype(np.int64)
    if table.starts is None:
        return _pattern(block), numbers
    counts, numbers = table.edges_of(numbers)
    if bool((counts == 1).all()):
        return _pattern(block), numbers
    ends = np.concatenate([[0], np.cumsum(counts)])
    columns = np.repeat(block.indices, counts)
    return LocalCSR(ends[block.indptr], columns, None, block.shape, block.rows), numbers


def _on_host(block: LocalMatrix | None) -> LocalCSR:
    assert isinstance(block, LocalCSR | DeviceCSR)
    return block.host if isinstance(block, DeviceCSR) else block


def _pattern(block: LocalCSR) -> LocalCSR:
    return block.with_values(None)
