"""Attention over a distributed pattern: the product loop with a softmax in place of a sum.

Forward, a rank fetches the values of ghosts (C F) and, for pushed entries (Gᵀ R), computes partial
softmax states of other ranks' rows and pushes those; states merge exactly, in any order. Backward,
gradients of fetched values return to their owners, and for pushed entries the owner of a value
fetches what it needs of the rows and pushes back the gradients of their targets. This is case 2 of
"Sequential Aggregation and Rematerialization": the resident schedule keeps fetched values from the
forward pass, the sequential one fetches them again, block by block.
"""

from copy import copy

from hpcgnn.attention.fetch_and_push import FetchedValues, PushedStates, node_ids
from hpcgnn.attention.operator import Softmax, WholePattern
from hpcgnn.attention.scores import AttentionInput, BackwardWalk, ScoredRows
from hpcgnn.attention.softmax import AttentionState
from hpcgnn.kernels import Gradients, SoftmaxGradient
from hpcgnn.sparse import DistCSR, EdgeFeatures, LocalCSR, LocalMatrix
from hpcgnn.spmd import collective
from hpcgnn.spmm.product import DistributedSpMM
from hpcgnn.spmm.remote import Exchange, RemotePart
from hpcgnn.spmm.wire import ROWS
from hpcgnn.typing import FloatArray, GlobalIndices


