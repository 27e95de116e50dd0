"""Torch functions over distributed operators; torch starts at this layer."""

from hpcgnn.autograd.aggregate import aggregate
from hpcgnn.autograd.arithmetic import Arithmetic, arithmetic, computing_with
from hpcgnn.autograd.attention import Heads, ScoresOf, attend, edge_draw
from hpcgnn.autograd.cross_entropy import cross_entropy_sum
from hpcgnn.autograd.dropout import DropoutKey, dropout
from hpcgnn.autograd.exact import ExactArithmetic
from hpcgnn.autograd.fetch import fetch_rows
from hpcgnn.autograd.graph_linear import graph_linear
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.moments import moments
from hpcgnn.autograd.node_types import linear_by_type, typed_linear
from hpcgnn.autograd.relation_linear import relation_linear
from hpcgnn.autograd.saved import ACTIVATION_FORMATS, activations_as, relu, relu_, rematerialised

__all__ = [
    "ACTIVATION_FORMATS",
    "Arithmetic",
    "DropoutKey",
    "ExactArithmetic",
    "Heads",
    "ScoresOf",
    "activations_as",
    "aggregate",
    "arithmetic",
    "attend",
    "computing_with",
    "cross_entropy_sum",
    "dropout",
    "edge_draw",
    "fetch_rows",
    "graph_linear",
    "linear_by_type",
    "memory_of",
    "moments",
    "relation_linear",
    "relu",
    "relu_",
    "rematerialised",
    "typed_linear",
]
