"""Layers and models: plain torch modules over aggregation operators.

A model receives a `GraphView` (operators and node ids) and node features, and returns a row of
logits for each node. A new model is a file in `models` and an entry in `MODELS`.
"""

from hpcgnn.nn.correct_smooth import CorrectAndSmooth, Propagation
from hpcgnn.nn.edge_linear import EdgeLinear, EdgeNetwork
from hpcgnn.nn.edge_states import EdgeStateModel
from hpcgnn.nn.edges import EdgeModel, make_edge_model
from hpcgnn.nn.layered import LayeredModel, for_loss
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.links import SCORERS, LinkModel, Scorer, make_link_model
from hpcgnn.nn.losses import LINK_LOSSES, MeanLoss
from hpcgnn.nn.model import (
    EDGE_READER,
    JUMPING,
    EmbeddingModel,
    GraphView,
    LayerView,
    Model,
    ModelShape,
    NodeModel,
    NodeTraits,
    TrainableModule,
)
from hpcgnn.nn.models.ggnn import (
    GGNN,
    PROPAGATORS,
    GGNNShape,
    Propagator,
    PropagatorName,
    candidate_loss,
    make_ggnn,
    make_propagator,
)
from hpcgnn.nn.models.registry import MODELS, find_model, make_model
from hpcgnn.nn.multi_task import HeadedModel, MultiTaskModel, make_headed_model
from hpcgnn.nn.node_types import (
    InputLayers,
    NodeFeatures,
    TypedModel,
    TypedRows,
    VectorOwners,
    draw_vectors,
)
from hpcgnn.nn.norm import NORMS, NORMS_OVER_NODES, make_norm
from hpcgnn.nn.readout import READOUTS, make_graph_model