class DistributedAttention(DistributedSpMM):
    """A pattern that aggregates by attention, and by plain sums; an `AttentionOperator`.

    The matrix has no values; or, where there are features of `edges`, their numbers. `row_ids` and
    `column_ids` are int64 original ids of the local rows and columns, which masks of edges are
    drawn from.
    """

    @collective
    def __init__(
        self,
        matrix: DistCSR,
        exchange: Exchange,
        row_ids: GlobalIndices,
        column_ids: GlobalIndices,
        edges: EdgeFeatures | None = None,
    ) -> None:
        super().__init__(matrix, exchange)
        self._edges = edges
        # Blocks with the numbers of their edges, from which edges get other features.
        self._numbered: tuple[LocalMatrix | None, RemotePart | None]
        self._numbered = self._diagonal, self._fetched
        if edges is not None:
            self._read_edges(edges)
        put = self.memory.put
        self._row_ids, self._column_ids = put(row_ids), put(column_ids)
        self._values = self._states = None
        if self._fetched is not None:
            ghost_ids = node_ids(self._fetched, column_ids)
            self._values = FetchedValues(
                self._fetched, self._row_ids, ghost_ids, self.trace, self.run_position
            )
        if self._pushed is not None:
            target_ids = node_ids(self._pushed, row_ids)
            self._states = PushedStates(
                self._pushed, target_ids, self._column_ids, self.trace, self.run_position
            )

    @collective
    def _read_edges(self, edges: EdgeFeatures) -> None:
        """Give every block the features of its edges; other ranks send those of pushed edges."""
        diagonal, fetched = self._numbered
        if isinstance(diagonal, LocalCSR):
            self._diagonal = edges.own(diagonal)
        if fetched is not None:
            self._fetched = copy(fetched)
            same = fetched.push_blocks is fetched.blocks
            self._fetched.blocks = tuple(map(edges.own, fetched.blocks))
            self._fetched.push_blocks = (
                self._fetched.blocks if same else tuple(map(edges.own, fetched.push_blocks))
            )
        pushed = self._pushed
        if pushed is not None:
            pushed.blocks = pushed.push_blocks = edges.others(pushed.blocks)
        if edges.entries is None:
            # The numbers are not needed again.
            self._numbered = None, None

    @collective
    def with_edge_columns(self, rows: FloatArray) -> "DistributedAttention":
        """Return a copy whose edges have more features (E, any), in the order of the store."""
        assert self._edges is not None
        assert self._pushed is None, "pushed edges belong to other ranks"
        widened = copy(self)
        widened._read_edges(self._edges.with_columns(rows))
        if self._values is not None and widened._fetched is not None:
            widened._values = self._values.over(widened._fetched)
        return widened

    @property
    def whole(self) -> WholePattern | None:
        """The pattern where one rank's main memory holds all of it; see `AttentionOperator`."""
        alone = self.grid.num_blocks == self.grid.replication == 1
        # GPUs have no kernel that attends before projection.
        if not alone or not isinstance(self._diagonal, LocalCSR):
            return None
        return WholePattern(self._diagonal.with_all_rows, self._row_ids, self._column_ids)

    @collective
    def attend(
        self, inputs: AttentionInput, out: FloatArray, *, bias: FloatArray | None = None, keep: bool
    ) -> Softmax:
        """Write the attention-weighted means of the rows; see `AttentionOperator`."""
        self._check(inputs)
        self.grid.run_position.next_product()
        instant = self.grid.run_position.now
        scores, values, targets = inputs.scores, inputs.values, inputs.targets
        shape = len(targets), scores.heads, scores.result_width(values)
        state = AttentionState.empty(*shape, targets.dtype, self.memory)
        fetched, pushed, trace = self._values, self._states, self.trace
        fetch = None if fetched is None else fetched.start(inputs, instant, keep=keep)
        push = None if pushed is None else pushed.start(inputs, state, instant)
        with trace.span("interior.forward"):
            if self._diagonal is not None:
                own = inputs.block_draw(self._row_ids, self._column_ids)
                score = scores.operands(self.memory, ScoredRows(values, targets, ROWS))
                scores.forward(self._diagonal, score, state, own)
        kept = None
        if fetched is not None and fetch is not None:
            kept = fetched.attend(fetch, inputs, state, instant, keep=keep)
        # A push by stages begins in its `finish`: the fetched ghosts must be freed by then.
        del fetch
        if push is not None:
            push.finish()
        if self.grid.replication > 1:
            state.merge_replicas(self._exchange.sum_rows)
        state.finish(out, bias)
        return Softmax(state.top, kept, instant)

    @collective
    def attend_transpose(
        self, inputs: AttentionInput, softmax: Softmax, gradient: FloatArray, delta: FloatArray
    ) -> Gradients:
        """Return the gradients of values, targets and weights; see `AttentionOperator`."""
        self._check(inputs)
        self.grid.run_position.next_product()
        scores, values, targets = inputs.scores, inputs.values, inputs.targets
        saved = SoftmaxGradient(softmax.lse, gradient, delta)
        zeros = self.memory.arrays.zeros
        like = values, targets, scores.weights
        for_values, for_targets, for_weights = (zeros(a.shape, targets.dtype) for a in like)
        gradients = Gradients(for_values, for_targets, for_weights)
        push = None
        if self._values is not None:
            push = self._values.start_transpose(inputs, saved, softmax, gradients)
        with self.trace.span("interior.reverse"):
            if self._diagonal is not None:
                own = inputs.block_draw(self._row_ids, self._column_ids)
                score = scores.operands(self.memory, ScoredRows(values, targets, ROWS))
                blocks = self._diagonal, self._diagonal.transposed
                scores.backward(BackwardWalk(*blocks, score, saved, gradients, own))
        if push is not None:
            push.finish()
        if self._states is not None:
            self._states.transpose(inputs, saved, softmax, gradients)
        if self.grid.replication > 1:
            self._exchange.sum_columns.add(for_values)
            self._exchange.sum_rows.add(for_targets)
            with self.trace.span("reduce.replicas", bytes=for_weights.nbytes):
                self._carrier.sum_over_replicas(for_weights)
        return gradients

    def _check(self, inputs: AttentionInput) -> None:
        targets, values = len(inputs.targets), len(inputs.values)
        if (targets, values) != self.shape:
            raise ValueError(
                f"expected {self.shape[1]} values and {self.shape[0]} targets, not {values} "
                f"and {targets}"
            )
