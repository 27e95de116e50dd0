"""Softmax attention over the edges of sparse blocks on the GPU, and the state of its softmax.

The functions are those of `hpcgnn.kernels.attention`, for operands that hold CuPy arrays; the masks
of both kinds of dropout agree bit for bit. Indices and rows are not checked. States are
reproducible; gradients to which several groups of edges contribute are summed in any order.
Everything runs on CuPy's current stream. All functions raise `GpuUnavailableError` without CuPy,
TypeError for a wrong dtype or an array that is not C-contiguous, and ValueError for mismatched
shapes, and key words or probabilities out of range.
"""

from numbers import Integral, Real
from typing import NamedTuple, TypeAlias, cast

import numpy as np

from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy, pointer, require_array, storage_of
from hpcgnn.kernels.cuda.epilogue import drop_threshold
from hpcgnn.kernels.cuda.groups import ATTENTION_GROUP_SIZE, DeviceGroups
from hpcgnn.kernels.cuda.launch import Fields, launch, short_name, tile_lanes, vector_width
from hpcgnn.kernels.operands import (
    AdditiveScore,
    Block,
    Draw,
    DynamicScore,
    EdgeDraw,
    Gradients,
    SoftmaxGradient,
    SoftmaxState,
)

DeviceScore: TypeAlias = AdditiveScore | DynamicScore

_VECTORS = {"float32": (4, 1), "float64": (2, 1), "bfloat16": (8, 1), "float16": (8, 1)}
# A tile computes at least this many logits at once, however narrow a head is.
_LEAST_LANES = 4
_WARP = 32
# Most elements of a vector. For dynamic scores a thread holds columns of up to six rows, so shorter
# vectors save registers.
_WIDEST = {"additive": 8, "dynamic": 4}
# Least number of tiles per head in the walk by rows, if there are as many groups: each tile adds
# to the same gradient of the vector once.
_TILES = 4096
# Rows of z that a thread sums for the gradient of the weights before one atomic addition.
_CHUNK_ROWS = 64
_NO_DRAW = EdgeDraw(0, 0.0, 0, 0.0)
# Vector widths for states, and for products of heads.
_STATE_VECTORS = {"float32": (4, 1), "float64": (2, 1)}
_DOT_VECTORS = _STATE_VECTORS | {"bfloat16": (4, 1), "float16": (4, 1)}


class _Shape(NamedTuple):
    """Sizes of a checked call; `element` is the type of the values."""

    element: str
    num_targets: int
    heads: int
    width: int


def attention_scores(
    values: DeviceArray,
    weights: DeviceArray,
    source: DeviceArray,
    *,
    half: WireFormat | None = None,
) -> None:
    """Write ``source[j, h] = <values[j, h, :], weights[h, :]>``."""
    element = _element_of(values, half)
    heads, width = weights.shape
    _check_heads(values, (heads, width), weights=weights)
    _check_heads(values, (values.shape[0], heads), source=source)
    _check_width(values, heads, width)
    _head_dots(values, weights, None, source, element)


def attention_forward(
    block: Block, score: DeviceScore, state: SoftmaxState, draw: Draw | None = None
) -> None:
    """Add the edges of a block to the softmax state of its rows."""
    element = _element_of(score.values, score.half)
    _check_pattern(block, score)
    num_targets, heads, width = _check_state(state)
    shape = _Shape(element, num_targets, heads, width)
    _check_score(score, shape)
    _check_heads(score.values, (num_targets, heads), top=state.top)
    groups = _groups_of(block)
    cupy, count, dtype = load_cupy(), groups.host.num_pieces, state.out.dtype
    # In rows split into several groups each group makes its own state; they are merged in order.
    pieces = SoftmaxState(
        *(cupy.empty((count, columns), dtype) for columns in (heads, heads, heads * width))
    )
    vectors = () if isinstance(score, AdditiveScore) else (score.target, score.vector)
    tile = _tile(score, shape, state.out, pieces.out, *vectors)
    fields: Fields = {
        "block": _block_fields(block, score, shape, draw, groups, tile),
        "state": _state_fields(state),
        "pieces": _state_fields(pieces),
    }
    _launch(score, "forward", fields, shape, tile, groups.host.row.size)
    split = groups.split_starts, groups.split_rows
    _merge_states(state, pieces, block.rows, groups.host.split_rows.size, split)


