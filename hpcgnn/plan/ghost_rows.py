"""The needs of all ranks from each other, for a pattern that one process has whole."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from hpcgnn.comm import GridPosition, Request, RowMap
from hpcgnn.plan.planned_graph import Survey
from hpcgnn.plan.simulated_peers import Answers, PatternShare
from hpcgnn.plan.traffic import BlockPairs, Ranks, RowTransfer, Traffic
from hpcgnn.sparse import DistCSR, LocalCSR
from hpcgnn.spmm import CoverSplit, LayerGhosts, PushedEntries, ReplicaShares, find_method
from hpcgnn.storage import row_positions
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Mask, Offsets


class BlockRows:
    """The block rows that ranks would hold; making one takes time proportional to its entries.

    `whole` is a matrix over all nodes or some, with all rows in one block; `starts` (blocks + 1,)
    int64 are the first nodes of the block rows.
    """

    def __init__(self, whole: DistCSR, starts: Offsets) -> None:
        matrix, num_nodes = whole.diagonal, whole.row_map.num_rows
        self._whole, self._starts = whole, starts
        self._column_nodes = _all_or(whole.column_nodes, matrix.shape[1])
        # Rows by relation are numbered relation after relation, with all nodes in each.
        row_nodes = _all_or(whole.row_nodes, matrix.shape[0])
        self._relations, self._nodes = np.divmod(row_nodes, max(num_nodes, 1))
        owners = RowMap(starts, 0).owner(self._nodes)
        # Rows of a block keep the order of the whole matrix, relation by relation.
        self._order = np.argsort(owners, kind="stable")
        self._bounds = np.searchsorted(owners[self._order], np.arange(len(starts)))
        stored = _all_or(matrix.rows, len(matrix.indptr) - 1)
        self._stored = np.full(matrix.shape[0], -1, np.int64)
        self._stored[stored] = np.arange(len(stored))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, block: int) -> DistCSR:
        """Return the block row that rank `block` would hold."""
        return self.cut(block)[0]

    def cut(self, block: int) -> tuple[DistCSR, Offsets]:
        """Return a block row, and the positions in the whole of its remote part's entries."""
        matrix, row_map = self._whole.diagonal, RowMap(self._starts, block)
        rows = self._order[self._bounds[block] : self._bounds[block + 1]]
        stored = self._stored[rows]
        picked = stored[stored >= 0]
        counts = np.zeros(len(rows), np.int64)
        counts[stored >= 0] = matrix.indptr[picked + 1] - matrix.indptr[picked]
        entries = row_positions(matrix.indptr, picked)
        columns = matrix.indices[entries]
        values = None if matrix.values is None else matrix.values[entries]
        # Columns of the whole matrix may be only some nodes, but nodes ascend, so those of a rank
        # are still a range.
        low, high = np.searchsorted(self._column_nodes, [row_map.start, row_map.stop])
        local = (columns >= low) & (columns < high)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        ghosts, ghost_numbers = np.unique(columns[~local], return_inverse=True)
        local_columns = (columns[local] - low).astype(np.int32)
        shape = len(counts), int(high - low)
        restricted = self._whole.row_nodes is not None
        local_rows = self._relations[rows] * row_map.num_local + self._nodes[rows] - row_map.start
        pattern = DistCSR(
            row_map,
            kept_rows(indptr, local, local_columns, values, shape, compact=restricted),
            kept_rows(
                indptr, ~local, ghost_numbers.astype(np.int32), values, (shape[0], len(ghosts))
            ),
            self._column_nodes[ghosts],
            local_rows.astype(np.int32) if restricted else None,
            (self._column_nodes[low:high] - row_map.start).astype(np.int32) if restricted else None,
            self._whole.num_relations,
            self._whole.symmetric,
        )
        return pattern, entries[~local]

    def pushed_to(self, block: int, pushed: Mask) -> tuple[GlobalIndices, GlobalIndices]:
        """Return the entries that all other ranks push to one, ordered by rows.

        Parameters
        ----------
        pushed
            (non-zeros of the whole,) mask of the entries pushed to owners of columns.

        Returns
        -------
        rows, nodes
            (entries,) int64 each: rows of the matrix of all ranks, and column nodes.
        """
        matrix, row_map = self._whole.diagonal, RowMap(self._starts, block)
        low, high = np.searchsorted(self._column_nodes, [row_map.start, row_map.stop])
        entries = np.flatnonzero(pushed & (matrix.indices >= low) & (matrix.indices < high))
        rows = matrix.entry_rows()[entries]
        relations, nodes = self._relations[rows], self._nodes[rows]
        owners = row_map.owner(nodes)
        # Ranks number the rows of their own nodes relation by relation.
        first, sizes = self._starts[owners], np.diff(self._starts)[owners]
        keys = first * self._whole.num_relations + relations * sizes + nodes - first
        order = np.argsort(keys, kind="stable")
        return keys[order], self._column_nodes[matrix.indices[entries[order]]]


