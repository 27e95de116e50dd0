"""Which axis of a tensor has a row for each of some nodes or edges, of which a rank has its own.

Every function that reads such a tensor hands the axis on to what it returns. A function that joins
rows, such as a mean over them, then joins those of all ranks, or is refused by name.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hpcgnn.errors import InputError
from hpcgnn.pyg.edges import EdgeShare, words
from hpcgnn.pyg.ghosts import rank_sum
from hpcgnn.spmd import collective

_PRIMES = (2, 3, 5, 7, 11, 13, 17)

_MOVES_AXES = words("t T mT mH H transpose swapaxes swapdims permute movedim moveaxis unsqueeze")
_SPLITS_AXES = words("view reshape flatten unflatten embedding one_hot squeeze")
_MULTIPLIES = words("matmul __matmul__ __rmatmul__ mm bmm")

_LAST = words("sort topk argsort softmax log_softmax kthvalue mode msort")
"""What works on the last axis where none is given."""

_JOINS = (
    words(
        "sum mean max min amax amin std var norm all any prod median nanmedian logsumexp cumsum "
        "cumprod cummax argmax argmin normalize var_mean std_mean nansum nanmean quantile "
        "vector_norm count_nonzero unique softmin cosine_similarity"
    )
    | _LAST
)
"""What joins numbers along axes."""

_KEEPS_AXES = words(
    "sort topk argsort softmax log_softmax softmin normalize cumsum cumprod cummax msort"
)
_SECOND = words("norm topk normalize quantile vector_norm kthvalue")
"""Functions with another argument in front of the axis."""


def axis_of(value: Any) -> int | None:
    """Return the axis of a tensor's rows, None where it has none."""
    return getattr(value, "_row_axis", None)


def mark(tensor: Tensor, axis: int) -> Tensor:
    """Note that an axis of a tensor has rows, and return the tensor."""
    tensor._row_axis = axis  # type: ignore[attr-defined]
    return tensor