def attention_backward(
    transposed: Block,
    score: DeviceScore,
    saved: SoftmaxGradient,
    gradients: Gradients,
    draw: Draw | None = None,
) -> None:
    """Add the gradients that are accumulated by a walk over the columns of a block."""
    values, indptr = score.values, transposed.indptr
    shape = _check_backward(transposed, score, saved)
    if indptr.size != values.shape[0] + 1:
        raise ValueError(f"the transpose has {indptr.size - 1} rows, and z {values.shape[0]}")
    _check_heads(values, values.shape, dz=gradients.values)
    if isinstance(score, AdditiveScore):
        _additive_backward(transposed, score, saved, gradients, draw, shape)
    else:
        into = gradients.values, None
        _dynamic_backward("columns", transposed, score, saved, into, draw)


def attention_backward_rows(
    block: Block,
    score: DynamicScore,
    saved: SoftmaxGradient,
    gradients: Gradients,
    draw: Draw | None = None,
) -> None:
    """Add the gradients of target and vector, accumulated by a walk over the rows of a block."""
    _check_heads(score.values, score.target.shape, dtarget=gradients.targets)
    _check_heads(score.values, score.vector.shape, dvector=gradients.weights)
    into = gradients.targets, gradients.weights
    _dynamic_backward("rows", block, score, saved, into, draw)


def _additive_backward(
    transposed: Block,
    score: AdditiveScore,
    saved: SoftmaxGradient,
    gradients: Gradients,
    draw: Draw | None,
    shape: _Shape,
) -> None:
    values, weights = score.values, score.weights
    dsource: DeviceArray = gradients.source
    _check_heads(values, score.target.shape, dtarget=gradients.targets)
    _check_heads(values, score.source.shape, dsource=dsource)
    if (weights is None) != (gradients.weights is None):
        raise ValueError("weights and dweights go together")
    groups = _groups_of(transposed)
    # The gradient of the weights needs this call's contribution alone, without what dsource held.
    gain = dsource if weights is None else load_cupy().zeros(dsource.shape, dsource.dtype)
    tile = _tile(score, shape, saved.grad, gradients.values, weights)
    fields: Fields = {
        "block": _block_fields(transposed, score, shape, draw, groups, tile),
        "saved": _saved_fields(saved),
        "weights": pointer(weights),
        "dz": pointer(gradients.values),
        "dsource": pointer(gain),
        "dtarget": pointer(gradients.targets),
    }
    _launch(score, "backward", fields, shape, tile, groups.host.row.size)
    if weights is not None:
        both = {"weights": weights, "dweights": gradients.weights}
        _check_heads(values, (shape.heads, shape.width), **both)
        dsource += gain
        _add_weight_gradient(values, gain, gradients.weights, shape.element)