def kept_rows(
    indptr: Offsets,
    kept: Array,
    indices: LocalIndices,
    values: FloatArray | None,
    shape: tuple[int, int],
    *,
    compact: bool = True,
) -> LocalCSR:
    """Return the kept entries of rows; `compact` stores only the rows that have any."""
    # Offsets of rows: the numbers of kept entries before each row's first.
    ends = np.concatenate([[0], np.cumsum(kept, dtype=np.int64)])[indptr]
    kept_values = None if values is None else values[kept]
    if not compact:
        return LocalCSR(ends, indices, kept_values, shape)
    occupied = np.flatnonzero(np.diff(ends))
    offsets = np.append(ends[occupied], ends[-1])
    return LocalCSR(offsets, indices, kept_values, shape, occupied.astype(np.int32))


def _all_or(numbers: LocalIndices | None, count: int) -> GlobalIndices:
    return np.arange(count, dtype=np.int64) if numbers is None else numbers.astype(np.int64)


@dataclass(frozen=True, eq=False)
class StoredSurvey(Survey):
    """The needs of all block rows of a stored pattern, for all replicas together.

    `whole` is the pattern, in one block. `nodes` are, for each block row, the ascending nodes that
    it fetches, and `targets` the ascending global rows that it pushes to; `pushed` (non-zeros,) is
    the mask of the entries of `whole` that are pushed. `entries` and `sizes` (blocks,) int64 are
    the numbers of non-zeros and columns of each block row; `sums` are as in `Traffic`. `by_replica`
    tells whether replicas share the work; with messages, each replica does all of it. `adapt`
    returns the ranks on which the rows move. `terms` are, for `nodes` and for `targets`, the
    numbers of terms of their sums; None if rows are not sums of integers.
    """

    whole: DistCSR
    nodes: Sequence[GlobalIndices]
    targets: Sequence[GlobalIndices]
    pushed: Mask
    entries: Array
    sizes: Array
    sums: Array
    by_replica: bool
    adapt: Callable[[Ranks], Ranks]
    terms: tuple[Sequence[Array], Sequence[Array]] | None = None

    @classmethod
    def of(
        cls,
        whole: DistCSR,
        ranks: Ranks,
        *,
        by_replica: bool = True,
        of_integers: bool = False,
        adapt: Callable[[Ranks], Ranks] = lambda ranks: ranks,
    ) -> "StoredSurvey":
        """Return the survey of a pattern, or of a matrix of integers, in one block."""
        ranks = adapt(ranks)
        copies, cover = ranks.exchange.replication, find_method(ranks.exchange.method).cover
        pushed = np.zeros(whole.diagonal.nnz, np.bool_)
        nodes, into, onto = [], [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        fetched_terms, pushed_terms = [], [np.empty(0)]
        entries, sizes = np.zeros((2, ranks.num_blocks), np.int64)
        sums = np.zeros((2, 2, ranks.num_blocks, copies, copies), np.int64)
        blocks = BlockRows(whole, ranks.starts)
        for index in range(ranks.num_blocks):
            block, stored = blocks.cut(index)
            split = CoverSplit.of(block, cover)
            pushed[stored[split.pushed]] = True
            nodes.append(block.ghosts[split.used])
            if of_integers:
                fetched = split.block(block)
                fetched_terms.append(_terms(fetched.indices, fetched.values, fetched.shape[1]))
            entries[index], sizes[index] = block.nnz, block.shape[1]
            if copies > 1 and by_replica:
                sums[0, :, index] = ReplicaShares.of_product(block, copies).counts
                sums[1, :, index] = ReplicaShares.of_adjoint(block, copies).counts
            if not split.pushed.any():
                continue
            # One sum for each row and each rank that multiplies some of its pushed entries.
            owners, (rows, _) = split.owners_of_pushed(block), split.pushed_entries(block)
            num_rows = block.result_map.num_rows
            ends, sum_of_entry = np.unique(owners * np.int64(num_rows) + rows, return_inverse=True)
            owners, rows = np.divmod(ends, num_rows)
            into.append(owners.astype(np.int32))
            onto.append(rows)
            if of_integers:
                values = block.remote.entries(split.pushed)
                pushed_terms.append(_terms(sum_of_entry, values, len(ends)))
        owners, rows = np.concatenate(into), np.concatenate(onto)
        order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[order], np.arange(1, ranks.num_blocks))
        targets = np.split(rows[order], bounds)
        terms = None
        if of_integers:
            terms = fetched_terms, np.split(np.concatenate(pushed_terms)[order], bounds)
        return cls(whole, nodes, targets, pushed, entries, sizes, sums, by_replica, adapt, terms)

    def layer(self, ranks: Ranks, replica: int) -> tuple[LayerGhosts, LayerGhosts]:
        """Return the nodes that ranks of a layer fetch, and the global rows that they push to."""
        handled, hosts = self._handled(ranks, replica), ranks.hosts(replica)
        row_map = RowMap(ranks.starts, 0)
        is_handled = [handled[row_map.owner(ghosts)] for ghosts in self.nodes]

        def of_nodes(pieces: Sequence[Array]) -> Sequence[Array]:
            return (
                pieces if handled.all() else [e[k] for e, k in zip(pieces, is_handled, strict=True)]
            )

        def of_targets(pieces: Sequence[Array]) -> Sequence[Array]:
            return [e[: len(e) * bool(k)] for e, k in zip(pieces, handled, strict=True)]

        fetched, pushed = self.terms or (None, None)
        sequential = ranks.exchange.schedule == "sequential"
        rows = ranks.starts * self.whole.num_relations
        return (
            LayerGhosts(
                ranks.starts,
                of_nodes(self.nodes),
                hosts,
                sequential,
                None if fetched is None else of_nodes(fetched),
            ),
            LayerGhosts(
                rows,
                of_targets(self.targets),
                hosts,
                sequential,
                None if pushed is None else of_targets(pushed),
            ),
        )

    def _handled(self, ranks: Ranks, replica: int) -> Mask:
        """Return a mask of the block columns that a replica multiplies."""
        turns = np.arange(ranks.num_blocks) % ranks.exchange.replication
        return (turns == replica) | (not self.by_replica)

    @override
    def traffic(self, ranks: Ranks) -> Traffic:
        ranks = self.adapt(ranks)
        copies, blocks = ranks.exchange.replication, ranks.num_blocks
        fetched, pushed = np.zeros((2, copies, blocks, blocks), np.int64)
        received = find_method(ranks.exchange.method).received
        by_terms: dict[tuple[RowTransfer, int], Array] = {}
        for replica in range(copies):
            layers = self.layer(ranks, replica)
            if received is None:
                fetched[replica] = np.where(self._handled(ranks, replica), self.sizes, 0)
                np.fill_diagonal(fetched[replica], 0)
            else:
                asked = received(layers[0]), received(layers[1])
                fetched[replica], back = (np.array([e.counts for e in pairs]) for pairs in asked)
                pushed[replica] = back.T
                if self.terms is not None:
                    transfers: tuple[RowTransfer, RowTransfer] = ("fetched", "pushed")
                    for what, requests, layer in zip(transfers, asked, layers, strict=True):
                        for log_terms, counts in _by_terms(requests, layer).items():
                            of_all = by_terms.setdefault((what, log_terms), np.zeros_like(fetched))
                            of_all[replica] = counts if what == "fetched" else counts.T
        sizes = self.sums, self.entries, *self.whole.shape
        return Traffic.of_pairs(BlockPairs.of_all(fetched, pushed, by_terms), *sizes)

    @override
    def share(self, ranks: Ranks, position: GridPosition) -> PatternShare:
        whole, traffic, ranks = self.whole, self.traffic(ranks), self.adapt(ranks)
        blocks = BlockRows(whole, ranks.starts)
        matrix, pushed = blocks[position.block], None
        # `traffic` does not tell: some exchanges count only sums that leave a host.
        if self.pushed.any():
            pushed = PushedEntries.of(matrix, *blocks.pushed_to(position.block, self.pushed))
        fetched, pushing = self.layer(ranks, position.replica)
        return PatternShare(
            matrix,
            traffic.operator_size,
            _answers(ranks, self.sizes, fetched, position, whole.column_nodes),
            _answers(ranks, self.sizes, pushing, position, whole.row_nodes),
            pushed,
        )


