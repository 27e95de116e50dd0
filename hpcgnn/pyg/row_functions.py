"""Torch functions of tensors with a row for each own node or edge: track the axis of the rows.

The axis of a result's rows is found by calling the function once with meta tensors that have more
rows than any other size, and looking at the shape of the result. A function that joins rows, such
as a mean over them, joins those of all ranks or is refused by name.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpcgnn.errors import InputError
from hpcgnn.pyg import row_order
from hpcgnn.pyg.edges import DESCRIBES, RowShare, words
from hpcgnn.pyg.ghosts import halves, joined_halves, rank_sum
from hpcgnn.pyg.row_axis import (
    ROWS,
    Axis,
    Placed,
    RowCount,
    are_numbers,
    axis_of,
    key_of,
    kind_of,
    mark,
    rows_of,
    sizes,
    total_rows,
    with_rows,
)
from hpcgnn.spmd import collective

_MULTIPLIES = words("matmul __matmul__ __rmatmul__ mm bmm")

_SAME = words("to cpu one_hot type_as type")
"""Functions that keep all axes and cannot be called with meta tensors."""

_PICKS = words("__getitem__ index_select masked_select cat concat gather nonzero")
"""Functions that change the number of rows."""

_READS_NONE = words(
    "new_zeros new_ones new_full new_empty new_tensor type_as to expand view_as "
    "_convert_indices_from_coo_to_csr"
)
"""Functions whose result may have no rows although an argument has."""

_VIEWS = words("view view_as reshape reshape_as flatten unflatten ravel")
"""Functions that keep the order of all entries."""

_READS_ALL = words("item tolist numpy equal allclose is_nonzero __bool__ __int__ __float__")
"""Functions that would read only this rank's numbers."""

_ARITHMETIC = words(
    "add sub mul div true_divide floor_divide pow __add__ __radd__ __sub__ __rsub__ __mul__ "
    "__rmul__ __truediv__ __rtruediv__ __pow__ __rpow__ rsub clamp fill_ full_like lt gt le ge"
)
"""Functions in which a number of rows means that of all ranks."""

_FILLS: Mapping[str, int] = {"full": 1, "new_full": 2}
"""Functions with sizes before the place of a number, for which rows of all ranks count."""

_NUMBERS = words("tensor as_tensor scalar_tensor new_tensor linspace logspace eye range")
"""Functions that would make rank's numbers of rows numbers of a tensor."""

SAME_NUMBERS = words(
    "view reshape expand expand_as unsqueeze squeeze contiguous clone detach to long flatten "
    "repeat_interleave view_as"
)
"""Functions that return the same numbers in another shape."""

_TAKES_NUMBERS = (
    SAME_NUMBERS
    | _PICKS
    | row_order.BY_INDEX
    | frozenset(f"{name}_" for name in row_order.BY_INDEX)
    | words("__setitem__ index_put index_put_ repeat sort argsort _convert_indices_from_coo_to_csr")
)
"""Functions in which numbers of rows only pick rows."""

_LAST = words("sort topk argsort softmax log_softmax kthvalue mode")
"""Functions that work on the last axis by default."""

JOINS = (
    words(
        "sum mean max min amax amin std var norm all any prod median nanmedian logsumexp cumsum "
        "cumprod cummax argmax argmin normalize var_mean std_mean nansum nanmean quantile "
        "vector_norm count_nonzero unique softmin cosine_similarity"
    )
    | _LAST
)
"""Functions that join numbers along axes."""

_KEEPS_AXES = words("sort topk argsort softmax log_softmax softmin normalize cumsum cumprod cummax")
_UNBIASED = words("var std var_mean std_mean")
_SECOND = words("norm topk normalize quantile vector_norm kthvalue")
"""Functions with `unbiased` before `keepdim`, and with another argument before the axis."""


