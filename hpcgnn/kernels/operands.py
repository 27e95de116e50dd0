"""Operands of the CPU and GPU kernels: sparse matrices, attention blocks, scores and states.

Arrays are C-contiguous and never copied: NumPy arrays for `hpcgnn.kernels`, CuPy arrays for
`hpcgnn.kernels.cuda`. Throughout, k is the number of columns of a block (rows of values), R the
rows of the state, H the heads with D columns each; numbers are float64 if values are, else float32.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hpcgnn.kernels._kernels import CodedColumns
from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets

_HEAD_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A CSR matrix of m stored rows, as products take it.

    Parameters
    ----------
    indptr, indices
        (m + 1,) int64, (nnz,) int32 columns; not checked everywhere, see `validate_csr`.
    coded
        Compressed columns instead of `indices`, which must then be None; only for the CPU's `spmm`.
    values
        (nnz,) float64 beside float64 operands, else float32; None: all ones.
    rows
        (m,) int32 row of the whole matrix that each stored row is, without repeats; None: row i.
    row_factors, column_factors
        Factors for the rows and columns of the whole matrix, in the dtype of values: every entry is
        the product of the two. They replace `values`; None: ones. Only for the CPU's `spmm`.
    mean
        Divide each row by its number of non-zeros.
    groups
        On a GPU, the `DeviceGroups` of `indptr`; None rebuilds them, and waits for a copy.
    """

    indptr: Offsets
    indices: LocalIndices | None
    values: FloatArray | None = None
    rows: LocalIndices | None = None
    mean: bool = False
    groups: Any = None
    row_factors: FloatArray | None = None
    column_factors: FloatArray | None = None
    coded: CodedColumns | None = None


@dataclass(frozen=True, eq=False)
class Block:
    """The edges of some rows (columns in a transposed block) in CSR form; see `SparseMatrix`.

    `rows` (m,) int32 is the row of the state for each row of the block, without repeats; None: row
    i. With `whole_lines` one thread processes each row (or column) in order, so that the bits of
    its result depend on nothing else; other threads may then wait for long rows.
    """

    indptr: Offsets
    indices: LocalIndices
    rows: LocalIndices | None = None
    groups: Any = None
    whole_lines: bool = False


@dataclass(frozen=True)
class EdgeDraw:
    """The dropout of one training step of attention, as a function of original node ids.

    `weight_word` and `weight_p` are the key and probability of dropping the weight of an edge and
    head after the softmax: kept weights are scaled by ``1 / (1 - p)``, and dropped ones still count
    in the total. `edge_word` and `edge_p` are the key and probability of dropping an edge, with all
    its heads, before the softmax.
    """

    weight_word: int
    weight_p: float
    edge_word: int
    edge_p: float

    def of_heads(self, first: int) -> "EdgeDraw":
        """Return the draw of the heads from `first` on, renumbered from 0."""
        return replace(self, weight_word=(self.weight_word + first * _HEAD_STEP) % 2**64)


@dataclass(frozen=True, eq=False)
class Draw:
    """An `EdgeDraw` for the nodes of a block: the same for any number of ranks, blocks and threads.

    `row_ids` and `column_ids` are int64 original ids of the rows and columns of the block. The
    shared kernels use a new word, that of `EdgeDraw.of_heads`, after every `heads_per_word` heads;
    with 0 all heads use one word, as in the other kernels.
    """

    edges: EdgeDraw
    row_ids: GlobalIndices
    column_ids: GlobalIndices
    heads_per_word: int = 0

    def of_stored(self, rows: LocalIndices | None) -> "Draw":
        """Select the draw of the stored `rows` of a block from the draw of all its rows."""
        return self if rows is None else replace(self, row_ids=self.row_ids[rows])