def _terms(sums: Array, integers: FloatArray | None, count: int) -> Array:
    """Return (count,) bounds of sums of `integers` (None: ones); `sums` number each one's sum."""
    return np.bincount(sums, None if integers is None else np.abs(integers), count)


def _by_terms(requests: Sequence[Request], layer: LayerGhosts) -> dict[int, Array]:
    """Return (readers, owners) the numbers of rows that are sums of fewer than 2^l ones, by l."""
    assert layer.terms is not None
    by_log: dict[int, Array] = {}
    for rank, request in enumerate(requests):
        # An exchange that delivers a rank's own ghosts does not add up sums of its host.
        mates = [rank]
        if request.nodes is not layer.nodes[rank]:
            mates = np.flatnonzero(layer.hosts == layer.hosts[rank]).tolist()
        terms = np.zeros(len(request.nodes))
        for mate in mates:
            _, requested, ghosts = np.intersect1d(
                request.nodes, layer.nodes[mate], assume_unique=True, return_indices=True
            )
            terms[requested] += layer.terms[mate][ghosts]
        logs, owners = np.frexp(terms)[1], np.repeat(np.arange(len(requests)), request.counts)
        for log_terms in np.unique(logs).tolist():
            of_all = by_log.setdefault(log_terms, np.zeros((len(requests),) * 2, np.int64))
            of_all[rank] = np.bincount(owners[logs == log_terms], minlength=len(requests))
    return by_log


