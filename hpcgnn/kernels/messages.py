"""Operations of networks on edges between dense products, each in one pass over a block of rows.

A block has few enough rows for its arrays to stay in cache. With n maps of width w an edge costs
2 n w² operations forward, 4 n w² backward, and 2 n w² for recomputation. The passes touch about
7 n w numbers in cache; only an edge's state and its gradient travel from and to memory.
"""

from typing import NamedTuple

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, execution
from hpcgnn.typing import Array, FloatArray, LocalIndices


class EdgeEnds(NamedTuple):
    """Rows of the end nodes of edges, or the gradients of these rows.

    `targets` and `sources` are ``(any, w)``; None leaves that end out. `target_ids` and
    `source_ids` ``(m,)`` int32 give the row of each edge's end; None where that end is left out.
    """

    targets: Array | None = None
    target_ids: LocalIndices | None = None
    sources: Array | None = None
    source_ids: LocalIndices | None = None


class RowNorm(NamedTuple):
    """``scale (y - mean y) / √(var y + eps) + shift`` of each row y (Ba, Kiros and Hinton, 2016).

    y is the row plus `bias`. Without `scale` and `shift`, y itself is the result. All are ``(w,)``,
    float64 if the rows are, else float32.
    """

    bias: FloatArray | None = None
    scale: FloatArray | None = None
    shift: FloatArray | None = None
    eps: float = 0.0


class NormSums(NamedTuple):
    """Accumulators for the gradients of a `RowNorm`'s arrays, ``(w,)`` each; None: not wanted."""

    bias: FloatArray | None = None
    scale: FloatArray | None = None
    shift: FloatArray | None = None


_NO_ENDS, _NO_NORM, _NO_SUMS = EdgeEnds(), RowNorm(), NormSums()


def combine_rows(
    rows: Array,
    out: Array,
    *,
    ends: EdgeEnds = _NO_ENDS,
    bias: FloatArray | None = None,
    activation: str = "none",
    **run: Unpack[Run],
) -> None:
    """Write ``activate(rows[i] + targets[target_ids[i]] + sources[source_ids[i]] + bias)``.

    Parameters
    ----------
    rows
        ``(m, w)`` float32, float64, or bfloat16 as uint16; the rows of the ends have this dtype.
    out
        Has the shape and dtype of `rows`, and may be `rows`.
    bias
        ``(w,)``, float64 if `rows` are, else float32.
    activation
        ``none``, ``relu`` or ``elu``.
    """
    _kernels.combine_rows(rows, *ends, bias, activation, out, *execution(**run))


def combine_rows_gradient(
    gradient: Array,
    out: Array,
    *,
    activated: tuple[str, Array] | None = None,
    of_ends: EdgeEnds = _NO_ENDS,
    of_bias: FloatArray | None = None,
    **run: Unpack[Run],
) -> None:
    """Write the gradient of the rows of `combine_rows`; add it to those of ends and bias.

    Sums are the same for any number of threads; those of an end follow the order of the edges.

    Parameters
    ----------
    gradient
        ``(m, w)``, the gradient of the result.
    out
        Has the shape and dtype of `gradient`, and may be `gradient`.
    activated
        The activation, and what `combine_rows` wrote with it; None: there was no activation.
    of_ends
        Gradients of the ends' rows, float64 if `gradient` is, else float32.
    of_bias
        Gradient of the bias, ``(w,)``, of the same dtype as `of_ends`.
    """
    activation, result = activated or ("none", None)
    _kernels.combine_rows_gradient(
        gradient, result, activation, out, *of_ends, of_bias, *execution(**run)
    )


def norm_rows(
    rows: Array,
    out: Array,
    *,
    norm: RowNorm = _NO_NORM,
    residual: Array | None = None,
    **run: Unpack[Run],
) -> None:
    """Write ``residual + norm(rows)``.

    `rows` are ``(m, w)`` float32, float64, or bfloat16 as uint16. `out` and `residual` (None adds
    nothing) have their shape and dtype; `out` may be either of the inputs.
    """
    _kernels.norm_rows(rows, *norm, residual, out, *execution(**run))


def norm_rows_gradient(
    rows: Array,
    gradient: Array,
    out: Array,
    *,
    norm: RowNorm = _NO_NORM,
    sums: NormSums = _NO_SUMS,
    **run: Unpack[Run],
) -> None:
    """Write the gradient of the rows of `norm_rows`, and add those of its parameters to `sums`.

    The gradient of the residual is `gradient` itself. Sums are the same for any number of threads.
    `rows` and `norm` are those given to `norm_rows`; `gradient` ``(m, w)`` is the gradient of the
    result. `out` has the shape and dtype of `rows`; it may be `rows` or `gradient`.
    """
    _kernels.norm_rows_gradient(rows, *norm, gradient, out, *sums, *execution(**run))
