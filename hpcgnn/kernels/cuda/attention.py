"""Attention with logits of two terms (GAT) on the GPU, without tensors of edges."""

from hpcgnn.kernels.arguments import Half
from hpcgnn.kernels.cuda.attention_fields import (
    DeviceEdgeDropout,
    DeviceWeightDropout,
    block_fields,
    check_heads,
    check_pattern,
    check_state,
    element_of,
    tile_shape,
)
from hpcgnn.kernels.cuda.attention_state import head_dots, merge_states
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy, pointer
from hpcgnn.kernels.cuda.groups import ATTENTION_GROUP_SIZE, DeviceGroups
from hpcgnn.kernels.cuda.launch import Fields, launch, short_name

__all__ = ["attention_backward", "attention_forward", "attention_scores"]

# Rows of z that a thread sums for the gradient of the weights before it adds them atomically.
_CHUNK_ROWS = 64


def attention_scores(
    z: DeviceArray, weights: DeviceArray, source: DeviceArray, *, half: Half | None = None
) -> None:
    """Write ``source[j, h] = <z[j, h, :], weights[h, :]>``.

    Arguments and meaning are those of `hpcgnn.kernels.attention_scores`, with CuPy arrays. Runs on
    CuPy's current stream.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match.
    """
    element = element_of(z, half)
    heads, width = weights.shape
    check_heads(z, (heads, width), weights=weights)
    check_heads(z, (z.shape[0], heads), source=source)
    _check_width(z, heads, width)
    head_dots(z, weights, None, source, element, by_row=False)


def attention_forward(
    indptr: DeviceArray,
    indices: DeviceArray,
    z: DeviceArray,
    source: DeviceArray,
    target: DeviceArray,
    top: DeviceArray,
    total: DeviceArray,
    out: DeviceArray,
    *,
    slope: float,
    rows: DeviceArray | None = None,
    dropout: DeviceWeightDropout | None = None,
    edge_dropout: DeviceEdgeDropout | None = None,
    half: Half | None = None,
    groups: DeviceGroups | None = None,
) -> None:
    """Add the edges of a block to the softmax state of its rows.

    Arguments and meaning are those of `hpcgnn.kernels.attention_forward`, with CuPy arrays, and so
    are the masks of both kinds of dropout, bit for bit. Indices and `rows` are not checked. Runs on
    CuPy's current stream; the result is the same every time.

    Parameters
    ----------
    groups
        Of `indptr`; None makes them anew, which waits for a copy of `indptr`.

    Raises
    ------
    GpuUnavailableError
        CuPy is not installed.
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match, words or probabilities out of range.
    """
    element = element_of(z, half)
    check_pattern(indptr, indices, z, rows)
    num_targets, heads, width = check_state(out, top, total)
    check_heads(z, (z.shape[0], heads), source=source)
    check_heads(z, (num_targets, heads), target=target, top=top)
    _check_width(z, heads, width)
    groups = DeviceGroups.of(indptr, ATTENTION_GROUP_SIZE) if groups is None else groups
    cupy, count = load_cupy(), groups.host.num_pieces
    pieces = [cupy.empty((count, columns), out.dtype) for columns in (heads, heads, heads * width)]
    vector, vectors, lanes = tile_shape(element, width, z, out, pieces[2])
    block = block_fields(
        indptr, indices, z, source, target, rows, dropout, edge_dropout, slope, groups, lanes, heads
    )
    fields: Fields = {
        "block": block,
        "state": {"top": pointer(top), "total": pointer(total), "out": pointer(out)},
        "pieces": dict(zip(("top", "total", "out"), map(pointer, pieces), strict=True)),
    }
    kernel = f"attention_forward_{short_name(element)}_v{vector}_k{vectors}"
    launch("attention_forward", kernel, fields, items=groups.host.row.size * heads, lanes=lanes)
    other = (pieces[0], pieces[1], pieces[2])
    places = groups.split_starts, groups.split_rows
    merge_states((top, total, out), other, rows, groups.host.split_rows.size, places)


