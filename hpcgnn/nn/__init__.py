"""Layers and models: plain torch modules over aggregation operators.

A model receives a `GraphView` (its operators and node ids) and node features, and returns one row
of logits a node. A new model is a file here and an entry in `MODELS`.
"""

from hpcgnn.nn.gcn import GCN
from hpcgnn.nn.losses import multi_label_loss, single_label_loss
from hpcgnn.nn.model import Aggregations, GraphView, LayerView, Model, ModelShape
from hpcgnn.nn.registry import MODELS, make_model
from hpcgnn.nn.sage import GraphSAGE

__all__ = [
    "GCN",
    "MODELS",
    "Aggregations",
    "GraphSAGE",
    "GraphView",
    "LayerView",
    "Model",
    "ModelShape",
    "make_model",
    "multi_label_loss",
    "single_label_loss",
]
