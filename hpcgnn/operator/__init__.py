"""Aggregation operators of layers: linear maps of node rows with their adjoints.

`AggregationOperator` is the protocol that products, bands and sampled subgraphs implement;
`Transposed` and `CachedProduct` wrap an operator. An `Aggregation` names a scaled matrix, and
`choose_order` decides between A (X W) and (A X) W.
"""

from hpcgnn.operator.aggregation import Aggregation, on_graph
from hpcgnn.operator.order import (
    PROJECT_FIRST,
    ComputationOrder,
    RelationOrder,
    choose_order,
    choose_relation_order,
    heads_share_input,
    is_worth_caching,
)
from hpcgnn.operator.protocol import (
    AggregationOperator,
    CachedProduct,
    ChoosingOperator,
    Meanwhile,
    OperatorSize,
    RankSums,
    Transposed,
)
