"""Attention whose logits see both rows of an edge (GATv2), on the GPU, without tensors of edges."""

from typing import Any

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
from hpcgnn.kernels.cuda.attention_state import merge_states
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy, pointer
from hpcgnn.kernels.cuda.groups import ATTENTION_GROUP_SIZE, DeviceGroups
from hpcgnn.kernels.cuda.launch import Fields, launch, short_name

__all__ = ["attention_v2_backward_columns", "attention_v2_backward_rows", "attention_v2_forward"]

# A thread holds columns of up to six rows.
_WIDEST = 4
# Tiles that share the edges of a head in the walk by rows, at least where there are as many groups:
# each adds to the same gradient of the vector once.
_TILES = 4096


def attention_v2_forward(
    indptr: DeviceArray,
    indices: DeviceArray,
    z: DeviceArray,
    target: DeviceArray,
    vector: DeviceArray,
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

    Arguments and meaning are those of `hpcgnn.kernels.attention_v2_forward`, with CuPy arrays, and
    so are the masks of both kinds of dropout, bit for bit. Indices and `rows` are not checked. Runs
    on CuPy's current stream; the result is the same every time.

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
    _check_operands(z, target, vector, (num_targets, heads, width))
    check_heads(z, (num_targets, heads), top=top)
    groups = DeviceGroups.of(indptr, ATTENTION_GROUP_SIZE) if groups is None else groups
    cupy, count = load_cupy(), groups.host.num_pieces
    pieces = [cupy.empty((count, columns), out.dtype) for columns in (heads, heads, heads * width)]
    vector_length, vectors, lanes = tile_shape(
        element, width, z, out, pieces[2], target, vector, widest=_WIDEST
    )
    block = block_fields(
        indptr, indices, z, vector, target, rows, dropout, edge_dropout, slope, groups, lanes, heads
    )
    fields: Fields = {
        "block": block,
        "state": {"top": pointer(top), "total": pointer(total), "out": pointer(out)},
        "pieces": dict(zip(("top", "total", "out"), map(pointer, pieces), strict=True)),
    }
    kernel = f"attention_v2_forward_{short_name(element)}_v{vector_length}_k{vectors}"
    items = groups.host.row.size * heads
    launch("attention_v2_forward", kernel, fields, items=items, lanes=lanes)
    other = (pieces[0], pieces[1], pieces[2])
    places = groups.split_starts, groups.split_rows
    merge_states((top, total, out), other, rows, groups.host.split_rows.size, places)


def attention_v2_backward_rows(
    indptr: DeviceArray,
    indices: DeviceArray,
    z: DeviceArray,
    target: DeviceArray,
    vector: DeviceArray,
    lse: DeviceArray,
    grad: DeviceArray,
    delta: DeviceArray,
    dtarget: DeviceArray,
    dvector: DeviceArray,
    **options: Any,
) -> None:
    """Add the gradients of target and vector that flow through the edges of a block.

    Arguments and meaning are those of `hpcgnn.kernels.attention_v2_backward_rows`, with CuPy
    arrays; `options` and errors are those of `attention_v2_forward`. Rows of more than one group,
    and the vector, are summed in any order.
    """
    check_heads(z, target.shape, dtarget=dtarget)
    check_heads(z, vector.shape, dvector=dvector)
    pattern, operands = (indptr, indices), (z, target, vector, lse, grad, delta)
    _launch_backward("rows", pattern, operands, (dtarget, dvector), **options)


def attention_v2_backward_columns(
    indptr: DeviceArray,
    indices: DeviceArray,
    z: DeviceArray,
    target: DeviceArray,
    vector: DeviceArray,
    lse: DeviceArray,
    grad: DeviceArray,
    delta: DeviceArray,
    dz: DeviceArray,
    **options: Any,
) -> None:
    """Add the gradient of z that flows through the edges of a block.

    Arguments and meaning are those of `hpcgnn.kernels.attention_v2_backward_columns`, with CuPy
    arrays; `options` and errors are those of `attention_v2_forward`. Columns of more than one group
    are summed in any order.
    """
    check_heads(z, z.shape, dz=dz)
    if indptr.size != z.shape[0] + 1:
        raise ValueError(f"the transpose has {indptr.size - 1} rows, and z {z.shape[0]}")
    pattern, operands = (indptr, indices), (z, target, vector, lse, grad, delta)
    _launch_backward("columns", pattern, operands, (dz, None), **options)


def _launch_backward(
    walk: str,
    pattern: tuple[DeviceArray, DeviceArray],
    operands: tuple[DeviceArray, ...],
    gradients: tuple[DeviceArray, DeviceArray | None],
    *,
    slope: float,
    rows: DeviceArray | None = None,
    dropout: DeviceWeightDropout | None = None,
    edge_dropout: DeviceEdgeDropout | None = None,
    half: Half | None = None,
    groups: DeviceGroups | None = None,
) -> None:
    """Run one walk of the backward pass, by rows or by columns."""
    z, target, vector, lse, grad, delta = operands
    element = element_of(z, half)
    check_pattern(*pattern, z, rows)
    heads, width = vector.shape
    _check_operands(z, target, vector, (target.shape[0], heads, width))
    check_heads(z, target.shape, grad=grad)
    check_heads(z, (target.shape[0], heads), lse=lse, delta=delta)
    groups = DeviceGroups.of(pattern[0], ATTENTION_GROUP_SIZE) if groups is None else groups
    length, vectors, lanes = tile_shape(
        element, width, z, target, vector, grad, *gradients, widest=_WIDEST
    )
    num_groups = groups.host.row.size
    chunk = max(1, num_groups // _TILES) if walk == "rows" else 1
    block = block_fields(
        *pattern, z, vector, target, rows, dropout, edge_dropout, slope, groups, lanes, heads
    )
    fields: Fields = {
        "block": block,
        "lse": pointer(lse),
        "grad": pointer(grad),
        "delta": pointer(delta),
        "gradient": pointer(gradients[0]),
        "dvector": pointer(gradients[1]),
        "chunk": chunk,
    }
    kernel = f"attention_v2_{walk}_{short_name(element)}_v{length}_k{vectors}"
    items = -(-num_groups // chunk) * heads
    launch("attention_v2_backward", kernel, fields, items=items, lanes=lanes)


def _check_operands(
    z: DeviceArray, target: DeviceArray, vector: DeviceArray, shape: tuple[int, int, int]
) -> None:
    num_targets, heads, width = shape
    check_heads(z, (num_targets, heads * width), target=target)
    check_heads(z, (heads, width), vector=vector)
    if z.shape[1] != heads * width:
        raise ValueError(f"z has {z.shape[1]} columns, not {heads} heads of {width}")
