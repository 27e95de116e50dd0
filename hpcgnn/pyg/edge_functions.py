"""The meaning over ranks of torch functions that have edges, or their ends, as arguments."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hpcgnn.errors import InputError
from hpcgnn.pyg import row_functions
from hpcgnn.pyg.edges import (
    DESCRIBES,
    EdgeList,
    EdgePlaceholder,
    EdgeShare,
    Index,
    NodeIndex,
    RowShare,
    Sources,
    TargetIndex,
    words,
)
from hpcgnn.pyg.ghosts import rank_sum
from hpcgnn.pyg.row_axis import axis_of, mark
from hpcgnn.spmd import collective

Fetched: TypeAlias = Callable[[EdgeShare, Tensor, int], Tensor]
"""Returns a tensor with the rows of other ranks' nodes that are sources appended along a dimension.
Collective."""

_SIZES = words("size shape numel nelement __len__")

_COMPARES = words("eq ne __eq__ __ne__")
_MAKES = words("new_zeros new_ones new_full new_empty")

_OF_TARGETS = words("max sort argsort _convert_indices_from_coo_to_csr")
"""Functions of targets whose results only pick or count own rows."""

_OF_LAST = words("item __int__ __index__ add __add__ __radd__")
"""Functions of the last target, which make a size of it."""

_NORMS = ("x", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")

_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "index_select": ("input", "dim", "index"),
    "gather": ("input", "dim", "index"),
    "scatter_add": ("input", "dim", "index", "src"),
    "index_add": ("input", "dim", "index", "source"),
    "scatter_reduce": ("input", "dim", "index", "src", "reduce", "include_self"),
    "__getitem__": ("input", "key"),
    "__setitem__": ("input", "key", "value"),
    "dropout": ("x", "p", "training", "inplace"),
    "batch_norm": _NORMS,
    "instance_norm": _NORMS,
}


def bound(name: str, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a torch function by name."""
    names = _ARGUMENTS[name.removesuffix("_") if name[:2] != "__" else name]
    return {**dict(zip(names, args, strict=False)), **kwargs}


