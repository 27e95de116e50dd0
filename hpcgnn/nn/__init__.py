"""Layers and models: plain torch modules over aggregation operators.

A model receives a `GraphView` (its operators and node ids) and node features, and returns one row
of logits a node. A new model is a file here and an entry in `MODELS`.
"""

from hpcgnn.nn.appnp import APPNP
from hpcgnn.nn.correct_smooth import CorrectAndSmooth, Propagation
from hpcgnn.nn.edge_linear import EdgeLinear, EdgeNetwork
from hpcgnn.nn.edge_states import EdgeStateModel
from hpcgnn.nn.gat import GAT, GATv2
from hpcgnn.nn.gcn import GCN
from hpcgnn.nn.gcnii import GCNII
from hpcgnn.nn.ggnn import (
    GGNN,
    PROPAGATORS,
    GGNNShape,
    Propagator,
    PropagatorName,
    candidate_loss,
    make_ggnn,
    make_propagator,
)
from hpcgnn.nn.gin import GIN
from hpcgnn.nn.hgt import HGT
from hpcgnn.nn.layered import LayeredModel
from hpcgnn.nn.linear import Linear, xavier_linear
from hpcgnn.nn.links import LINK_LOSSES, SCORERS, LinkModel, Scorer, make_link_model
from hpcgnn.nn.losses import MeanLoss
from hpcgnn.nn.mixhop import MixHop
from hpcgnn.nn.model import (
    ACTIVATIONS,
    EDGE_READER,
    JUMPING,
    GraphView,
    LayerView,
    Model,
    ModelShape,
    NodeModel,
    NodeTraits,
    TrainableModule,
)
from hpcgnn.nn.node_types import (
    InputLayers,
    NodeFeatures,
    TypedModel,
    TypedRows,
    draw_vectors,
)
from hpcgnn.nn.norm import NORMS, NORMS_OVER_NODES, BatchNorm, GraphNorm, LayerNorm, Norm, make_norm
from hpcgnn.nn.readout import READOUTS, GraphModel, Readout, make_graph_model
from hpcgnn.nn.registry import MODELS, find_model, make_model
from hpcgnn.nn.rgcn import RGCN
from hpcgnn.nn.sage import GraphSAGE
from hpcgnn.nn.sign import SIGN
from hpcgnn.nn.transformer import Transformer

__all__ = [
    "ACTIVATIONS",
    "APPNP",
    "EDGE_READER",
    "GAT",
    "GCN",
    "GCNII",
    "GGNN",
    "GIN",
    "HGT",
    "JUMPING",
    "LINK_LOSSES",
    "MODELS",
    "NORMS",
    "NORMS_OVER_NODES",
    "PROPAGATORS",
    "READOUTS",
    "RGCN",
    "SCORERS",
    "SIGN",
    "BatchNorm",
    "CorrectAndSmooth",
    "EdgeLinear",
    "EdgeNetwork",
    "EdgeStateModel",
    "GATv2",
    "GGNNShape",
    "GraphModel",
    "GraphNorm",
    "GraphSAGE",
    "GraphView",
    "InputLayers",
    "LayerNorm",
    "LayerView",
    "LayeredModel",
    "Linear",
    "LinkModel",
    "MeanLoss",
    "MixHop",
    "Model",
    "ModelShape",
    "NodeFeatures",
    "NodeModel",
    "NodeTraits",
    "Norm",
    "Propagation",
    "Propagator",
    "PropagatorName",
    "Readout",
    "Scorer",
    "TrainableModule",
    "Transformer",
    "TypedModel",
    "TypedRows",
    "candidate_loss",
    "draw_vectors",
    "find_model",
    "make_ggnn",
    "make_graph_model",
    "make_link_model",
    "make_model",
    "make_norm",
    "make_propagator",
    "xavier_linear",
]
