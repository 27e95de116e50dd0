"""The models by the name that configurations use."""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from hpcgnn.errors import InputError
from hpcgnn.nn.appnp import APPNP
from hpcgnn.nn.gat import GAT, GATv2
from hpcgnn.nn.gcn import GCN
from hpcgnn.nn.gin import GIN
from hpcgnn.nn.mixhop import MixHop
from hpcgnn.nn.model import Model, NodeModel
from hpcgnn.nn.rgcn import RGCN
from hpcgnn.nn.sage import GraphSAGE
from hpcgnn.nn.shape import ModelShape
from hpcgnn.nn.typed_model import TypedModel

__all__ = ["MODELS", "make_model"]


MODELS: Mapping[str, type[Model]] = MappingProxyType(
    {
        "gcn": GCN,
        "sage": GraphSAGE,
        "gat": GAT,
        "gatv2": GATv2,
        "rgcn": RGCN,
        "mixhop": MixHop,
        "gin": GIN,
        "appnp": APPNP,
    }
)


def make_model(
    name: str, shape: ModelShape, *, directed: bool, seed: int, dtype: torch.dtype
) -> NodeModel:
    """Return the model called `name`, equal on all ranks for equal arguments.

    Not collective. Where the shape has node types it is a `TypedModel`.

    Parameters
    ----------
    name
        A key of `MODELS`.
    shape
        Its sizes.
    directed
        Whether the graph has a second direction to aggregate along.
    seed
        Seed of the initial weights; torch's global generator is left as it was.
    dtype
        torch.float32 or torch.float64. Weights are drawn in float64, so both start alike.

    Raises
    ------
    InputError
        When there is no such model, or the options of its shape do not fit each other.
    """
    if name not in MODELS:
        raise InputError(f"model.name {name!r} is unknown; choose one of {', '.join(MODELS)}")
    MODELS[name].check(shape)
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_default_dtype(torch.float64)
        try:
            body = MODELS[name](shape, directed=directed)
            types = shape.type_features
            model: NodeModel = TypedModel(types, body) if types else body
        finally:
            torch.set_default_dtype(before)
    return model.to(dtype)
