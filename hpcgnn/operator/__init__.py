"""What a layer multiplies with: a linear map of node rows and its adjoint, however it is made.

`AggregationOperator` is the protocol that products, bands and sampled subgraphs fulfil;
`Transposed` and `KeptProduct` wrap one. An `Aggregation` says which scaled matrix it is, and
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
    is_worth_keeping,
)
from hpcgnn.operator.protocol import (
    AggregationOperator,
    ChoosingOperator,
    KeptProduct,
    Meanwhile,
    OperatorSize,
    RankSums,
    Transposed,
)