@collective
def call(fetched: Fetched, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """Call a torch function with indices among its arguments over ranks.

    Raises `InputError` if it has no meaning over ranks.
    """
    index = held((*args, *kwargs.values()))
    assert index is not None
    if isinstance(index, EdgePlaceholder):
        if name in DESCRIBES - _SIZES:
            return func(*plain(args), **kwargs)
        raise _refusal(name, index)
    of_nodes = name in _COMPARES and all(isinstance(value, Index) for value in args[:2])
    if name in DESCRIBES or name in _MAKES or of_nodes:
        return row_functions.run(index.share, name, func, plain(args), plain(kwargs))
    result = _result(fetched, index, name, func, args, kwargs)
    if result is NotImplemented:
        raise _refusal(name, index)
    return result


def _result(fetched: Fetched, index: Index, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    first = args[0] if args else None
    if name in ("cat", "concat", "concatenate"):
        return _cat(index, *args, **kwargs)
    if isinstance(first, EdgeList):
        return _of_edges(name, first, args, kwargs)
    if isinstance(first, Index) and held(args[1:]) is None:
        if name in row_functions.SAME_NUMBERS or name in (
            "__getitem__",
            "index_select",
            "masked_select",
        ):
            return _like(first, row_functions.run(index.share, name, func, plain(args), kwargs))
        if not first.dim() and name in _OF_LAST:
            number = func(*plain(args), **kwargs)
            return _like(first, number) if isinstance(number, Tensor) else number
    elif name in _HANDLERS and not isinstance(first, Index):
        return _HANDLERS[name](fetched, name, bound(name, args, kwargs))
    if name in _OF_TARGETS and _only_targets((*args, *kwargs.values())):
        if name == "max" and isinstance(first, TargetIndex) and len(args) == 1 and not kwargs:
            # Layers make the number of their rows of it, those without edges included.
            return TargetIndex.of(torch.tensor(len(first.share.node_ids) - 1), first.share)
        if name == "max":
            with torch._C.DisableTorchFunction():
                return func(*(value.detach() for value in plain(args)), **plain(kwargs))
        result = row_functions.run(index.share, name, func, plain(args), plain(kwargs))
        if name == "sort":
            result = type(result)((TargetIndex.of(result[0], args[0].share), result[1]))
        return result
    return NotImplemented


def _cat(index: Index, tensors: Any, dim: int = 0) -> Any:
    numbers = torch.cat([plain(tensor) for tensor in tensors], dim)
    if isinstance(index, EdgeList):
        # Only loops at own nodes are appended, which are valid in both rows.
        rows = {tensor.source_row for tensor in tensors if isinstance(tensor, EdgeList)}
        if dim % 2 == 0 or len(rows) > 1:
            return NotImplemented
    return _like(index, numbers)


@collective
def _select(fetched: Fetched, name: str, arguments: dict[str, Any]) -> Any:
    x, dim, index = arguments["input"], arguments["dim"], arguments["index"]
    x = fetched(index.share, x, dim) if isinstance(index, Sources) else x
    return mark(getattr(x, name)(dim, plain(index)), dim % x.dim())


@collective
def _item(fetched: Fetched, _name: str, arguments: dict[str, Any]) -> Any:
    x, key = arguments["input"], arguments["key"]
    keys = key if isinstance(key, tuple) else (key,)
    axes = [axis for axis, part in enumerate(keys) if isinstance(part, Index)]
    # Keys before the index must not remove dimensions.
    if len(axes) > 1 or any(part != slice(None) for part in keys[: axes[0]]):
        return NotImplemented
    index = keys[axes[0]]
    x = fetched(index.share, x, axes[0]) if isinstance(index, (Sources, EdgeList)) else x
    return mark(x[plain(key)], axes[0] + index.rows.dim)


def _set_item(_: Fetched, _name: str, arguments: dict[str, Any]) -> Any:
    x, key, value = arguments["input"], arguments["key"], arguments["value"]
    if not isinstance(key, Index):
        return NotImplemented
    numbers = key.plain
    if numbers.numel() and int(numbers.max()) >= len(x):
        raise InputError("torch.__setitem__: it assigns to rows of other ranks; assign own rows")
    x[numbers] = value
    return None


@collective
def _add(_: Fetched, name: str, arguments: dict[str, Any]) -> Any:
    """Return sums at own rows; sums at sources are returned to their owners."""
    total, dim, index = arguments.pop("input"), arguments.pop("dim"), arguments.pop("index")
    values = arguments.pop("src" if "src" in arguments else "source")
    if arguments or not isinstance(index, (Sources, TargetIndex)):
        return NotImplemented
    if isinstance(index, TargetIndex):
        return _at_targets(getattr(total, name)(dim, index.plain, values), dim, index)
    share, shape = index.share, list(total.shape)
    share.check_rows(total, dim)
    shape[dim] = share.num_rows
    added = getattr(values.new_zeros(shape), name.removesuffix("_"))(dim, index.plain, values)
    home = share.take_home(added, dim)
    total = total.add_(home) if name.endswith("_") else total + home
    return mark(total, dim % total.dim(), kind=share.kinds[0])


def _at_targets(total: Tensor, dim: int, index: TargetIndex) -> Tensor:
    return mark(total, dim % total.dim(), kind=index.share.kinds[1])


def _reduce(_: Fetched, name: str, arguments: dict[str, Any]) -> Any:
    total, dim, index = arguments.pop("input"), arguments.pop("dim"), arguments.pop("index")
    if not isinstance(index, TargetIndex):
        return NotImplemented
    return _at_targets(getattr(total, name)(dim, index.plain, **arguments), dim, index)


ADDS = words("scatter_add scatter_add_ index_add index_add_ scatter_reduce_")
"""Functions that add up rows by an index."""


@collective
def added(share: RowShare, name: str, args: Any, kwargs: Any) -> Any:
    """Return sums over all ranks of rows by group; None if the function adds no marked rows."""
    arguments = bound(name, args, kwargs)
    total, dim, index = arguments["input"], arguments["dim"], arguments["index"]
    values = arguments.get("src", arguments.get("source"))
    if axis_of(index) is None and axis_of(values) != dim % total.dim():
        return None
    if axis_of(total) == dim % total.dim():
        # Rows are added to own rows, not to groups.
        return None
    if "reduce" in arguments:
        raise InputError(
            f"torch.{name}: it reduces rows of all nodes or edges by groups; over ranks only sums "
            "and means of groups are supported"
        )
    added = getattr(torch.zeros_like(total), name.removesuffix("_"))(dim, index, values)
    added = rank_sum(added, share.sums)
    return total.add_(added) if name.endswith("_") else total + added


_HANDLERS: Mapping[str, Callable[[Fetched, str, dict[str, Any]], Any]] = {
    "index_select": _select,
    "gather": _select,
    "__getitem__": _item,
    "__setitem__": _set_item,
    "scatter_add": _add,
    "scatter_add_": _add,
    "index_add": _add,
    "index_add_": _add,
    "scatter_reduce": _reduce,
    "scatter_reduce_": _reduce,
}


def _of_edges(name: str, edges: EdgeList, args: Any, kwargs: Any) -> Any:
    """Return the result of a function of edges (2, E)."""
    numbers, source_row = edges.plain, edges.source_row

    def row(number: int) -> Tensor:
        kind = Sources if number == source_row else TargetIndex
        return kind.of(numbers[number], edges.share)

    if name == "unbind" and args[1:] in ((), (0,)):
        return row(0), row(1)
    if name == "flip" and args[1:] in (([0],), (0,)):
        return EdgeList.of(numbers.flip([0]), edges.share, 1 - source_row)
    if name == "__getitem__":
        key = args[1] if isinstance(args[1], tuple) else (args[1],)
        if isinstance(key[0], int):
            picked = row(key[0] % 2)
            return picked if len(key) == 1 else _like(picked, plain(picked)[key[1:]])
        if key[0] == [1, 0] and len(key) == 1:
            return EdgeList.of(numbers[[1, 0]], edges.share, 1 - source_row)
        if key[0] == slice(None) and held(key) is None:
            return EdgeList.of(numbers[args[1]], edges.share, source_row)
    if name == "index_select" and args[1] in (1, -1):
        return EdgeList.of(numbers.index_select(*args[1:]), edges.share, source_row)
    if name in ("contiguous", "clone", "detach", "to", "long"):
        return EdgeList.of(getattr(numbers, name)(*args[1:], **kwargs), edges.share, source_row)
    return NotImplemented


def _like(index: Any, numbers: Tensor) -> Any:
    if isinstance(index, EdgeList):
        return EdgeList.of(numbers, index.share, index.source_row)
    return type(index).of(numbers, index.share) if isinstance(index, NodeIndex) else numbers


def held(values: Any) -> Index | None:
    """Return the first index among values, including items of lists and tuples."""
    for value in values:
        if isinstance(value, Index):
            return value
        if isinstance(value, (list, tuple)):
            inner = held(value)
            if inner is not None:
                return inner
    return None


def plain(values: Any) -> Any:
    """Return values with numbers in place of indices."""
    if isinstance(values, Index):
        return values.plain
    if isinstance(values, dict):
        return {name: plain(value) for name, value in values.items()}
    if type(values) in (list, tuple):
        return type(values)(map(plain, values))
    return values


def _only_targets(values: Any) -> bool:
    return all(
        isinstance(value, TargetIndex) if isinstance(value, Index) else _only_targets(value)
        for value in values
        if isinstance(value, (Index, list, tuple))
    )


def _refusal(name: str, held: Index) -> InputError:
    if isinstance(held, EdgePlaceholder):
        return InputError(
            f"torch.{name} on edges: with layers on operators of hpcgnn nothing else in a module "
            "can read edges; use model.name = 'pyg:...'"
        )
    kinds = {EdgeList: "edges", Sources: "the sources", TargetIndex: "the targets"}
    return InputError(
        f"torch.{name} on {kinds[type(held)]} of edges: it has no meaning over ranks, and "
        "its module is not distributed"
    )