@dataclass(frozen=True, eq=False, kw_only=True)
class Score:
    """Formula and operands of the logit e of an edge (i, j) and head h, with the leaky ReLU L.

    `values` z are (k, H * D), head by head: float32, float64, or 16-bit floats as uint16 in the
    format `half`; the shared kernels take (k, F) values, common to all heads. `target` is the term
    of each row of the state, `slope` the slope of L for negative arguments.
    """

    kind: ClassVar[str]
    values: Array
    target: FloatArray
    slope: float
    half: WireFormat | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class AdditiveScore(Score):
    """``e = L(target[i, h] + source[j, h] + edges[ij, h])`` (GAT), target (R, H) and source (k, H).

    Parameters
    ----------
    weights
        (H, D) if source is ``attention_scores(values, weights)``: the gradient of source then
        flows on to values and weights. None: source is an operand of its own.
    edges
        (nnz, H) in the order of the given block, which is transposed in the backward pass;
        None: edges have no scores of their own.
    """

    kind = "additive"
    source: FloatArray
    weights: FloatArray | None = None
    edges: FloatArray | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class DynamicScore(Score):
    """``e = <vector[h, :], L(target[i, h, :] + values[j, h, :])>`` (GATv2).

    `target` is (R, H * D), `vector` (H, D). If `keyed`, `values` are (k, H * 2 D): the first D
    columns of each head are the key, which the score reads, and the other D are summed.
    """

    kind = "dynamic"
    vector: FloatArray
    keyed: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class ProductScore(Score):
    """``e = <target[i, h, :], key[j, h, :]>`` (transformers); `target` is (R, H * D).

    `values` are (k, H * 2 D): the first D columns of each head are the key, the other D the value,
    so the state has H * D columns.
    """

    kind = "product"
    heads: int
    slope: float = 1.0


@dataclass(frozen=True, eq=False)
class SoftmaxState:
    """Online-softmax state of the edges seen so far; two states merge exactly.

    `top` (R, H) is the largest logit; -inf where there was no edge, and `out` is then undefined.
    `total` (R, H) is the sum of exp(logit - top), and `out` (R, H * D) the sum of exp(logit - top)
    times the value.
    """

    top: FloatArray
    total: FloatArray
    out: FloatArray


@dataclass(frozen=True, eq=False)
class SoftmaxGradient:
    """Inputs of the backward pass for each row.

    `lse` (R, H) is `top` after `attention_finish`, `grad` (R, H * D) the gradient of the finished
    `out`, and `delta` (R, H) the product <grad, out> written by `attention_delta`.
    """

    lse: FloatArray
    grad: FloatArray
    delta: FloatArray


@dataclass(frozen=True, eq=False)
class Rounding:
    """Rounding of the edges' contributions to gradients of values: sums become order-independent.

    A number times `scale` ((F,) float64 powers of two) is split into `digits` digits: each is
    ``2^bits`` times the remainder of those before it, rounded to an integer.
    """

    scale: FloatArray
    digits: int
    bits: int


@dataclass(frozen=True, eq=False)
class Gradients:
    """Accumulators of a backward pass.

    Parameters
    ----------
    values, targets
        Shaped like the score's values and target. For the shared kernels and for additive scores
        without weights, values may be None if they are not wanted.
    weights
        (H, D) for the weights or the vector; (m, H * D) for the vector of a block with
        `whole_lines`, one row per row of the block.
    source
        (k, H) for the source; (slices, k, H) for the shared kernels, which use at most one thread
        per slice: the caller sums over the slices.
    edges
        (nnz, H) for the scores of edges, overwritten; None if the score has none.
    rounding
        For the CPU's walk over the columns of a block with `whole_lines`. Values are then float64
        (k, digits * F) for F columns, followed by the columns of the source for additive scores.
    """

    values: FloatArray | None
    targets: FloatArray
    weights: FloatArray | None = None
    source: FloatArray | None = None
    edges: FloatArray | None = None
    rounding: Rounding | None = None


@dataclass(frozen=True, eq=False)
class SharedMeans:
    """The result, before projection, of heads that all attend to the rows of one matrix (k, F).

    `mean` is (m, H, P) with P >= F: the first F columns are the softmax-weighted means, or zeros
    for rows without edges. `lse` (m, H) is the log-sum-exp of the logits, or -inf. `grad` is the
    gradient of `mean`, an input of the backward pass.
    """

    mean: FloatArray
    lse: FloatArray
    grad: FloatArray | None = None