def _answers(
    ranks: Ranks,
    sizes: Array,
    ghosts: LayerGhosts,
    position: GridPosition,
    stored: LocalIndices | None,
) -> Answers:
    """Return the answers of the other ranks to the one at `position`.

    `sizes` and `ghosts` are those of all ranks of the layer. `stored` are the nodes that the arrays
    of all ranks hold, in order; None: all.
    """
    received, no_nodes = find_method(ranks.exchange.method).received, np.empty(0, np.int64)
    if received is None:
        none = np.empty(0, np.int32)
        rows = _rows_at_owners(ghosts, position.block, stored)
        return Answers(none, no_nodes, none, none, (), (), sizes, rows)
    # What a rank sends follows from what others receive.
    requests = received(ghosts)

    def sent_by(rank: int) -> GlobalIndices:
        return np.concatenate([no_nodes, *(request.of_rank(rank) for request in requests)])

    sent = np.array([request.counts[position.block] for request in requests], np.int32)
    counts = requests[position.block].counts
    peers = np.flatnonzero((sent > 0) | (counts > 0)).astype(np.int32)
    mates: Sequence[int] = []
    # An exchange that delivers a rank's own ghosts needs no answers of its host.
    if any(
        nodes is not request.nodes for nodes, request in zip(ghosts.nodes, requests, strict=True)
    ):
        mates = np.flatnonzero(position.hosts == position.hosts[position.block]).tolist()
    return Answers(
        peers,
        sent_by(position.block),
        sent[peers],
        counts[peers],
        tuple(ghosts.nodes[mate] for mate in mates),
        tuple(sent_by(mate) for mate in mates),
        sizes,
    )


def _rows_at_owners(ghosts: LayerGhosts, rank: int, stored: LocalIndices | None) -> LocalIndices:
    nodes, starts = ghosts.nodes[rank], ghosts.starts
    owners = RowMap(starts, rank).owner(nodes)
    if stored is not None:
        nodes, starts = np.searchsorted(stored, nodes), np.searchsorted(stored, starts)
    return (nodes - starts[owners]).astype(np.int32)
