"""The mode of torch in which modules of one process run over ranks.

It sees every function of torch that a module calls. Most of them work on each row of own nodes, or
of own edges, by itself. Where edges are among the arguments the function has a meaning over ranks,
see `_HANDLERS`, or is refused by name; so is one that joins rows, see `hpcgnn.pyg.rows`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from hpcgnn.autograd import DropoutKey, dropout, moments
from hpcgnn.errors import InputError
from hpcgnn.pyg import rows
from hpcgnn.pyg.edges import DESCRIBES, Edges, EdgeShare, Index, Sources, Targets, name_of
from hpcgnn.pyg.ghosts import rank_sum
from hpcgnn.pyg.rows import axis_of, mark
from hpcgnn.spmd import collective

_DRAWS = frozenset(
    "rand rand_like randn randn_like randint randint_like randperm bernoulli bernoulli_ multinomial "
    "alpha_dropout feature_dropout feature_alpha_dropout dropout1d dropout2d dropout3d rrelu "
    "gumbel_softmax".split()
)
"""What draws numbers by the order of the rows, which is another one at each number of ranks."""

_SAME_NODES = frozenset(
    "view reshape expand expand_as unsqueeze squeeze contiguous clone detach to long flatten "
    "repeat_interleave view_as".split()
)
"""What gives the same nodes in another shape."""

_COMPARES = frozenset("eq ne __eq__ __ne__ new_zeros new_ones new_full new_empty".split())
"""What tells of numbers only whether two are the same node."""

_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "index_select": ("input", "dim", "index"),
    "gather": ("input", "dim", "index"),
    "scatter_add": ("input", "dim", "index", "src"),
    "index_add": ("input", "dim", "index", "source"),
    "scatter_reduce": ("input", "dim", "index", "src", "reduce", "include_self"),
    "__getitem__": ("input", "key"),
    "__setitem__": ("input", "key", "value"),
    "dropout": ("input", "p", "training", "inplace"),
    "batch_norm": (
        "input",
        "running_mean",
        "running_var",
        "weight",
        "bias",
        "training",
        "momentum",
        "eps",
    ),
    "instance_norm": (
        "input",
        "running_mean",
        "running_var",
        "weight",
        "bias",
        "training",
        "momentum",
        "eps",
    ),
}


def _bound(name: str, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = _ARGUMENTS[name.removesuffix("_") if name[:2] != "__" else name]
    return {**dict(zip(names, args, strict=False)), **kwargs}


class OverRanks(TorchFunctionMode):
    """Runs torch's functions over the ranks of a graph, while it is entered.

    Parameters
    ----------
    key
        The draw of dropout masks; None: nothing is dropped, whatever modules say.
    """

    def __init__(self, share: EdgeShare, key: DropoutKey | None) -> None:
        super().__init__()
        self._share, self._key, self._place = share, key, 0
        self._last: tuple[Tensor, int, int, bool, Tensor] | None = None
        self.edges: Edges | None = None
        """Those that a layer computes messages of just now: rows are then of edges."""

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, name_of(func)
        if name in _DRAWS:
            raise InputError(
                f"torch.{name}: the module draws random numbers by itself, which would depend on "
                "the number of ranks; only dropout is drawn by node"
            )
        if name == "dropout" and func is functional.dropout:
            return self._dropout(**_bound(name, args, kwargs))
        if name == "batch_norm" and func is functional.batch_norm:
            return self._batch_norm(func, **_bound(name, args, kwargs))
        if name == "instance_norm" and func is functional.instance_norm:
            return self._instance_norm(func, args, kwargs)
        held = _held((*args, *kwargs.values()))
        if held is None:
            if name in _ADDS and (over := _added(self._share, name, args, kwargs)) is not None:
                return over
            return rows.run(self._share, name, func, args, kwargs)
        if name in DESCRIBES:
            return func(*_plain(args), **_plain(kwargs))
        if name in _COMPARES:
            return _marked(func(*_plain(args), **_plain(kwargs)), 0)
        found = self._on_index(name, func, held, args, kwargs)
        if found is NotImplemented:
            raise _refusal(name, held)
        return found

    def _on_index(self, name: str, func: Any, held: Index, args: Any, kwargs: Any) -> Any:
        first = args[0] if args else None
        if name in ("cat", "concat", "concatenate"):
            return self._cat(held, *args, **kwargs)
        if isinstance(first, Edges):
            return _of_edges(name, first, args, kwargs)
        if isinstance(first, Index) and _held(args[1:]) is None:
            if name in _SAME_NODES or name in ("__getitem__", "index_select", "masked_select"):
                return _like(first, getattr(first.plain, name)(*args[1:], **kwargs))
        elif name in _HANDLERS and not isinstance(first, Index):
            return _HANDLERS[name](self, name, _bound(name, args, kwargs))
        if _only_targets((*args, *kwargs.values())):
            # Own rows have numbers as in a graph of one process.
            return func(*_plain(args), **_plain(kwargs))
        return NotImplemented

    def _cat(self, held: Index, tensors: Any, dim: int = 0) -> Any:
        plain = torch.cat([_plain(each) for each in tensors], dim)
        if isinstance(held, Edges):
            # Loops that a layer adds are at own nodes, in both rows.
            rows = {each.source_row for each in tensors if isinstance(each, Edges)}
            if dim % 2 == 0 or len(rows) > 1:
                return NotImplemented
        return _like(held, plain)

    @collective
    def fetched(self, x: Tensor, dim: int) -> Tensor:
        """Return the rows of own nodes and behind them those of other ranks."""
        state = (x._version, dim, torch.is_grad_enabled())
        if self._last is not None and self._last[0] is x and self._last[1:4] == state:
            # A layer that scores its edges reads the same rows again for their messages.
            return self._last[4]
        found = self._share.with_ghosts(x, dim)
        self._last = (x, *state, found)
        return found

    def _draw(self) -> DropoutKey | None:
        self._place += 1
        return None if self._key is None else self._key.at(self._place)

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0.0 or self._key is None:
            return input
        if p >= 1.0:
            return input * 0.0
        ids = self._share.node_ids
        if self.edges is not None and len(input) == self.edges.plain.shape[1]:
            ids = self._share.edge_ids(self.edges)
        dim = next((dim for dim, size in enumerate(input.shape) if size == len(ids)), None)
        if dim is None:
            raise InputError(
                f"torch.dropout: a tensor of shape {tuple(input.shape)} has no row for each node "
                "or edge of this rank, by which masks are drawn"
            )
        moved = input.movedim(dim, 0)
        flat = moved.reshape(len(moved), moved.shape[1:].numel())
        dropped = dropout(flat, ids, self._draw(), p).view(moved.shape).movedim(0, dim)
        return mark(input.copy_(dropped) if inplace else dropped, dim)

    @collective
    def _batch_norm(
        self,
        func: Any,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            arguments = (input, running_mean, running_var, weight, bias, False, momentum, eps)
            found: Tensor = func(*arguments)
            return found
        if input.dim() != 2:
            raise InputError(f"torch.batch_norm: {tuple(input.shape)} is not (rows, columns)")
        mean, variance, count = moments(input, self._share.sums)
        if running_mean is not None and running_var is not None and momentum is not None:
            unbiased = variance.detach() * float(count / (count - 1).clamp(min=1))
            running_mean.lerp_(mean.detach(), momentum)
            running_var.lerp_(unbiased, momentum)
        out = (input - mean) * (variance + eps).rsqrt()
        out = out if weight is None else out * weight
        return mark(out if bias is None else out + bias, 0)

    @collective
    def _instance_norm(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        given = _bound("instance_norm", args, kwargs)
        if "use_input_stats" in given:
            given["training"] = given.pop("use_input_stats")
        x = given.pop("input")
        if axis_of(x) is None or not given.get("training", True):
            found: Tensor = func(*args, **kwargs)
            return found if axis_of(x) is None else mark(found, axis_of(x) or 0)
        if x.dim() != 3 or len(x) != 1 or axis_of(x) != 2:
            raise InputError("torch.instance_norm: over ranks it takes one graph, (1, columns, N)")
        return mark(self._batch_norm(func, x[0].t(), **given).t()[None], 2)


def _marked(found: Any, axis: int) -> Any:
    return mark(found, axis) if isinstance(found, Tensor) and found.dim() > axis else found


@collective
def _select(mode: OverRanks, name: str, given: dict[str, Any]) -> Any:
    x, dim, index = given["input"], given["dim"], given["index"]
    x = mode.fetched(x, dim) if isinstance(index, Sources) else x
    return mark(getattr(x, name)(dim, _plain(index)), dim % x.dim())


@collective
def _item(mode: OverRanks, name: str, given: dict[str, Any]) -> Any:
    x, key = given["input"], given["key"]
    keys = key if isinstance(key, tuple) else (key,)
    places = [place for place, each in enumerate(keys) if isinstance(each, Index)]
    # In front of the index nothing else takes a dimension away.
    if len(places) > 1 or any(each != slice(None) for each in keys[: places[0]]):
        return NotImplemented
    x = mode.fetched(x, places[0]) if isinstance(keys[places[0]], Sources) else x
    return mark(x[_plain(key)], places[0])


def _set_item(mode: OverRanks, name: str, given: dict[str, Any]) -> Any:
    x, key, value = given["input"], given["key"], given["value"]
    if not isinstance(key, Index):
        return NotImplemented
    numbers = key.plain
    if numbers.numel() and int(numbers.max()) >= len(x):
        raise InputError("torch.__setitem__: rows of other ranks are assigned to")
    x[numbers] = value
    return None


@collective
def _add(mode: OverRanks, name: str, given: dict[str, Any]) -> Any:
    """Return sums at own rows, of those at sources taken home to the owners."""
    total, dim, index = given.pop("input"), given.pop("dim"), given.pop("index")
    values = given.pop("src" if "src" in given else "source")
    if given or not isinstance(index, (Sources, Targets)):
        return NotImplemented
    if isinstance(index, Targets):
        return mark(getattr(total, name)(dim, index.plain, values), dim % total.dim())
    share, shape = index.share, list(total.shape)
    share.check_rows(total, dim)
    shape[dim] = len(share.ids)
    added = getattr(values.new_zeros(shape), name.removesuffix("_"))(dim, index.plain, values)
    home = share.take_home(added, dim)
    return mark(total.add_(home) if name.endswith("_") else total + home, dim % total.dim())


def _reduce(mode: OverRanks, name: str, given: dict[str, Any]) -> Any:
    total, dim, index = given.pop("input"), given.pop("dim"), given.pop("index")
    if not isinstance(index, Targets):
        return NotImplemented
    return mark(getattr(total, name)(dim, index.plain, **given), dim % total.dim())


_ADDS = frozenset("scatter_add scatter_add_ index_add index_add_ scatter_reduce_".split())


@collective
def _added(share: EdgeShare, name: str, args: Any, kwargs: Any) -> Any:
    """Return sums of rows by groups that all ranks share; None where no rows are added."""
    given = _bound(name, args, kwargs)
    total, dim, index = given["input"], given["dim"], given["index"]
    values = given.get("src", given.get("source"))
    if axis_of(index) is None and axis_of(values) != dim % total.dim():
        return None
    if "reduce" in given:
        raise InputError(
            f"torch.{name}: it reduces rows of all nodes or edges by groups; over ranks only sums "
            "and means of groups are known"
        )
    added = getattr(torch.zeros_like(total), name.removesuffix("_"))(dim, index, values)
    added = rank_sum(added, share.sums)
    return total.add_(added) if name.endswith("_") else total + added


_HANDLERS: Mapping[str, Callable[[OverRanks, str, dict[str, Any]], Any]] = {
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


def _of_edges(name: str, edges: Edges, args: Any, kwargs: Any) -> Any:
    """Return what a function gives of edges (2, E)."""
    plain, source_row = edges.plain, edges.source_row

    def row(number: int) -> Tensor:
        kind = Sources if number == source_row else Targets
        return kind.of(plain[number], edges.share)

    if name == "unbind" and args[1:] in ((), (0,)):
        return row(0), row(1)
    if name == "flip" and args[1:] in (([0],), (0,)):
        return Edges.of(plain.flip([0]), edges.share, 1 - source_row)
    if name == "__getitem__":
        key = args[1] if isinstance(args[1], tuple) else (args[1],)
        if isinstance(key[0], int):
            found = row(key[0] % 2)
            return found if len(key) == 1 else _like(found, _plain(found)[key[1:]])
        if key[0] == [1, 0] and len(key) == 1:
            return Edges.of(plain[[1, 0]], edges.share, 1 - source_row)
        if key[0] == slice(None) and _held(key) is None:
            return Edges.of(plain[args[1]], edges.share, source_row)
    if name == "index_select" and args[1] in (1, -1):
        return Edges.of(plain.index_select(*args[1:]), edges.share, source_row)
    if name in ("contiguous", "clone", "detach", "to", "long"):
        return Edges.of(getattr(plain, name)(*args[1:], **kwargs), edges.share, source_row)
    return NotImplemented


def _like(index: Any, numbers: Tensor) -> Any:
    if isinstance(index, Edges):
        return Edges.of(numbers, index.share, index.source_row)
    return type(index).of(numbers, index.share) if isinstance(index, Index) else numbers


def _held(values: Any) -> Index | None:
    """Return the first index among values, and the items of lists and tuples among them."""
    for each in values:
        if isinstance(each, Index):
            return each
        if isinstance(each, (list, tuple)):
            found = _held(each)
            if found is not None:
                return found
    return None


def _plain(values: Any) -> Any:
    """Return values with numbers in place of indices."""
    if isinstance(values, Index):
        return values.plain
    if isinstance(values, dict):
        return {name: _plain(each) for name, each in values.items()}
    if type(values) in (list, tuple):
        return type(values)(map(_plain, values))
    return values


def _only_targets(values: Any) -> bool:
    return all(
        isinstance(each, Targets) if isinstance(each, Index) else _only_targets(each)
        for each in values
        if isinstance(each, (Index, list, tuple))
    )


def _refusal(name: str, held: Index) -> InputError:
    what = {Edges: "edges", Sources: "the sources", Targets: "the targets"}
    return InputError(
        f"torch.{name} on {what[type(held)]} of edges: it has no meaning over ranks, so that its module is "
        "not distributed"
    )