def attention_backward(
    indptr: DeviceArray,
    indices: DeviceArray,
    z: DeviceArray,
    source: DeviceArray,
    target: DeviceArray,
    lse: DeviceArray,
    grad: DeviceArray,
    delta: DeviceArray,
    dz: DeviceArray,
    dsource: DeviceArray,
    dtarget: DeviceArray,
    *,
    slope: float,
    rows: DeviceArray | None = None,
    weights: DeviceArray | None = None,
    dweights: DeviceArray | None = None,
    dropout: DeviceWeightDropout | None = None,
    edge_dropout: DeviceEdgeDropout | None = None,
    half: Half | None = None,
    groups: DeviceGroups | None = None,
) -> None:
    """Add the gradients of z, source and target that flow through the edges of a block.

    Arguments and meaning are those of `hpcgnn.kernels.attention_backward`, with CuPy arrays: the
    pattern is the transpose, whose indices are not checked here. Gradients of target, and of
    columns of more than one group, are summed in any order. Runs on CuPy's current stream.

    Parameters
    ----------
    groups
        Of `indptr`; None makes them anew, which waits for a copy of `indptr`.

    Raises
    ------
    GpuUnavailableError
        CuPy is not installed.
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match, words or probabilities out of range, weights without dweights.
    """
    element = element_of(z, half)
    check_pattern(indptr, indices, z, rows)
    num_targets, heads = target.shape
    num_columns, width = z.shape[0], z.shape[1] // heads if heads > 0 else 0
    _check_width(z, heads, width)
    if indptr.size != num_columns + 1:
        raise ValueError(f"the transpose has {indptr.size - 1} rows, and z {num_columns}")
    check_heads(z, (num_targets, heads), target=target, lse=lse, delta=delta, dtarget=dtarget)
    check_heads(z, (num_targets, heads * width), grad=grad)
    check_heads(z, (num_columns, heads), source=source, dsource=dsource)
    check_heads(z, (num_columns, heads * width), dz=dz)
    if (weights is None) != (dweights is None):
        raise ValueError("weights and dweights go together")
    groups = DeviceGroups.of(indptr, ATTENTION_GROUP_SIZE) if groups is None else groups
    gain = dsource if weights is None else load_cupy().zeros(dsource.shape, dsource.dtype)
    vector, vectors, lanes = tile_shape(element, width, z, grad, dz, weights)
    block = block_fields(
        indptr, indices, z, source, target, rows, dropout, edge_dropout, slope, groups, lanes, heads
    )
    fields: Fields = {
        "block": block,
        "lse": pointer(lse),
        "grad": pointer(grad),
        "delta": pointer(delta),
        "weights": pointer(weights),
        "dz": pointer(dz),
        "dsource": pointer(gain),
        "dtarget": pointer(dtarget),
    }
    kernel = f"attention_backward_{short_name(element)}_v{vector}_k{vectors}"
    launch("attention_backward", kernel, fields, items=groups.host.row.size * heads, lanes=lanes)
    if weights is not None:
        check_heads(z, (heads, width), weights=weights, dweights=dweights)
        dsource += gain
        _add_weight_gradient(z, gain, dweights, element)


def _add_weight_gradient(
    z: DeviceArray, gain: DeviceArray, dweights: DeviceArray, element: str
) -> None:
    """Add ``gain[j, h] * z[j, h, :]`` of all rows to `dweights`."""
    heads, width = dweights.shape
    fields: Fields = {
        "z": pointer(z),
        "gain": pointer(gain),
        "dweights": pointer(dweights),
        "num_rows": z.shape[0],
        "num_heads": heads,
        "head_width": width,
        "chunk": _CHUNK_ROWS,
    }
    items = -(-z.shape[0] // _CHUNK_ROWS) * heads * width
    kernel = f"weight_gradient_{short_name(element)}"
    launch("attention_state", kernel, fields, items=items, lanes=1)


def _check_width(z: DeviceArray, heads: int, width: int) -> None:
    if z.shape[1] != heads * width:
        raise ValueError(f"z has {z.shape[1]} columns, not {heads} heads of {width}")
