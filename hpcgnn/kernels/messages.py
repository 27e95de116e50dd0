"""What networks on edges do between dense products, each in one pass over a block of rows.

A block has few enough rows for its arrays to stay in a cache. With n maps of width w an edge costs
2 n w² operations forward, 4 n w² backward, and 2 n w² to compute it again. The passes touch about
7 n w numbers in the cache; from memory come and to memory go an edge's state and its gradient only.
"""

from typing import NamedTuple

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, execution
from hpcgnn.typing import Array, FloatArray, LocalIndices


class EdgeEnds(NamedTuple):
    """Rows of the ends of edges, or gradients of these.

    `targets` and `sources` are ``(any, w)``; None: they have no part in it. `target_ids` and
    `source_ids` ``(m,)`` int32 are the row of each edge's end; None where there are no rows.
    """

    targets: Array | None = None
    target_ids: LocalIndices | None = None
    sources: Array | None = None
    source_ids: LocalIndices | None = None


class RowNorm(NamedTuple):
    """``scale (y - mean y) / √(var y + eps) + shift`` of each row y (Ba, Kiros and Hinton, 2016).

    y is the row plus `bias`; without `scale` and `shift` it is the result. All are ``(w,)``,
    float64 where the rows are, else float32.
    """

    bias: FloatArray | None = None
    scale: FloatArray | None = None
    shift: FloatArray | None = None
    eps: float = 0.0


class NormSums(NamedTuple):
    """Gradients of columns, ``(w,)`` each, which are added to; None: not wanted."""

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
        ``(m, w)`` float32, float64, or bfloat16 as uint16; the rows of the ends are of its dtype.
    out
        The shape and dtype of `rows`, which it may be.
    bias
        ``(w,)`` float64 where `rows` are, else float32.
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
    """Write the gradient of the rows of `combine_rows`, and add it to those of the others.

    Sums are the same for any number of threads; those of an end are in the order of the edges.

    Parameters
    ----------
    gradient
        ``(m, w)``, of the result.
    out
        The shape and dtype of `gradient`, which it may be.
    activated
        The activation, and what `combine_rows` wrote with it; None: there was no activation.
    of_ends
        Gradients of the ends' rows, float64 where `gradient` is, else float32.
    of_bias
        ``(w,)``, of the same dtype.
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

    `rows` are ``(m, w)`` float32, float64, or bfloat16 as uint16. `out` and the `residual`, None
    for nothing, have their shape and dtype; `out` may be one of them.
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
    """Write the gradient of the rows of `norm_rows`, and add those of the columns to `sums`.

    That of the residual is `gradient` itself. Sums are the same for any number of threads. `rows`
    and `norm` are as `norm_rows` had them, the `gradient` of the result is ``(m, w)``. `out` has
    the shape and dtype of `rows`; it may be `rows` or `gradient`.
    """
    _kernels.norm_rows_gradient(rows, *norm, gradient, out, *sums, *execution(**run))
