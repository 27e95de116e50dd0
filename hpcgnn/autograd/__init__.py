"""Differentiable torch functions over distributed operators; layers below do not use torch."""

from hpcgnn.autograd.activation_checkpointing import Step, run_steps
from hpcgnn.autograd.aggregate import aggregate
from hpcgnn.autograd.attention.additive import Heads, ScoresOf, attend, edge_draw
from hpcgnn.autograd.attention.products import ProductHeads, attend_products
from hpcgnn.autograd.attention.relations import RelationHeads, attend_relations
from hpcgnn.autograd.dot_products import pair_products
from hpcgnn.autograd.dropout import DropoutKey, dropout
from hpcgnn.autograd.epilogue import WIDENED, Epilogue
from hpcgnn.autograd.graph_pooling import (
    CopiesOfGraph,
    GraphMembers,
    GraphRows,
    GraphSums,
    max_of_graphs,
    mean_of_graphs,
    rows_at_nodes,
    softmax_of_graphs,
    sum_of_graphs,
)
from hpcgnn.autograd.linear.graph import graph_linear
from hpcgnn.autograd.linear.node_types import linear_by_type, typed_linear
from hpcgnn.autograd.linear.relations import relation_linear
from hpcgnn.autograd.losses.mapped_rows import MappedRows, late_maps
from hpcgnn.autograd.losses.softmax import cross_entropies, cross_entropy_sum
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.messages.chain import (
    ACTIVATIONS,
    Chain,
    ChainMap,
    layer_norm,
    run_chain,
)
from hpcgnn.autograd.messages.edge_messages import (
    EdgeInputs,
    EdgeModule,
    EdgeResult,
    reduce_messages,
)
from hpcgnn.autograd.moments import ChosenSums, DistinctSums, moments, standardise
from hpcgnn.autograd.numerics.exact import ExactArithmetic
from hpcgnn.autograd.numerics.integers import IntegerArithmetic, check_integers
from hpcgnn.autograd.numerics.mixed import PRECISIONS, blend, widened
from hpcgnn.autograd.numerics.plain import arithmetic, computing_with, loss_sum
from hpcgnn.autograd.own_share import add_own_share, add_share, map_with_share
from hpcgnn.autograd.recompute import relu, relu_, rematerialised
from hpcgnn.autograd.rows import RequestedRows, rows_at, take_rows
from hpcgnn.autograd.sparse_features import SparseFeatures
