"""The state of a softmax over edges, and how states and narrow columns travel.

A state is merged with others exactly and in any order, so stages, other ranks' partial results and
replicas all join in the same way (the running maximum of the SAR paper, section 3.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.kernels import SoftmaxState
from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.sparse.local import MAIN, Memory
from hpcgnn.spmd import collective
from hpcgnn.spmm.exchange.stages import Combine
from hpcgnn.spmm.replicas import ReplicaSum
from hpcgnn.typing import Array, FloatArray, LocalIndices


@dataclass(frozen=True, eq=False)
class AttentionState(SoftmaxState):
    """A softmax state of R rows and H heads of width D, in a memory."""

    memory: Memory = MAIN

    @classmethod
    def empty(
        cls, num_rows: int, heads: int, width: int, dtype: DTypeLike, memory: Memory = MAIN
    ) -> "AttentionState":
        """Return the state of no edges for values of `width` = H * D columns."""
        arrays = memory.arrays
        # -inf marks a row that no edge has reached; it makes `out` unread, so nothing has to clear
        # it.
        top = arrays.full((num_rows, heads), -np.inf, dtype)
        total = arrays.zeros(top.shape, dtype)
        return cls(top, total, arrays.empty((num_rows, width), dtype), memory)

    def merge_finished(self, rows: LocalIndices, out: FloatArray, lse: FloatArray) -> None:
        """Merge finished states of some rows: their results and log-sum-exps."""
        # A finished state is one of a single edge: its result is the value, its lse the logit.
        total = (lse > -np.inf).astype(lse.dtype)
        self.memory.kernels.attention_merge(rows, SoftmaxState(lse, total, out), self)

    @collective
    def merge_replicas(self, replicas: ReplicaSum) -> None:
        """Merge the states of all replicas of this block row."""
        heads, width = self.top.shape[1], self.out.shape[1]

        def merge(rows: LocalIndices, arrived: Array) -> None:
            self.merge_finished(rows, *unpack(arrived, [width], [heads], None))

        self._finish_to_merge()
        replicas.bring(pack([self.out], [self.top], None, self.memory), Combine(merge, adds=False))
        self._finish_to_merge()
        packed = pack([self.out], [self.top], None, self.memory)
        replicas.spread(packed)
        self.out[:], self.top[:] = unpack(packed, [width], [heads], None)
        self.total[:] = self.top > -np.inf

    def _finish_to_merge(self) -> None:
        self.finish()
        # A finished state is one of a single edge, see `merge_finished`.
        self.total[:] = self.top > -np.inf

    def finish(self, into: FloatArray | None = None, bias: FloatArray | None = None) -> None:
        """Turn `top` into the log-sum-exp, and write the result plus a bias (H * D,).

        It goes `into` (R, H * D), perhaps columns of a wider array; None: `out` itself.
        """
        self.memory.kernels.attention_finish(self, into=into, bias=bias)


def pack(
    wide: Sequence[FloatArray],
    narrow: Sequence[FloatArray],
    half: WireFormat | None,
    memory: Memory = MAIN,
) -> FloatArray:
    """Return arrays side by side, for one exchange whose wire rounds to `half`.

    `wide` ones (rows, any width) are rounded as the wire rounds. `narrow` ones (rows, few), such as
    logits, must not be rounded to 16 bits: there they travel as a rounded part and the rest.
    """
    arrays = memory.arrays
    parts = list(narrow)
    if half is not None and narrow[0].dtype == np.float32:
        parts = []
        for part in narrow:
            # Two 16-bit floats have about twice the digits of one. A steep softmax needs them:
            # its result depends on small differences of logits.
            rounded = widen(to_wire(part, half, memory), half)
            # A log-sum-exp of -inf, of a row without edges, must arrive as -inf, which -inf plus a
            # rest of 0 is.
            finite = arrays.isfinite(rounded)
            rest = arrays.where(finite, part, 0) - arrays.where(finite, rounded, 0)
            parts += [rounded, rest]
    return arrays.concatenate([*wide, *parts], axis=1)


def unpack(
    rows: Array, wide: Sequence[int], narrow: Sequence[int], half: WireFormat | None
) -> list[FloatArray]:
    """Return the arrays of `pack`, C-contiguous, from rows in the dtype of the wire."""
    arrays, start = [], 0
    for width in wide:
        arrays.append(widen(rows[:, start : start + width], half))
        start += width
    for width in narrow:
        value = widen(rows[:, start : start + width], half)
        start += width
        if rows.dtype == np.uint16:
            value += widen(rows[:, start : start + width], half)
            start += width
        arrays.append(value)
    return arrays


def packed_width(wide: int, narrow: int, half: WireFormat | None, dtype: DTypeLike) -> int:
    """Return the columns of `pack` for `wide` and `narrow` columns of a dtype."""
    return wide + narrow * (1 if half is None or np.dtype(dtype) != np.float32 else 2)


def widen(rows: Array, half: WireFormat | None) -> FloatArray:
    """Return rows from the wire as a new C-contiguous array of float32, or float64 if they are."""
    if rows.dtype != np.uint16:
        return rows.copy(order="C")
    if half == "float16":
        return rows.view(np.float16).astype(np.float32, order="C")
    # A bfloat16 is the upper half of a float32.
    return (rows.astype(np.uint32, order="C") << 16).view(np.float32)


def to_wire(rows: FloatArray, half: WireFormat, memory: Memory = MAIN) -> Array:
    """Return float32 rows rounded to 16 bits."""
    arrays = memory.arrays
    rounded: Array = arrays.empty(rows.shape, np.uint16)
    memory.kernels.gather_rows(arrays.ascontiguousarray(rows), None, rounded, half=half)
    return rounded
