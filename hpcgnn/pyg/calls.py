"""Modules of one process that run over ranks whenever they are called with edges of a rank."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from hpcgnn.autograd import DropoutKey
from hpcgnn.errors import InputError
from hpcgnn.pyg.edges import Edges, EdgeShare, Index, RowShare
from hpcgnn.pyg.marks import mark
from hpcgnn.pyg.mode import OverRanks
from hpcgnn.pyg.own_layers import ViewOf, run_on_operators
from hpcgnn.pyg.refused import check_layers

_Module = TypeVar("_Module", bound=nn.Module)

_running: list[OverRanks] = []

_shares: WeakKeyDictionary[nn.Module, EdgeShare] = WeakKeyDictionary()
"""The edges that a module was called with last."""


@contextmanager
def distributed(share: RowShare, key: DropoutKey | None) -> Iterator[None]:
    """Run torch's functions over the ranks of a graph; see `OverRanks`."""
    mode = OverRanks(share, key)
    _running.append(mode)
    try:
        with mode:
            yield
    finally:
        _running.pop()


def mark_rows(share: RowShare, values: Any) -> None:
    """Note which of some tensors have a row for each own node or edge."""
    one_type = None in share.types
    for each in values:
        if isinstance(each, Index):
            continue
        if isinstance(each, Tensor):
            # Of several types `divide` has marked them, or a dict tells.
            if one_type and each.dim() and len(each) in share.lengths:
                mark(each, 0)
        elif isinstance(each, (list, tuple)):
            mark_rows(share, each)
        elif isinstance(each, dict) and one_type:
            mark_rows(share, each.values())
        elif isinstance(each, dict):
            for key, value in each.items():
                if isinstance(value, Tensor) and not isinstance(value, Index) and value.dim():
                    mark(value, 0, kind=key if key in share.types else None)
        elif hasattr(each, "edge_index"):
            mark_rows(share, vars(each).get("_store", vars(each)).values())


def mark_layers(module: nn.Module) -> None:
    """Let the layers of a module tell when they compute messages, whose rows are edges'."""
    # The base of all layers is known without its library.
    layers: list[Any] = list(module.modules())
    for layer in layers:
        if hasattr(layer, "register_propagate_forward_pre_hook"):
            layer.register_propagate_forward_pre_hook(_start_messages)
            layer.register_message_forward_hook(_end_messages)
            layer.register_edge_update_forward_pre_hook(_start_messages)
            layer.register_edge_update_forward_hook(_end_messages)


def prepare(module: nn.Module, view_of: ViewOf | None = None) -> None:
    """See that a module may run over ranks; raises `InputError` where a layer of it may not.

    With `view_of` its layers that equal a built-in one run on operators, see `own_layers`.
    """
    check_layers(module)
    mark_layers(module)
    if view_of is not None:
        run_on_operators(module, view_of, lambda: _running[-1].draw())


def _start_messages(_layer: nn.Module, inputs: Any) -> None:
    if _running and isinstance(inputs[0], Edges):
        _running[-1].edges = inputs[0]


def _end_messages(_layer: nn.Module, _inputs: Any, _out: Any) -> None:
    if _running:
        _running[-1].edges = None


def share_of(modules: Iterable[nn.Module]) -> EdgeShare:
    """Return the edges that one of some modules was called with; raises `InputError` for none."""
    for each in modules:
        if each in _shares:
            return _shares[each]
    raise InputError("none of the modules has run over ranks; give one that hpcgnn.distribute took")


class _Calls:
    """Enters the mode before each call of a module, and leaves it behind."""

    def __init__(self, seed: int) -> None:
        self._seed, self._step = seed, 0
        self._entered: list[Any] = []

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        edges = _edges_in((*args, *kwargs.values()))
        if edges is None:
            raise InputError(
                f"{type(module).__name__} is distributed, and no edges of a distributed graph are "
                "among its arguments; call it with those of graph.data"
            )
        _shares[module] = edges.share
        key = DropoutKey(self._seed, self._step) if module.training else None
        self._step += module.training
        context = distributed(edges.share, key)
        mark_rows(edges.share, (*args, *kwargs.values()))
        context.__enter__()
        self._entered.append(context)

    def leave(self, _module: nn.Module, _args: Any, _kwargs: Any, _out: Any) -> None:
        if self._entered:
            self._entered.pop().__exit__(None, None, None)


def _edges_in(values: Any) -> Edges | None:
    for each in values:
        if isinstance(each, Edges):
            return each
        inner: Any = ()
        if isinstance(each, (list, tuple)):
            inner = each
        elif isinstance(each, dict):
            inner = each.values()
        elif not isinstance(each, Tensor) and hasattr(each, "edge_index"):
            inner = (each.edge_index,)
        edges = _edges_in(inner)
        if edges is not None:
            return edges
    return None


def distribute(module: _Module, seed: int = 0, view_of: ViewOf | None = None) -> _Module:
    """Let a module run over ranks, and return it; see `hpcgnn.distribute` and `prepare`."""
    prepare(module, view_of)
    calls = _Calls(seed)
    module.register_forward_pre_hook(calls.enter, with_kwargs=True)
    module.register_forward_hook(calls.leave, with_kwargs=True, always_call=True)
    return module
