"""The models by their names in configurations, and models from a user's own modules."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hpcgnn.errors import InputError, one_line
from hpcgnn.nn.model import GraphView, Model, ModelShape, NodeModel, weights_from_seed
from hpcgnn.nn.models.appnp import APPNP
from hpcgnn.nn.models.gat import GAT, GATv2
from hpcgnn.nn.models.gatedgcn import GatedGCN
from hpcgnn.nn.models.gcn import GCN
from hpcgnn.nn.models.gcnii import GCNII
from hpcgnn.nn.models.gin import GIN
from hpcgnn.nn.models.gine import GINE
from hpcgnn.nn.models.hgt import HGT
from hpcgnn.nn.models.meshgraphnet import MeshGraphNet
from hpcgnn.nn.models.mixhop import MixHop
from hpcgnn.nn.models.nnconv import NNConv
from hpcgnn.nn.models.pna import PNA
from hpcgnn.nn.models.pyg import ModuleModel, model_of
from hpcgnn.nn.models.pyg_operators import operator_model_of
from hpcgnn.nn.models.rgat import RGAT
from hpcgnn.nn.models.rgcn import RGCN
from hpcgnn.nn.models.sage import GraphSAGE
from hpcgnn.nn.models.sign import SIGN
from hpcgnn.nn.models.transformer import Transformer
from hpcgnn.nn.node_types import TypedModel
from hpcgnn.operator import Aggregation
from hpcgnn.support import load_own

MODELS: Mapping[str, type[Model]] = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "gat": GAT,
    "gatv2": GATv2,
    "rgcn": RGCN,
    "rgat": RGAT,
    "mixhop": MixHop,
    "gin": GIN,
    "gine": GINE,
    "nnconv": NNConv,
    "pna": PNA,
    "gatedgcn": GatedGCN,
    "meshgraphnet": MeshGraphNet,
    "appnp": APPNP,
    "gcnii": GCNII,
    "sign": SIGN,
    "transformer": Transformer,
    "hgt": HGT,
}


_OF_MODULES: Mapping[str, Callable[..., type[ModuleModel]]] = {
    "pyg:": model_of,
    "pyg-kernels:": operator_model_of,
}
"""Prefix of the ``package.module:Class`` of a module written for one process -> function that makes
its model: with its own layers, or with layers on operators of this package."""


def find_model(name: str) -> type[Model]:
    """Return the class of a model: of `MODELS`, or ``package.module:Class``, see `load_own`.

    With a prefix of `_OF_MODULES` it is the model of a class of torch modules.

    Raises `InputError` if there is no such model, or its module does not load.
    """
    if name in MODELS:
        return MODELS[name]
    if ":" not in name:
        raise InputError(
            f"model.name = {name!r}: choose one of {', '.join(MODELS)}, or package.module:Class"
        )
    for prefix, of_modules in _OF_MODULES.items():
        if name.startswith(prefix):
            inner = name.removeprefix(prefix)
            kind = load_own("model.name", inner, _is_a(nn.Module), "subclass of torch.nn.Module")
            return of_modules(kind)
    model: type[Model] = load_own("model.name", name, _is_a(Model), "subclass of hpcgnn.nn.Model")
    if inspect.isabstract(model):
        missing = ", ".join(sorted(model.__abstractmethods__))
        raise InputError(f"model.name = {name!r}: it does not implement {missing}")
    if not all(isinstance(each, Aggregation) for each in model.aggregations):
        raise InputError(
            f"model.name = {name!r}: aggregations are members of hpcgnn.Aggregation, not "
            f"{model.aggregations}"
        )
    return model


def _is_a(base: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, type) and issubclass(value, base)


def make_model(
    name: str, shape: ModelShape, *, directed: bool, seed: int, dtype: torch.dtype
) -> NodeModel:
    """Return the model `name`, see `find_model`, equal on all ranks for equal arguments.

    If the shape has node types, it is a `TypedModel`. `directed` tells whether the graph has a
    second direction to aggregate along. Weights are drawn in float64, so float32 and float64 start
    from the same values; torch's global generator is not changed.

    Raises `InputError` if there is no such model, if options of its shape are incompatible, or if
    the constructor of a user's model fails. A user's model raises it if its output does not fit.
    """
    kind = find_model(name)
    kind.check(shape)
    try:
        with weights_from_seed(seed):
            body = kind(shape, directed=directed)
            types = shape.type_features
            model: NodeModel = TypedModel(types, body) if types else body
            if name not in MODELS:
                _check_tensors(name, body)
                body.register_forward_hook(partial(_check_output, name))
        return model.to(dtype)
    except Exception as error:
        if name in MODELS or isinstance(error, InputError):
            raise
        fault = f"{type(error).__name__}: {one_line(error)}"
        raise InputError(f"model.name = {name!r}: its constructor raises {fault}") from error


def _check_tensors(name: str, model: Model) -> None:
    """Raise an `InputError` for a tensor that training would change or cannot train."""
    parameters, buffers = model.named_parameters(), model.named_buffers()
    for which, tensor in chain(parameters, buffers):
        kind = "without sizes" if is_lazy(tensor) else str(tensor.dtype).removeprefix("torch.")
        trains = tensor.is_floating_point() or not isinstance(tensor, nn.Parameter)
        if is_lazy(tensor) or tensor.is_complex() or not trains:
            raise InputError(
                f"model.name = {name!r}: {which} is {kind}; parameters are real numbers, with "
                "sizes; integers may be buffers"
            )


def _check_output(name: str, model: Model, arguments: tuple[Any, ...], output: Any) -> None:
    graph: GraphView = arguments[0]
    ids = graph.active[-1].output_ids if graph.active else graph.node_ids
    shape = len(ids), model.shape.num_classes
    found = type(output).__name__
    if isinstance(output, torch.Tensor):
        if output.dtype in (torch.float32, torch.float64) and output.shape == shape:
            return
        found = f"{output.dtype} {tuple(output.shape)}"
    raise InputError(
        f"model.name = {name!r}: forward returns {found}, not float32 or float64 (output nodes, "
        f"outputs) = {shape}"
    )
