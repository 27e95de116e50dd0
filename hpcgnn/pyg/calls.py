"""Let modules written for one process run over ranks when they are called with a rank's edges."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from torch import Tensor, nn

from hpcgnn.autograd import DropoutKey
from hpcgnn.errors import InputError
from hpcgnn.pyg.builtin_layers import ViewOf, run_on_operators
from hpcgnn.pyg.edges import EdgeList, EdgeShare, Index, RowShare
from hpcgnn.pyg.row_axis import axis_of, mark
from hpcgnn.pyg.torch_function_mode import OverRanks
from hpcgnn.pyg.unsupported_layers import check_layers
from hpcgnn.spmd import collective

_Module = TypeVar("_Module", bound=nn.Module)

_running: list[OverRanks] = []

_shares: WeakKeyDictionary[nn.Module, EdgeShare] = WeakKeyDictionary()
"""The edges that each module was last called with."""


@contextmanager
def distributed(share: RowShare, key: DropoutKey | None) -> Iterator[None]:
    """Run torch's functions over the ranks of a graph; see `OverRanks`.

    An outer one, of a module distributed twice or with a distributed part, is passive meanwhile: it
    would sum over the ranks again.
    """
    mode = OverRanks(share, key)
    for outer in _running:
        outer.passive = True
    _running.append(mode)
    try:
        with mode:
            yield
    finally:
        _running.pop()
        if _running:
            _running[-1].passive = False


@collective
def mark_rows(share: RowShare, values: Any) -> None:
    """Mark the tensors among arguments that have a row for each own node or edge on every rank."""
    one_type = None in share.types
    for value in values:
        if isinstance(value, Index):
            continue
        if isinstance(value, Tensor):
            # What is known of it from an earlier call, other ranks may not know.
            vars(value).pop("_total", None)
            # With several types, `divide` has marked them, or the keys of a dict tell.
            if one_type and value.dim():
                # A rank may have marked a tensor in an earlier call that is new on another rank.
                is_new = axis_of(value) is None
                misses = np.array([is_new and len(value) not in share.lengths], np.float64)
                share.sums(misses)
                if is_new and not misses[0]:
                    mark(value, 0)
        elif isinstance(value, (list, tuple)):
            mark_rows(share, value)
        elif isinstance(value, dict) and one_type:
            mark_rows(share, value.values())
        elif isinstance(value, dict):
            for key, item in value.items():
                if isinstance(item, Tensor) and not isinstance(item, Index) and item.dim():
                    mark(item, 0, kind=key if key in share.types else None)
        elif hasattr(value, "edge_index"):
            mark_rows(share, vars(value).get("_store", vars(value)).values())


def mark_layers(module: nn.Module) -> None:
    """Add hooks that tell when a layer computes messages, since rows are then those of edges."""
    # Recognise message-passing layers by a method, without importing torch_geometric.
    layers: list[Any] = list(module.modules())
    for layer in layers:
        if hasattr(layer, "register_propagate_forward_pre_hook"):
            layer.register_propagate_forward_pre_hook(_start_messages)
            layer.register_message_forward_hook(_end_messages)
            layer.register_edge_update_forward_pre_hook(_start_messages)
            layer.register_edge_update_forward_hook(_end_messages)


def prepare(module: nn.Module, view_of: ViewOf | None = None) -> None:
    """Prepare a module to run over ranks; raises `InputError` if one of its layers cannot.

    With `view_of`, layers that equal a built-in one run on operators, see `builtin_layers`.
    """
    check_layers(module)
    mark_layers(module)
    if view_of is not None:
        run_on_operators(module, view_of, lambda: _running[-1].draw())


def _start_messages(_layer: nn.Module, inputs: Any) -> None:
    if _running and isinstance(inputs[0], EdgeList):
        _running[-1].edges = inputs[0]


def _end_messages(_layer: nn.Module, _inputs: Any, _out: Any) -> None:
    if _running:
        _running[-1].edges = None


def share_of(modules: Iterable[nn.Module]) -> EdgeShare:
    """Return the edges that one of `modules` was called with; `InputError` if none was."""
    for layer in modules:
        if layer in _shares:
            return _shares[layer]
    raise InputError("none of the modules has run over ranks; give one from hpcgnn.distribute")


class _Calls:
    """Enters the mode before each call of a module, and leaves it afterwards."""

    def __init__(self, seed: int) -> None:
        self._seed, self._step = seed, 0
        self._entered: list[Any] = []

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        edges = _edges_in((*args, *kwargs.values()))
        if edges is None:
            raise InputError(
                f"{type(module).__name__} is distributed, but no edges of a distributed graph are "
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


def _edges_in(values: Any) -> EdgeList | None:
    for value in values:
        if isinstance(value, EdgeList):
            return value
        inner: Any = ()
        if isinstance(value, (list, tuple)):
            inner = value
        elif isinstance(value, dict):
            inner = value.values()
        elif not isinstance(value, Tensor) and hasattr(value, "edge_index"):
            inner = (value.edge_index,)
        edges = _edges_in(inner)
        if edges is not None:
            return edges
    return None


def distribute(module: _Module, seed: int = 0, view_of: ViewOf | None = None) -> _Module:
    """Make a module run over ranks, and return it; see `hpcgnn.distribute` and `prepare`."""
    prepare(module, view_of)
    calls = _Calls(seed)
    module.register_forward_pre_hook(calls.enter, with_kwargs=True)
    module.register_forward_hook(calls.leave, with_kwargs=True, always_call=True)
    return module
