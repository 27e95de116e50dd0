"""Distributed sparse matrices: a block row on each rank, split into local and ghost columns.

`read_adjacency` brings the chosen relations of a store onto the ranks, `DistCSR` splits them,
`normalise` scales them, and `AggregationOperator` and
`AttentionOperator` are what layers aggregate with.
"""

from hpcgnn.sparse.active import active_sets, restrict
from hpcgnn.sparse.assemble import PatternRows, read_adjacency
from hpcgnn.sparse.dynamic_scores import DynamicScores
from hpcgnn.sparse.kept import KeptProduct
from hpcgnn.sparse.local import MAIN, LocalCSR
from hpcgnn.sparse.matrix import DistCSR
from hpcgnn.sparse.memory import LocalMatrix, Memory
from hpcgnn.sparse.normalise import column_mean, row_mean, symmetric, unscaled
from hpcgnn.sparse.operator import (
    AggregationOperator,
    AttentionOperator,
    OperatorSize,
    RankSums,
    Softmax,
    Transposed,
)
from hpcgnn.sparse.order import ComputationOrder, choose_order, heads_share_input
from hpcgnn.sparse.relations import read_relations, reverse_rows, stack_relations
from hpcgnn.sparse.scores import AdditiveScores, BlockDraw, EdgeDraw, Gradients, Scores
from hpcgnn.sparse.shared_heads import InputGradients, SharedHeads, WholePattern
from hpcgnn.sparse.softmax import SoftmaxState

__all__ = [
    "MAIN",
    "AdditiveScores",
    "AggregationOperator",
    "AttentionOperator",
    "BlockDraw",
    "ComputationOrder",
    "DistCSR",
    "DynamicScores",
    "EdgeDraw",
    "Gradients",
    "InputGradients",
    "KeptProduct",
    "LocalCSR",
    "LocalMatrix",
    "Memory",
    "OperatorSize",
    "PatternRows",
    "RankSums",
    "Scores",
    "SharedHeads",
    "Softmax",
    "SoftmaxState",
    "Transposed",
    "WholePattern",
    "active_sets",
    "choose_order",
    "column_mean",
    "heads_share_input",
    "read_adjacency",
    "read_relations",
    "restrict",
    "reverse_rows",
    "row_mean",
    "stack_relations",
    "symmetric",
    "unscaled",
]
