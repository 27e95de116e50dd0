"""Torch functions over distributed operators; torch starts at this layer."""

from hpcgnn.autograd.aggregate import aggregate
from hpcgnn.autograd.arithmetic import Arithmetic, arithmetic, computing_with
from hpcgnn.autograd.attention import Heads, ScoresOf, attend, edge_draw
from hpcgnn.autograd.cross_entropy import cross_entropy_sum
from hpcgnn.autograd.dropout import DropoutKey, dropout
from hpcgnn.autograd.edge_messages import EdgeInputs, sum_messages
from hpcgnn.autograd.ending import Ending
from hpcgnn.autograd.exact import ExactArithmetic
from hpcgnn.autograd.fetch import fetch_rows
from hpcgnn.autograd.graph_linear import graph_linear
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.mixed import PRECISIONS, blend, widened
from hpcgnn.autograd.moments import moments, standardise
from hpcgnn.autograd.node_types import linear_by_type, typed_linear
from hpcgnn.autograd.relation_linear import relation_linear
from hpcgnn.autograd.saved import relu, relu_, rematerialised

__all__ = [
    "PRECISIONS",
    "Arithmetic",
    "DropoutKey",
    "EdgeInputs",
    "Ending",
    "ExactArithmetic",
    "Heads",
    "ScoresOf",
    "aggregate",
    "arithmetic",
    "attend",
    "blend",
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
    "standardise",
    "sum_messages",
    "typed_linear",
    "widened",
]