def run(share: EdgeShare, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function of torch, over the rows of all ranks where it joins rows."""
    rows = [each for each in _tensors((*args, *kwargs.values())) if axis_of(each) is not None]
    if not rows:
        return func(*args, **kwargs)
    if name.endswith("_loss") or "cross_entropy" in name or "attention" in name:
        raise _joins(name)
    # By whole numbers rows are grouped, as by their type: the order of groups is no result.
    groups = name in ("sort", "argsort") and not args[0].is_floating_point()
    if name in _JOINS and not groups and axis_of(args[0]) is not None:
        return _joined(share, name, func, args, kwargs)
    if name in _MULTIPLIES:
        return _multiplied(share, name, func, args)
    if name == "einsum":
        return _einsum(share, func, *args)
    if name == "numel":
        # A rank without rows would leave out what all ranks do together.
        return max(args[0].numel(), 1)
    if name in ("view", "reshape") and rows[0].numel() == 0:
        args = (args[0], _shape_without_rows(args[0], args[1:]))
    result = func(*args, **kwargs)
    for out in _tensors((result,)):
        axis = _axis_after(name, func, rows[0], out, args, kwargs)
        if axis is not None:
            mark(out, axis)
    return result


def _shape_without_rows(x: Tensor, sizes: Any) -> Any:
    """Return the sizes of a view with the one that -1 is, which no rows leave open."""
    sizes = sizes[0] if isinstance(sizes[0], (tuple, list)) else sizes
    axis = axis_of(x)
    if axis is None or 0 not in sizes or -1 not in sizes:
        return sizes
    shape = [1 if place == axis else size for place, size in enumerate(x.shape)]
    one = torch.empty(shape, device="meta").view([size or 1 for size in sizes])
    return [size if size >= 0 else one.shape[place] for place, size in enumerate(sizes)]


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for each in values:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, (list, tuple)):
            found.extend(_tensors(each))
    return found


def _axis_after(
    name: str, func: Callable[..., Any], x: Tensor, out: Tensor, args: Any, kwargs: Any
) -> int | None:
    axis = axis_of(x)
    assert axis is not None
    size, shape = x.shape[axis], out.shape
    if name in ("__getitem__", "index_select", "masked_select", "cat", "gather"):
        return _axis_of_picked(name, axis, args, out)
    if name in _MOVES_AXES:
        probe = torch.empty(_PRIMES[: x.dim()], device="meta")
        moved = func(probe, *args[1:], **kwargs)
        return tuple(moved.shape).index(_PRIMES[axis])
    if name == "stack":
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0) % out.dim()
        return axis + (dim <= axis)
    before = x.shape[:axis].numel()
    by_prefix = [a for a in range(out.dim()) if shape[:a].numel() == before and shape[a] == size]
    from_end = out.dim() - (x.dim() - axis)
    order = [from_end, axis, *by_prefix]
    if name in _SPLITS_AXES:
        order = [*by_prefix, axis]
    return next((a for a in order if 0 <= a < out.dim() and shape[a] == size), None)


def _axis_of_picked(name: str, axis: int, args: Any, out: Tensor) -> int | None:
    if name != "__getitem__" or axis_of(args[0]) is None:
        # By an index that has rows itself.
        places = [0] if name != "__getitem__" else _places_of_rows(args[1])
        axis = axis if axis_of(args[0]) is not None else places[0]
        return axis if axis < out.dim() else None
    keys = args[1] if isinstance(args[1], tuple) else (args[1],)
    if Ellipsis in [key if not isinstance(key, Tensor) else None for key in keys]:
        return axis if axis < out.dim() else None
    left = axis
    after = 0
    for key in keys:
        if key is None:
            after += 1
            continue
        if left == 0:
            if isinstance(key, int):
                raise InputError(
                    "torch.__getitem__: a row is picked by its place, which is another node on "
                    "each rank"
                )
            break
        wide = key.dim() if isinstance(key, Tensor) and key.dtype == torch.bool else 1
        left -= wide
        after += not isinstance(key, int)
    else:
        after += left
    return after if after < out.dim() else None


def _places_of_rows(key: Any) -> list[int]:
    keys = key if isinstance(key, tuple) else (key,)
    return [place for place, each in enumerate(keys) if axis_of(each) is not None] or [0]


def _multiplied(share: EdgeShare, name: str, func: Callable[..., Any], args: Any) -> Any:
    left, right = args[:2] if name != "__rmatmul__" else (args[1], args[0])
    out: Tensor = func(*args)
    inner = left.dim() - 1, max(right.dim() - 2, 0)
    joins = [axis_of(left) == inner[0], axis_of(right) == inner[1]]
    if all(joins):
        return rank_sum(out, share.sums)
    if any(joins):
        raise _joins(name)
    x = left if axis_of(left) is not None else right
    return mark(out, out.dim() - (x.dim() - (axis_of(x) or 0)))


def _einsum(share: EdgeShare, func: Callable[..., Any], equation: str, *operands: Any) -> Any:
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], list) else operands
    terms, arrow, result = equation.replace(" ", "").partition("->")
    parts = terms.split(",")
    rows = {
        part[axis]
        for part, each in zip(parts, given, strict=True)
        if (axis := axis_of(each)) is not None
    }
    if len(rows) != 1 or not arrow or "." in equation:
        raise _joins("einsum")
    letter = rows.pop()
    out: Tensor = func(equation, *operands)
    if letter in result:
        return mark(out, result.index(letter))
    if any(
        letter in part and axis_of(each) is None for part, each in zip(parts, given, strict=True)
    ):
        raise _joins("einsum")
    return rank_sum(out, share.sums)


@collective
def _joined(
    share: EdgeShare, name: str, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
) -> Any:
    x = args[0]
    axis = axis_of(x)
    assert axis is not None
    place = 2 if name in _SECOND else 1
    dim = kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else None))
    if isinstance(dim, Tensor):
        # An element of each of two tensors.
        return mark(func(*args, **kwargs), axis)
    if isinstance(dim, bool) or dim is None:
        dim = -1 if name in _LAST else 1 if name == "normalize" else None
    dims = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = sorted(each % x.dim() for each in dims)
    keeps = kwargs.get("keepdim", bool(len(args) > place + 1 and args[place + 1] is True))
    if axis not in dims:
        result = func(*args, **kwargs)
        kept = axis if keeps or name in _KEEPS_AXES else axis - sum(d < axis for d in dims)
        for out in _tensors((result,)):
            mark(out, kept)
        return result
    handler = _OVER_RANKS.get(name)
    if handler is None:
        raise _joins(name)
    options = {key: each for key, each in kwargs.items() if key in ("unbiased", "correction", "p")}
    found = handler(share, x, dims, **options)
    found = found if keeps else found.squeeze(dims)
    return (found, None) if name in ("max", "min") and dim is not None else found


def _sum(share: EdgeShare, x: Tensor, dims: list[int]) -> Tensor:
    return rank_sum(x.sum(dims, keepdim=True), share.sums)


def _mean(share: EdgeShare, x: Tensor, dims: list[int]) -> Tensor:
    return _sum(share, x, dims) / _count(share, x, dims).clamp(min=1)


def _count(share: EdgeShare, x: Tensor, dims: list[int]) -> Tensor:
    count = torch.tensor(float(torch.Size([x.shape[dim] for dim in dims]).numel()))
    return rank_sum(count, share.sums).to(x.dtype)


def _var(
    share: EdgeShare, x: Tensor, dims: list[int], unbiased: bool = True, correction: int = 1
) -> Tensor:
    count = _count(share, x, dims)
    squares = _sum(share, (x - _mean(share, x, dims)).square(), dims)
    return squares / (count - correction * unbiased)


def _std(share: EdgeShare, x: Tensor, dims: list[int], **options: Any) -> Tensor:
    return _var(share, x, dims, **options).sqrt()


def _norm(share: EdgeShare, x: Tensor, dims: list[int], p: Any = 2) -> Tensor:
    if p not in (2, "fro"):
        raise _joins("norm")
    return _sum(share, x.square(), dims).sqrt()


def _amax(share: EdgeShare, x: Tensor, dims: list[int]) -> Tensor:
    """Return maxima, whose gradient their equals share, as in `torch.amax`."""
    with torch.no_grad():
        shape = [1 if dim in dims else size for dim, size in enumerate(x.shape)]
        smallest = x.new_full(shape, -torch.inf, dtype=torch.float64)
        local = x.double().amax(dims, keepdim=True) if x.numel() else smallest
        array = local.contiguous().numpy()
        share.maxima(array)
        largest = torch.from_numpy(array).to(x.dtype)
    if not x.is_floating_point():
        return largest
    hits = (x == largest).to(x.dtype)
    counts = _sum(share, hits, dims)
    mean = _sum(share, x * hits, dims) / counts
    # A mean of equal numbers, without its rounding.
    return mean + (largest - mean).detach()


def _amin(share: EdgeShare, x: Tensor, dims: list[int]) -> Tensor:
    return -_amax(share, -x, dims)


def _any(share: EdgeShare, x: Tensor, dims: list[int]) -> Tensor:
    return _amax(share, x.long(), dims) > 0


def _all(share: EdgeShare, x: Tensor, dims: list[int]) -> Tensor:
    return ~_any(share, ~x.bool(), dims)


_OVER_RANKS: Mapping[str, Callable[..., Tensor]] = {
    "sum": _sum,
    "mean": _mean,
    "var": _var,
    "std": _std,
    "norm": _norm,
    "max": _amax,
    "amax": _amax,
    "min": _amin,
    "amin": _amin,
    "any": _any,
    "all": _all,
}


def _joins(name: str) -> InputError:
    return InputError(
        f"torch.{name}: it joins the rows of all nodes or edges, of which a rank has its own; over "
        f"ranks that works for {', '.join(_OVER_RANKS)}, and products that sum over rows"
    )