def _dynamic_backward(
    walk: str,
    block: Block,
    score: DynamicScore,
    saved: SoftmaxGradient,
    gradients: tuple[DeviceArray, DeviceArray | None],
    draw: Draw | None,
) -> None:
    """Run one walk of the backward pass, by rows or by columns."""
    shape = _check_backward(block, score, saved)
    groups = _groups_of(block)
    tile = _tile(score, shape, score.target, score.vector, saved.grad, *gradients)
    num_groups = groups.host.row.size
    chunk = max(1, num_groups // _TILES) if walk == "rows" else 1
    fields: Fields = {
        "block": _block_fields(block, score, shape, draw, groups, tile),
        "saved": _saved_fields(saved),
        "gradient": pointer(gradients[0]),
        "dvector": pointer(gradients[1]),
        "chunk": chunk,
    }
    _launch(score, walk, fields, shape, tile, -(-num_groups // chunk))


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
    launch(
        "attention_state", f"weight_gradient_{short_name(element)}", fields, items=items, lanes=1
    )


def attention_merge(rows: DeviceArray | None, other: SoftmaxState, state: SoftmaxState) -> None:
    """Merge the state of other edges of the same rows: exact, in any order."""
    num_rows, heads, width = _check_state(state)
    count, out = other.top.shape[0], state.out
    _check_heads(out, (count, heads), other_top=other.top, other_total=other.total)
    _check_heads(out, (count, heads * width), other_out=other.out)
    if rows is not None:
        require_array("rows", rows, 1, ("int32",))
    if count != (num_rows if rows is None else rows.size):
        raise ValueError(f"{count} rows of the other state do not match the rows that they join")
    _merge_states(state, other, rows, count, (None, None))


def attention_finish(
    state: SoftmaxState, *, into: DeviceArray | None = None, bias: DeviceArray | None = None
) -> None:
    """Turn a state into the result, ``out / total + bias``; `top` becomes ``log(sum(exp(e)))``."""
    num_rows, heads, width = _check_state(state)
    out = state.out
    into = out if into is None else into
    if into.dtype != out.dtype or (into.size > 0 and into.strides[1] != into.itemsize):
        raise TypeError(f"into must be {out.dtype} with contiguous rows")
    if into.shape != out.shape:
        raise ValueError(f"into must have the shape {out.shape}, not {into.shape}")
    _check_bias(bias, out)
    pitch = into.strides[0] // into.itemsize
    options = _STATE_VECTORS[out.dtype.name] if pitch % 4 == 0 else (1,)
    vector = vector_width(options, width, out, into, bias)
    lanes = tile_lanes(-(-width // vector))
    fields: Fields = {
        "state": _state_fields(state),
        "into": pointer(into),
        "bias": pointer(bias),
        "num_rows": num_rows,
        "num_heads": heads,
        "head_width": width,
        "pitch": pitch,
        "lanes": np.int32(lanes),
    }
    kernel = f"attention_finish_{short_name(out.dtype.name)}_v{vector}"
    launch("attention_state", kernel, fields, items=num_rows * heads, lanes=lanes)


def attention_delta(
    grad: DeviceArray,
    out: DeviceArray,
    delta: DeviceArray,
    *,
    bias: DeviceArray | None = None,
    copy: DeviceArray | None = None,
) -> None:
    """Write ``delta[r, h] = <grad[r, h, :], out[r, h, :]>``; columns of wider arrays are copied."""
    grad, out = (load_cupy().ascontiguousarray(array) for array in (grad, out))
    if copy is not None:
        _check_heads(out, out.shape, copy=copy)
        copy[...] = grad
    require_array("delta", delta, 2, (out.dtype.name,))
    require_array("out", out, 2, ("float32", "float64"))
    _check_heads(out, out.shape, grad=grad)
    _check_bias(bias, out)
    heads = delta.shape[1]
    if delta.shape[0] != out.shape[0] or (heads > 0 and out.shape[1] % heads != 0):
        raise ValueError(f"the shape of delta, {delta.shape}, does not match out, {out.shape}")
    _head_dots(grad, out, bias, delta, out.dtype.name)


def _merge_states(
    state: SoftmaxState,
    other: SoftmaxState,
    rows: DeviceArray | None,
    count: int,
    split: tuple[DeviceArray | None, DeviceArray | None],
) -> None:
    """Merge `count` items of `other`; each is one row or, with `split`, several rows in order.

    `split` holds the first row of each item, ``(count + 1,)`` int64, and the row of the block that
    the item belongs to, ``(count,)`` int32.
    """
    heads = int(state.top.shape[1])
    width = int(state.out.shape[1]) // heads if heads > 0 else 0
    kind = state.top.dtype.name
    vector = vector_width(_STATE_VECTORS[kind], width, state.out, other.out)
    lanes = tile_lanes(-(-width // vector))
    fields: Fields = {
        "state": _state_fields(state),
        "other": _state_fields(other),
        "starts": pointer(split[0]),
        "block_rows": pointer(split[1]),
        "rows": pointer(rows),
        "num_items": count,
        "num_heads": heads,
        "head_width": width,
        "lanes": np.int32(lanes),
    }
    kernel = f"attention_merge_{short_name(kind)}_v{vector}"
    launch("attention_state", kernel, fields, items=count * heads, lanes=lanes)


def _head_dots(
    x: DeviceArray, y: DeviceArray, bias: DeviceArray | None, out: DeviceArray, element: str
) -> None:
    """Write ``out[i, h] = <x[i, h, :], y[i, h, :] - bias[h, :]>`` for checked arrays.

    `y` has the shape of `x`, or is ``(H, D)``, the same for all rows.
    """
    num_rows, heads = out.shape
    width = x.shape[1] // heads if heads > 0 else 0
    vector = vector_width(_DOT_VECTORS[element], width, x, y, bias)
    lanes = tile_lanes(-(-width // vector))
    fields: Fields = {
        "x": pointer(x),
        "y": pointer(y),
        "bias": pointer(bias),
        "out": pointer(out),
        "num_rows": num_rows,
        "num_heads": heads,
        "head_width": width,
        "y_rows": np.int32(y.shape == x.shape),
        "lanes": np.int32(lanes),
    }
    kernel = f"head_dots_{short_name(element)}_v{vector}"
    launch("attention_state", kernel, fields, items=num_rows * heads, lanes=lanes)


def _launch(
    score: DeviceScore,
    walk: str,
    fields: Fields,
    shape: _Shape,
    tile: tuple[int, int, int],
    items: int,
) -> None:
    """Run the variant of a score's kernel for this tile, with `items` work items for each head."""
    vector, vectors, lanes = tile
    name = f"{score.kind}_{walk}_{short_name(shape.element)}_v{vector}_k{vectors}"
    launch(f"attention_{score.kind}", name, fields, items=items * shape.heads, lanes=lanes)


def _tile(score: DeviceScore, shape: _Shape, *arrays: DeviceArray | None) -> tuple[int, int, int]:
    """Choose the elements of a vector, vectors of a thread, and threads of a tile for one head.

    The kernel accesses `arrays` and the score's values by vectors.
    """
    options = tuple(min(count, _WIDEST[score.kind]) for count in _VECTORS[shape.element])
    vector = vector_width(options, shape.width, score.values, *arrays)
    vectors = -(-shape.width // vector)
    return vector, 1 if vectors <= _WARP else 2, tile_lanes(vectors, _LEAST_LANES)


def _groups_of(block: Block) -> DeviceGroups:
    if block.groups is None:
        return DeviceGroups.of(block.indptr, ATTENTION_GROUP_SIZE)
    return block.groups


def _block_fields(
    block: Block,
    score: DeviceScore,
    shape: _Shape,
    draw: Draw | None,
    groups: DeviceGroups,
    tile: tuple[int, int, int],
) -> Fields:
    """Return the fields of the kernels' ``AttentionBlock``."""
    edges = _NO_DRAW if draw is None else draw.edges
    row_ids, column_ids = (None, None) if draw is None else (draw.row_ids, draw.column_ids)
    _check_numbers(score, draw)
    if draw is not None:
        require_array("row_ids", row_ids, 1, ("int64",))
        require_array("column_ids", column_ids, 1, ("int64",))
    p = edges.weight_p
    source = score.source if isinstance(score, AdditiveScore) else score.vector
    return {
        "groups": groups.arguments,
        "indptr": pointer(block.indptr),
        "indices": pointer(block.indices),
        "rows": pointer(block.rows),
        "row_ids": pointer(row_ids),
        "column_ids": pointer(column_ids),
        "z": pointer(score.values),
        "source": pointer(source),
        "target": pointer(score.target),
        "edges": {"key": edges.edge_word, "threshold": drop_threshold(edges.edge_p)},
        "weights": {"key": edges.weight_word, "threshold": drop_threshold(p)},
        "scale": 1.0 / (1.0 - p) if p < 1 else 0.0,
        "slope": float(score.slope),
        "num_heads": shape.heads,
        "head_width": shape.width,
        "lanes": np.int32(tile[2]),
    }


def _state_fields(state: SoftmaxState) -> Fields:
    return {"top": pointer(state.top), "total": pointer(state.total), "out": pointer(state.out)}


def _saved_fields(saved: SoftmaxGradient) -> Fields:
    return {"lse": pointer(saved.lse), "grad": pointer(saved.grad), "delta": pointer(saved.delta)}


def _element_of(z: DeviceArray, half: WireFormat | None) -> str:
    storage = storage_of(z, half)
    if storage not in _VECTORS:
        raise TypeError(f"attention takes floats of 16, 32 or 64 bits, not {storage}")
    return storage


def _check_pattern(block: Block, score: DeviceScore) -> None:
    require_array("indptr", block.indptr, 1, ("int64",))
    require_array("indices", block.indices, 1, ("int32",))
    require_array("z", score.values, 2, ("float32", "float64", "uint16"))
    if block.rows is not None:
        require_array("rows", block.rows, 1, ("int32",))


def _check_score(score: DeviceScore, shape: _Shape) -> None:
    """Raise unless the operands of a score fit its values."""
    values, (_, num_targets, heads, width) = score.values, shape
    _check_width(values, heads, width)
    if isinstance(score, AdditiveScore):
        _check_heads(values, (values.shape[0], heads), source=score.source)
        _check_heads(values, (num_targets, heads), target=score.target)
    else:
        _check_heads(values, (num_targets, heads * width), target=score.target)
        _check_heads(values, (heads, width), vector=score.vector)


def _check_backward(block: Block, score: DeviceScore, saved: SoftmaxGradient) -> _Shape:
    """Raise unless the operands of a backward walk fit together; return their sizes."""
    element, values = _element_of(score.values, score.half), score.values
    _check_pattern(block, score)
    if isinstance(score, DynamicScore):
        heads, width = score.vector.shape
    else:
        heads = score.target.shape[1]
        width = values.shape[1] // heads if heads > 0 else 0
    shape = _Shape(element, score.target.shape[0], heads, width)
    _check_score(score, shape)
    _check_heads(values, (shape.num_targets, heads), lse=saved.lse, delta=saved.delta)
    _check_heads(values, (shape.num_targets, heads * width), grad=saved.grad)
    return shape


def _check_heads(like: DeviceArray, shape: tuple[int, ...], **arrays: DeviceArray) -> None:
    """Raise unless `arrays` are matrices of `shape`, float64 if `like` is, else float32."""
    dtypes = ("float64",) if like.dtype == np.float64 else ("float32",)
    for name, array in arrays.items():
        require_array(name, array, 2, dtypes)
        if array.shape != shape:
            raise ValueError(f"{name} must have the shape {shape}, not {array.shape}")


def _check_width(z: DeviceArray, heads: int, width: int) -> None:
    if z.shape[1] != heads * width:
        raise ValueError(f"z has {z.shape[1]} columns, not {heads} heads of {width}")


def _check_state(state: SoftmaxState) -> tuple[int, int, int]:
    """Raise unless the arrays form a state; return its rows, heads and width of a head."""
    top, out = state.top, state.out
    require_array("out", out, 2, ("float32", "float64"))
    require_array("top", top, 2, ("float32", "float64"))
    num_rows, heads = top.shape
    _check_heads(out, (num_rows, heads), top=top, total=state.total)
    if out.shape[0] != num_rows or (heads == 0 and out.shape[1] != 0):
        raise ValueError(f"out has the shape {out.shape}, which does not match top, {top.shape}")
    if heads > 0 and out.shape[1] % heads != 0:
        raise ValueError(f"{out.shape[1]} columns of out do not divide into {heads} heads")
    return num_rows, heads, out.shape[1] // heads if heads > 0 else 0


def _check_bias(bias: DeviceArray | None, out: DeviceArray) -> None:
    if bias is None:
        return
    require_array("bias", bias, 1, (out.dtype.name,))
    if bias.size != out.shape[1]:
        raise ValueError(f"bias must have {out.shape[1]} elements, not {bias.size}")


def _check_numbers(score: DeviceScore, draw: Draw | None) -> None:
    """Raise TypeError for numbers of a wrong type, ValueError for a word beyond 64 bits."""
    reals: dict[str, object] = {"slope": score.slope}
    words: dict[str, object] = {}
    if draw is not None:
        edges = draw.edges
        reals |= {"weight_p": edges.weight_p, "edge_p": edges.edge_p}
        words = {"weight_word": edges.weight_word, "edge_word": edges.edge_word}
    for name, value in (reals | words).items():
        if not isinstance(value, Integral if name in words else Real):
            kind = "an integer" if name in words else "a real number"
            raise TypeError(f"{name} must be {kind}, not {value!r}")
    for name, word in words.items():
        if not 0 <= int(cast("int", word)) < 1 << 64:
            raise ValueError(f"{name} must be in [0, 2**64), not {word}")
