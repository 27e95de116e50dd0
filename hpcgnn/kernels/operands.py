"""What kernels of both faces are handed whole: matrices, patterns, scores, states and draws.

Arrays are C-contiguous and never copied: of NumPy for `hpcgnn.kernels`, of CuPy for
`hpcgnn.kernels.cuda`. Throughout, k columns have values, the state has R rows, H heads have D
columns each, and numbers are float64 where values are, else float32.
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
        The columns in place of indices, which are None then; `spmm` of the CPU reads them.
    values
        (nnz,) float64 beside float64 operands, else float32; None: all ones.
    rows
        (m,) int32 row of the whole matrix that each stored row is, without repeats; None: row i.
    row_factors, column_factors
        Of the whole matrix's rows and columns, in the dtype of values: every entry is multiplied
        with that of its row and that of its column, which has no values then; None: ones.
        `spmm` of the CPU reads them.
    mean
        Count each non-zero of a row with 1 / the row's number of non-zeros.
    groups
        On a GPU, the `DeviceGroups` of `indptr`; None makes them anew, which waits for a copy.
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
    """The edges of some rows, or of columns where a transpose is asked for; see `SparseMatrix`.

    `rows` (m,) int32 are rows of the state of each row of the block, without repeats; None: row i.
    With `whole_lines` each line is walked by one thread, in its order, so that its bits depend on
    nothing else; long lines then keep other threads waiting.
    """

    indptr: Offsets
    indices: LocalIndices
    rows: LocalIndices | None = None
    groups: Any = None
    whole_lines: bool = False


@dataclass(frozen=True)
class EdgeDraw:
    """Which edges one training step of an attention leaves out: functions of original ids.

    `weight_word` and `weight_p` are key and probability of dropping a weight of an edge and head
    after the softmax; the others grow by ``1 / (1 - p)``, and dropped ones still count in the
    total. `edge_word` and `edge_p` are those of dropping an edge, with all its heads, before the
    softmax.
    """

    weight_word: int
    weight_p: float
    edge_word: int
    edge_p: float

    def of_heads(self, first: int) -> "EdgeDraw":
        """Return the draw of the heads from `first` on, counted from 0 again."""
        return replace(self, weight_word=(self.weight_word + first * _HEAD_STEP) % 2**64)


@dataclass(frozen=True, eq=False)
class Draw:
    """An `EdgeDraw` for the nodes of a block: the same at any number of ranks, blocks and threads.

    `row_ids` and `column_ids` are int64 original ids of the rows of the block and of its columns.
    The shared kernels draw for so many `heads_per_word` as `EdgeDraw.of_heads` has it; 0: all from
    one word, as the other kernels do.
    """

    edges: EdgeDraw
    row_ids: GlobalIndices
    column_ids: GlobalIndices
    heads_per_word: int = 0

    def of_stored(self, rows: LocalIndices | None) -> "Draw":
        """Return the draw of a block that stores these rows, given that of all rows."""
        return self if rows is None else replace(self, row_ids=self.row_ids[rows])


@dataclass(frozen=True, eq=False, kw_only=True)
class Score:
    """How the logit e of an edge (i, j) and head h comes about, with the leaky rectifier L.

    `values` z are (k, H * D), a head after the other: float32, float64, or 16-bit floats as uint16,
    which are of `half`; the shared kernels take (k, F), which all heads read. `target` is the share
    of each row of the state, `slope` that of the rectifier for negative arguments.
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
        (H, D) where source is ``attention_scores(values, weights)``: the gradient of source then
        goes on into those of values and weights. None: source is an operand of its own.
    edges
        (nnz, H) in the order of the block that is handed over, a transpose in the backward pass;
        None: edges have no scores of their own.
    """

    kind = "additive"
    source: FloatArray
    weights: FloatArray | None = None
    edges: FloatArray | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class DynamicScore(Score):
    """``e = <vector[h, :], L(target[i, h, :] + values[j, h, :])>`` (GATv2).

    `target` is (R, H * D), `vector` (H, D). Where it is `keyed`, each head of `values`, (k, H * 2
    D), has D columns that the score reads, the key, and then D that are summed.
    """

    kind = "dynamic"
    vector: FloatArray
    keyed: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class ProductScore(Score):
    """``e = <target[i, h, :], key[j, h, :]>`` (transformers); `target` is (R, H * D).

    Of each head of `values`, (k, H * 2 D), the first D columns are the key and the others the
    value, so that the state has H * D columns.
    """

    kind = "product"
    heads: int
    slope: float = 1.0


@dataclass(frozen=True, eq=False)
class SoftmaxState:
    """What the edges seen so far add up to; states of any two sets of edges merge exactly.

    `top` (R, H) is the largest logit; -inf where there was no edge, and `out` is then undefined.
    `total` (R, H) is the sum of exp(logit - top), `out` (R, H * D) that of exp(logit - top) times
    the value.
    """

    top: FloatArray
    total: FloatArray
    out: FloatArray


@dataclass(frozen=True, eq=False)
class SoftmaxGradient:
    """What the backward pass knows of each row.

    `lse` (R, H) is what `attention_finish` left in `top`, `grad` (R, H * D) the gradient of the
    finished `out`, `delta` (R, H) their product <grad, out> by `attention_delta`.
    """

    lse: FloatArray
    grad: FloatArray
    delta: FloatArray


@dataclass(frozen=True, eq=False)
class Rounding:
    """How what edges add to values is rounded, so that its sums have no order.

    A number times `scale`, (F,) float64 powers of two, becomes so many `digits`, each the
    integer next to what those before it leave times ``2^bits``.
    """

    scale: FloatArray
    digits: int
    bits: int


@dataclass(frozen=True, eq=False)
class Gradients:
    """Where a backward pass adds up.

    Parameters
    ----------
    values, targets
        Of the shapes of a score's values and target; values may be None where they are not wanted,
        for the shared kernels and additive scores without weights.
    weights
        (H, D) of the weights or the vector; of the vector (m, H * D), a row for each row of a block
        with `whole_lines`.
    source
        (k, H) of the source; the shared kernels take (slices, k, H), to be summed over the slices,
        which as many threads work on at most.
    edges
        (nnz, H) of the scores of edges, overwritten; None where a score has none.
    rounding
        Of a block with `whole_lines`, walked over its columns, on the CPU: values are then float64,
        (k, digits * F) for values of F columns, and of additive scores sources behind these.
    """

    values: FloatArray | None
    targets: FloatArray
    weights: FloatArray | None = None
    source: FloatArray | None = None
    edges: FloatArray | None = None
    rounding: Rounding | None = None


@dataclass(frozen=True, eq=False)
class SharedMeans:
    """The result of heads that attend to the rows of one matrix (k, F), before it is projected.

    `mean` is (m, H, P), P at least F: up to column F the softmax-weighted means, zeros without
    edges; `lse` (m, H) the log of the sum of the exponentiated logits, or -inf; `grad` that of
    `mean`, which the backward pass begins with.
    """

    mean: FloatArray
    lse: FloatArray
    grad: FloatArray | None = None
