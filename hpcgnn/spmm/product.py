"""The product loop: multiply own columns while rows travel, then what arrived.

The block row is ``A = D + C F + Gᵀ R``: D has own columns, F fetches ghost rows that C multiplies,
R multiplies own rows for other ranks and Gᵀ pushes the sums. The forward product starts the fetch,
computes and starts the push, multiplies by D meanwhile, and then adds what arrived. Its adjoint
``Aᵀ = Dᵀ + Fᵀ Cᵀ + Rᵀ G`` is the same loop with the two parts exchanged. If A is symmetric, the
adjoint is the product itself; if A is a symmetric matrix with scaled rows, it is the same matrix
with scaled columns. Every exchange, process grid, wire format and memory uses this loop. GPU work
is issued asynchronously.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hpcgnn.comm import Volume
from hpcgnn.operator import Meanwhile, OperatorSize
from hpcgnn.sparse import MAIN, DistCSR, LocalMatrix, turned
from hpcgnn.spmd import collective
from hpcgnn.spmm.remote import Exchange, RemotePart
from hpcgnn.spmm.wire import ROWS
from hpcgnn.typing import Array


@dataclass(frozen=True, eq=False)
class _Walk:
    """A direction of the loop: its own columns, its shape, and its remote parts."""

    direction: str
    diagonal: LocalMatrix | None
    shape: tuple[int, int]
    fetched: RemotePart | None
    pushed: RemotePart | None


class DistributedSpMM:
    """A distributed matrix that multiplies dense rows; an `AggregationOperator`.

    Replicas of a block row pass equal dense rows and get equal results. The `exchange` must be made
    for the pattern of `matrix`; results are in the memory of its carrier. `coded` compresses column
    indices, which saves memory at some cost in time and gives the same bits. Rows are in `memory`;
    `shape` is the number of local rows of the result and of the input.
    """

    @collective
    def __init__(self, matrix: DistCSR, exchange: Exchange, *, coded: bool = False) -> None:
        grid = exchange.grid
        self.grid, self.trace, self.run_position = grid, exchange.trace, grid.run_position
        self._exchange = exchange
        # One replica multiplies the own columns; the sum over replicas adds them for the others.
        self._carrier, self.memory = exchange.carrier, exchange.carrier.memory
        self.size = self._sized(matrix, exchange, coded=coded)
        if self.size.chooses_columns:
            matrix = matrix.telling_relations()
        self._diagonal: LocalMatrix | None = None
        if grid.handles(grid.block):
            form = self.memory.coded if coded else self.memory.matrix
            self._diagonal = form(matrix.diagonal)
        self._fetched, self._pushed = exchange.bind(matrix, coded=coded)
        self.shape, self.is_symmetric = matrix.shape, matrix.symmetric
        self._lean = coded and not exchange.hides
        turns = self.memory is MAIN and exchange.fetches_all
        self._turned_factors = matrix.turned_factors if turns else None

    @collective
    def _sized(self, matrix: DistCSR, exchange: Exchange, *, coded: bool) -> OperatorSize:
        size = exchange.size(matrix)
        # Pairs of a node and a relation have 32-bit numbers.
        pairs = size.num_columns * matrix.num_relations
        chooses = self.memory is MAIN and not coded and pairs <= np.iinfo(np.int32).max
        return replace(size, chooses_columns=chooses)

    def volume(self) -> Volume:
        """Return the rows moved by one product."""
        return self._exchange.volume()

    @collective
    def apply(self, x: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``A x`` (rows, width) for `x` (columns, width), in its dtype, C-contiguous.

        The dtype is float32, float64, or bfloat16 as uint16, which is summed in float32 and rounded
        at the end; sums of int32 are float64. `meanwhile` is called while rows travel, if they are
        in main memory.
        """
        return self._run(x, self._forward, x.shape[-1], meanwhile)

    @collective
    def apply_transpose(self, gradient: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``Aᵀ g`` (columns, width) for `gradient` (rows, width), as `apply` does.

        A symmetric matrix is its own transpose, so none is kept in memory; see `DistCSR`.
        """
        walk = self._forward if self.is_symmetric else self._turned or self._reverse
        return self._run(gradient, walk, gradient.shape[-1], meanwhile)

    @collective
    def apply_chosen(self, x: Array, num_relations: int) -> Array:
        """Return the product in which each entry reads the columns of its relation.

        See `ChoosingOperator`.
        """
        return self._run(x, self._forward, x.shape[-1] // num_relations, None)

    @collective
    def apply_chosen_transpose(self, gradient: Array, num_relations: int) -> Array:
        """Return the adjoint of `apply_chosen`; see `ChoosingOperator`."""
        return self._run(gradient, self._reverse, gradient.shape[-1] * num_relations, None)

    @cached_property
    def _forward(self) -> _Walk:
        return _Walk("forward", self._diagonal, self.shape, self._fetched, self._pushed)

    @cached_property
    def _turned(self) -> _Walk | None:
        """The adjoint's walk that shares the matrix's memory; None if it needs a transpose."""
        if self._turned_factors is None:
            return None
        own, of_ghosts = self._turned_factors
        diagonal = None if self._diagonal is None else turned(self._diagonal, own)
        return replace(
            self._forward,
            diagonal=diagonal,
            fetched=None if self._fetched is None else self._fetched.turned(of_ghosts),
        )

    @cached_property
    def _reverse(self) -> _Walk:
        """The adjoint's walk with transposes, which the first use builds."""
        diagonal = None if self._diagonal is None else self._diagonal.transposed
        return _Walk("reverse", diagonal, self.shape[::-1], self._pushed, self._fetched)

    def _multiply_own(self, walk: _Walk, x: Array, out: Array) -> None:
        # Own columns write every row and all others add: nothing has to clear `out` first.
        with self.trace.span(f"interior.{walk.direction}"):
            if walk.diagonal is not None:
                walk.diagonal.matmul(x, out, half=ROWS if x.dtype == np.uint16 else None)
            else:
                out[:] = 0

    def _run(self, x: Array, walk: _Walk, width: int, meanwhile: Meanwhile | None) -> Array:
        shape, fetched, pushed = walk.shape, walk.fetched, walk.pushed
        if self.grid.num_blocks == 1:
            # All rows are local: skip the remote parts.
            fetched = pushed = None
        if x.ndim != 2 or len(x) != shape[1]:
            raise ValueError(f"expected ({shape[1]}, width) rows, not {x.shape}")
        trace = self.trace
        self.grid.run_position.next_product()
        alone = self.grid.num_blocks == self.grid.replication == 1
        narrow = x.dtype == np.uint16
        dtype = np.dtype(np.float64) if x.dtype == np.int32 else x.dtype
        # A result that several products add to is rounded after the last.
        rounded_later = narrow and not alone
        sums = np.dtype(np.float32) if rounded_later else dtype
        out = self.memory.empty((shape[0], width), sums)
        if alone:
            self._multiply_own(walk, x, out)
            return out
        with self._exchange.joining(x, adjoint=walk.direction == "reverse"):
            fetch = fetched.start_fetch(x) if fetched is not None else None
            push = pushed.start_push(x, out, trace) if pushed is not None else None
        self._multiply_own(walk, x, out)
        # On a device this would gain nothing, as its work is asynchronous anyway. In lean runs,
        # results of `meanwhile` must not take memory beside the sums.
        if meanwhile is not None and self.memory is MAIN and not self._lean:
            meanwhile()
        if fetched is not None and fetch is not None:
            fetched.finish_fetch(fetch, out, trace)
        # Free the fetched ghosts: a sequential push allocates its buffers in `finish`.
        del fetch
        if push is not None:
            push.finish()
        forward = walk.direction == "forward"
        replicas = self._exchange.sum_rows if forward else self._exchange.sum_columns
        replicas.add(out)
        if not rounded_later:
            return out
        rounded = self.memory.empty(out.shape, x.dtype)
        self.memory.kernels.gather_rows(out, None, rounded, half=ROWS)
        return rounded