def run(share: RowShare, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a torch function, over the rows of all ranks if it joins rows."""
    if name in ("size", "shape"):
        return _size(share, args, kwargs)
    if name == "__len__" and axis_of(args[0]) == 0:
        raise InputError("torch.__len__: len(x) counts a rank's rows; write x.size(0)")
    values = (*args, *kwargs.values())
    rows = [tensor for tensor in _tensors(values) if rows_of(tensor) is not None]
    if not rows and not _counts(values):
        return func(*args, **kwargs)
    if rows and (name in _READS_ALL or name.endswith("_loss") or "attention" in name):
        raise _joins(name)
    if name in ("grad", "backward"):
        raise InputError(
            f"torch.{name}: gradients in a module would not be those of one process; call it on "
            "the module's result, after it returned"
        )
    if name in row_order.DRAWS:
        raise draws(name)
    if name in _NUMBERS and _counts(values):
        raise InputError(
            f"torch.{name} of a number of rows: it would be that of a rank; write x.new_full((), "
            "x.size(0)) for the number of all ranks"
        )
    if any(are_numbers(tensor) for tensor in rows) and name not in _TAKES_NUMBERS | DESCRIBES:
        raise InputError(
            f"torch.{name}: it computes with the numbers of a rank's rows, which are other nodes "
            "on each rank; give the numbers of nodes as an argument of the module"
        )
    if row_order.mixes(name, args, kwargs):
        raise _joins(name)
    if row_order.by_position(name, args, kwargs):
        raise InputError(
            f"torch.{name}: it picks rows by position, which are different nodes on each rank; "
            "pick them by a mask"
        )
    if name == "__setitem__" and rows and axis_of(args[0]) is None:
        raise InputError(
            "torch.__setitem__: it writes what depends on rows into a tensor without rows; give "
            "its size as x.size(0)"
        )
    if name in ("layer_norm", "rms_norm") and (axis_of(args[0]) or 0) >= args[0].dim() - len(
        args[1]
    ):
        raise _joins(name)
    if name in _ARITHMETIC:
        args = [_total(value) for value in args]
    if name in _FILLS:
        place = _FILLS[name]
        args = [*args[:place], *map(_total, args[place:])]
        kwargs = {
            key: _total(value) if key == "fill_value" else value for key, value in kwargs.items()
        }
    # Sorting integers, such as types, groups rows; the order of groups does not matter.
    groups = name in ("sort", "argsort") and not args[0].is_floating_point()
    if name in JOINS and not groups and args and axis_of(args[0]) is not None:
        dim = _dim_of(name, args, kwargs)
        if not isinstance(dim, Tensor):
            return _joined(share, name, func, args, kwargs)
    if name in _MULTIPLIES:
        summed = _joins_in_product(name, args)
        if summed:
            return rank_sum(func(*args), share.sums)
    if name == "einsum":
        return _einsum(share, func, *args)
    if name == "numel":
        return _numel(share, args[0])
    if name in ("view", "reshape") and rows and rows[0].numel() == 0 and args[0] is rows[0]:
        result = func(args[0], _shape_without_rows(func, args, kwargs))
    else:
        result = func(*args, **kwargs)
    outs = _tensors((result,))
    if outs:
        for out, axis in zip(outs, _axes(name, func, args, kwargs, rows, outs), strict=True):
            if axis is not None:
                mark(out, axis.dim, axis.times, _kind(name, rows))
                if rows and name not in _PICKS and not _counts(values):
                    out._total = total_rows(rows[0])  # type: ignore[attr-defined]
        keeps = name in SAME_NUMBERS | _PICKS and are_numbers(args[0])
        if keeps or name in ("nonzero", "arange") or (groups and _orders_rows(name, args, kwargs)):
            # Of a sort, the order is the last result.
            axis = rows_of(outs[-1]) or Axis(0)
            mark(outs[-1], axis.dim, axis.times, axis.kind, numbers=True)
    return result


def _orders_rows(name: str, args: Any, kwargs: Any) -> bool:
    dim = _dim_of(name, args, kwargs)
    return (-1 if dim is None or isinstance(dim, bool) else dim) % args[0].dim() == axis_of(args[0])


def _kind(name: str, rows: list[Tensor]) -> Hashable:
    """Return the type of the nodes of `rows`; raises `InputError` if there are several."""
    kinds = {kind_of(tensor) for tensor in rows} - {None}
    if len(kinds) > 1:
        raise InputError(f"torch.{name}: it joins rows of nodes of several types")
    return kinds.pop() if kinds else None


def _size(share: RowShare, args: Any, kwargs: Any) -> Any:
    x, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
    if dim is None:
        return sizes(x, share.sums)
    return sizes(x, share.sums)[dim] if dim % x.dim() == axis_of(x) else x.shape[dim]


def _numel(share: RowShare, x: Tensor) -> int:
    rows = rows_of(x)
    assert rows is not None
    others = torch.Size([size for dim, size in enumerate(x.shape) if dim != rows.dim]).numel()
    count: int = sizes(x, share.sums)[rows.dim] * others
    return count


def _total(value: Any) -> Any:
    return float(value) if isinstance(value, RowCount) else value


def _counts(values: Any) -> bool:
    return any(
        isinstance(value, RowCount) or (isinstance(value, (list, tuple)) and _counts(value))
        for value in values
    )


def _shape_without_rows(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return the sizes of a view of no rows, with the size for -1, which would be ambiguous."""
    shape = _shapes(func, args, kwargs, lambda _: None)[0]
    return [0 if size % ROWS == 0 else size for size in shape]


def _tensors(values: Any) -> list[Tensor]:
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors.extend(_tensors(value))
    return tensors


_known: dict[Any, list[Axis | None]] = {}


def _axes(
    name: str, func: Callable[..., Any], args: Any, kwargs: Any, rows: list[Tensor], outs: Any
) -> list[Axis | None]:
    """Return the axis of the rows of each tensor of a result."""
    if rows and name in _PICKS:
        axis = 0 if name == "nonzero" else _axis_of_picked(name, rows[0], args, outs[0])
        return [None if axis is None else Axis(axis)] * len(outs)
    if name in _SAME:
        return [rows_of(args[0])] * len(outs)
    key = (func, key_of(args), key_of(kwargs))
    if key not in _known:
        axes, certain = _tried(name, func, args, kwargs, rows)
        if not certain:
            return axes
        _known[key] = axes
    return _known[key]


def _tried(
    name: str, func: Callable[..., Any], args: Any, kwargs: Any, rows: list[Tensor]
) -> tuple[list[Axis | None], bool]:
    """Return the axes of results' rows, and whether they hold for any number of rows."""
    try:
        shapes, certain = _shapes(func, args, kwargs, lambda _: None), True
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if not rows:
            return [None], True
        # Unmarked tensors may have rows too: assume the axis at the same distance from the end.
        x = rows[0]
        from_end, size = (axis_of(x) or 0) - x.dim(), x.shape[axis_of(x) or 0]

        def placed(tensor: Tensor) -> int | None:
            axis = tensor.dim() + from_end
            return axis if axis >= 0 and tensor.shape[axis] == size else None

        try:
            shapes, certain = _shapes(func, args, kwargs, placed), False
        except (RuntimeError, ValueError, IndexError, TypeError):
            raise InputError(
                f"torch.{name}: the axis of its result's rows is not known; give sizes as "
                f"x.size(0) or -1 ({str(error).splitlines()[0][:80]})"
            ) from None
    axes = [_axis_in(shape) for shape in shapes]
    if rows and axes and axes[0] is not None and not _keeps_rows(name, args[0], shapes[0], axes[0]):
        raise InputError(
            f"torch.{name}: it puts entries of several rows into one, or rows into another order; "
            "first make the axis of rows the first one, with transpose or movedim"
        )
    lost = bool(rows) and not any(axes) and name not in _READS_NONE
    if lost or any(sum(size % ROWS == 0 < size for size in shape) > 1 for shape in shapes):
        raise _joins(name)
    return axes, certain


def _keeps_rows(name: str, x: Any, shape: torch.Size, axis: Axis) -> bool:
    """Return whether each row of a result is of one row of `x`, in their order."""
    rows = rows_of(x)
    if rows is None:
        return True
    if name in ("repeat", "tile"):
        return axis.times == rows.times
    before = x.shape[: rows.dim].numel(), shape[: axis.dim].numel()
    return name not in _VIEWS or before[0] == before[1]


def _shapes(func: Callable[..., Any], args: Any, kwargs: Any, placed: Placed) -> list[torch.Size]:
    positional, named = with_rows(args, placed), with_rows(kwargs, placed)
    if not _tensors((*positional, *named.values())):
        named = {**named, "device": "meta"}
    with torch.no_grad():
        return [tensor.shape for tensor in _tensors((func(*positional, **named),))]


def _axis_in(shape: torch.Size) -> Axis | None:
    for axis, size in enumerate(shape):
        if size % ROWS == 0 < size:
            return Axis(axis, size // ROWS)
    return None


def _axis_of_picked(name: str, x: Tensor, args: Any, out: Tensor) -> int | None:
    axis = axis_of(x)
    assert axis is not None
    if name != "__getitem__" or axis_of(args[0]) is None:
        # An index with rows picks the rows of the result.
        axes = [0] if name != "__getitem__" else _axes_of_rows(args[1])
        axis = axis if axis_of(args[0]) is not None else axes[0]
        return axis if axis < out.dim() else None
    keys = args[1] if isinstance(args[1], tuple) else (args[1],)
    if any(key is Ellipsis for key in keys):
        return axis if axis < out.dim() else None
    left = axis
    after = 0
    for key in keys:
        if key is None:
            after += 1
            continue
        if left == 0:
            break
        wide = key.dim() if isinstance(key, Tensor) and key.dtype == torch.bool else 1
        left -= wide
        after += not isinstance(key, int)
    else:
        after += left
    return after if after < out.dim() else None


def _axes_of_rows(key: Any) -> list[int]:
    keys = key if isinstance(key, tuple) else (key,)
    return [axis for axis, index in enumerate(keys) if axis_of(index) is not None] or [0]


def _joins_in_product(name: str, args: Any) -> bool:
    """Return whether a product sums over rows; raises `InputError` if only one side has them."""
    left, right = args[:2] if name != "__rmatmul__" else (args[1], args[0])
    inner = left.dim() - 1, max(right.dim() - 2, 0)
    joins = [axis_of(left) == inner[0], axis_of(right) == inner[1]]
    if any(joins) and not all(joins):
        raise _joins(name)
    return all(joins)


def _einsum(share: RowShare, func: Callable[..., Any], equation: str, *operands: Any) -> Any:
    arrays = operands[0] if len(operands) == 1 and isinstance(operands[0], list) else operands
    terms, arrow, result = equation.replace(" ", "").partition("->")
    parts = terms.split(",")
    rows = {
        part[axis]
        for part, array in zip(parts, arrays, strict=True)
        if (axis := axis_of(array)) is not None
    }
    if len(rows) != 1 or not arrow or "." in equation:
        raise _joins("einsum")
    letter = rows.pop()
    out: Tensor = func(equation, *operands)
    if letter in result:
        return mark(out, result.index(letter), kind=_kind("einsum", [*arrays]))
    if any(
        letter in part and axis_of(array) is None for part, array in zip(parts, arrays, strict=True)
    ):
        raise _joins("einsum")
    return rank_sum(out, share.sums)


def _dim_of(name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return the argument of axes to join along; a tensor if two tensors are joined."""
    position = 2 if name in _SECOND else 1
    return kwargs.get("dim", kwargs.get("axis", args[position] if len(args) > position else None))


@collective
def _joined(
    share: RowShare, name: str, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
) -> Any:
    x = args[0]
    rows = rows_of(x)
    assert rows is not None
    axis, dim = rows.dim, _dim_of(name, args, kwargs)
    if isinstance(dim, bool) or dim is None:
        dim = -1 if name in _LAST else 1 if name == "normalize" else None
    dims = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = sorted(dim % x.dim() for dim in dims)
    flags = [value for value in args[1:] if isinstance(value, bool)]
    options = {key: kwargs[key] for key in ("unbiased", "correction", "p") if key in kwargs}
    if name in _UNBIASED and flags:
        options["unbiased"] = flags.pop(0)
    keeps = kwargs.get("keepdim", flags[:1] == [True])
    if axis not in dims:
        result = func(*args, **kwargs)
        out_axis = axis if keeps or name in _KEEPS_AXES else axis - sum(d < axis for d in dims)
        for out in _tensors((result,)):
            mark(out, out_axis, rows.times, rows.kind)
        return result
    handler = _OVER_RANKS.get(name)
    if handler is None:
        raise _joins(name)
    result = handler(share, x.to(kwargs.get("dtype") or x.dtype), dims, **options)
    result = result if keeps else result.squeeze(dims)
    return _Extreme(result) if name in ("max", "min") and dim is not None else result


class _Extreme(NamedTuple):
    """The result of a maximum or minimum; no rank knows the positions, which pick nothing."""

    values: Tensor
    indices: object = object()


def _sum(share: RowShare, x: Tensor, dims: list[int]) -> Tensor:
    return rank_sum(x.sum(dims, keepdim=True), share.sums)


def _mean(share: RowShare, x: Tensor, dims: list[int]) -> Tensor:
    return _sum(share, x, dims) / _count(share, x, dims).clamp(min=1)


def _count(share: RowShare, x: Tensor, dims: list[int]) -> Tensor:
    count = torch.tensor(float(torch.Size([x.shape[dim] for dim in dims]).numel()))
    return rank_sum(count, share.sums).to(x.dtype)


def _var(
    share: RowShare, x: Tensor, dims: list[int], unbiased: bool = True, correction: int = 1
) -> Tensor:
    count = _count(share, x, dims)
    squares = _sum(share, (x - _mean(share, x, dims)).square(), dims)
    return squares / (count - correction * unbiased)


def _std(share: RowShare, x: Tensor, dims: list[int], **options: Any) -> Tensor:
    return _var(share, x, dims, **options).sqrt()


def _norm(share: RowShare, x: Tensor, dims: list[int], p: Any = 2) -> Tensor:
    if p not in (2, "fro"):
        raise _joins("norm")
    return _sum(share, x.square(), dims).sqrt()


def _amax(share: RowShare, x: Tensor, dims: list[int]) -> Tensor:
    """Return maxima; equal entries share the gradient, as in `torch.amax`."""
    with torch.no_grad():
        shape = [1 if dim in dims else size for dim, size in enumerate(x.shape)]
        smallest = x.new_full(shape, -torch.inf, dtype=torch.float64)

        def over_ranks(part: Tensor) -> Tensor:
            local = part.double().amax(dims, keepdim=True) if x.numel() else smallest
            array = local.contiguous().numpy()
            share.maxima(array)
            return torch.from_numpy(array)

        if x.dtype == torch.int64:
            high, low = halves(x)
            first = over_ranks(high)
            return joined_halves(first, over_ranks(low.where(high == first, -1)))
        largest = over_ranks(x).to(x.dtype)
    if not x.is_floating_point():
        return largest
    hits = (x == largest).to(x.dtype)
    counts = _sum(share, hits, dims)
    mean = _sum(share, x * hits, dims) / counts
    # The mean of equal numbers has the right gradient; correct the rounding of its value.
    return mean + (largest - mean).detach()


def _amin(share: RowShare, x: Tensor, dims: list[int]) -> Tensor:
    return -_amax(share, -x, dims)


def _any(share: RowShare, x: Tensor, dims: list[int]) -> Tensor:
    return _amax(share, x.long(), dims) > 0


def _all(share: RowShare, x: Tensor, dims: list[int]) -> Tensor:
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


def draws(name: str) -> InputError:
    """Return the error of a function that draws numbers."""
    return InputError(
        f"torch.{name}: the module draws random numbers by itself, which would depend on "
        "the number of ranks; only dropout is drawn by node"
    )


def _joins(name: str) -> InputError:
    return InputError(
        f"torch.{name}: it joins the rows of all nodes or edges, of which a rank has only its own; "
        f"over ranks use {', '.join(_OVER_RANKS)}, or products that sum over rows"
    )
