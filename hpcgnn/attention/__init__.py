"""Attention over a distributed pattern of edges: scores, softmax states, the pass over all ranks.

Layers attend through an `AttentionOperator`; `DistributedAttention` is the product loop with a
softmax. No array of edges is ever made.
"""

from hpcgnn.attention.distributed import DistributedAttention
from hpcgnn.attention.exact import ExactAttention, PushedSums
from hpcgnn.attention.operator import AttentionOperator, SharedHeads, WholePattern
from hpcgnn.attention.relations import RelationScores
from hpcgnn.attention.scores import (
    AdditiveScores,
    AttentionInput,
    DynamicScores,
    ProductScores,
    Scores,
)
