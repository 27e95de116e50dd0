"""Layers and models: plain torch modules over aggregation operators.

A model receives a `GraphView` (its operators and node ids) and node features, and returns one row
of logits a node. A new model is a file here and an entry in `MODELS`.
"""

from hpcgnn.nn.appnp import APPNP
from hpcgnn.nn.correct_smooth import CorrectAndSmooth, Propagation
from hpcgnn.nn.gat import GAT, GATv2
from hpcgnn.nn.gcn import GCN
from hpcgnn.nn.ggnn import GGNN, GGNNShape, candidate_loss, make_ggnn
from hpcgnn.nn.ggnn_propagators import (
    PROPAGATORS,
    Propagator,
    PropagatorName,
    make_propagator,
)
from hpcgnn.nn.gin import GIN
from hpcgnn.nn.losses import multi_label_loss, single_label_loss
from hpcgnn.nn.mixhop import MixHop
from hpcgnn.nn.model import (
    REVERSED,
    WITH_SELF_LOOPS,
    Aggregations,
    GraphView,
    LayerView,
    Model,
    NodeModel,
    TrainableModule,
)
from hpcgnn.nn.norm import NORMS, BatchNorm, GraphNorm, LayerNorm, Norm, make_norm
from hpcgnn.nn.registry import MODELS, make_model
from hpcgnn.nn.rgcn import RGCN
from hpcgnn.nn.sage import GraphSAGE
from hpcgnn.nn.shape import ACTIVATIONS, JUMPING, ModelShape
from hpcgnn.nn.typed_model import InputLayers, TypedModel
from hpcgnn.nn.typed_rows import NodeFeatures, TypedRows, tensors_of

__all__ = [
    "ACTIVATIONS",
    "APPNP",
    "GAT",
    "GCN",
    "GGNN",
    "GIN",
    "JUMPING",
    "MODELS",
    "NORMS",
    "PROPAGATORS",
    "REVERSED",
    "RGCN",
    "WITH_SELF_LOOPS",
    "Aggregations",
    "BatchNorm",
    "CorrectAndSmooth",
    "GATv2",
    "GGNNShape",
    "GraphNorm",
    "GraphSAGE",
    "GraphView",
    "InputLayers",
    "LayerNorm",
    "LayerView",
    "MixHop",
    "Model",
    "ModelShape",
    "NodeFeatures",
    "NodeModel",
    "Norm",
    "Propagation",
    "Propagator",
    "PropagatorName",
    "TrainableModule",
    "TypedModel",
    "TypedRows",
    "candidate_loss",
    "make_ggnn",
    "make_model",
    "make_norm",
    "make_propagator",
    "multi_label_loss",
    "single_label_loss",
    "tensors_of",
]
