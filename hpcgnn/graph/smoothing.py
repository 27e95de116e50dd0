"""Set up Correct and Smooth for a stored graph: operators, known labels, logits of the result."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hpcgnn.autograd import arithmetic
from hpcgnn.graph.label_inputs import label_columns, training_mask
from hpcgnn.graph.operators import Adjacency, traced_sums
from hpcgnn.graph.read_edges import check_weights
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.nn import CorrectAndSmooth, Propagation
from hpcgnn.operator import Aggregation, AggregationOperator, Transposed
from hpcgnn.sparse import DistCSR, read_adjacency
from hpcgnn.spmd import collective
from hpcgnn.storage import NodeBlock

# The logits of probabilities 0 and 1 are infinite.
_TINY = 1e-7


@dataclass(frozen=True, eq=False)
class Smoother:
    """Corrects and smooths logits with the labels of the training nodes.

    `truth` (N, C) has these labels as zeros and ones, `known` (N,) is a mask of training nodes.
    """

    stages: CorrectAndSmooth
    truth: Tensor
    known: Tensor
    multi_label: bool

    @collective
    def __call__(self, logits_NC: Tensor) -> Tensor:
        """Return logits whose softmax, or sigmoid, is the smoothed probability."""
        rows = arithmetic().sigmoid(logits_NC) if self.multi_label else logits_NC.softmax(dim=1)
        smoothed = self.stages(rows, self.truth, self.known).clamp(_TINY, 1 - _TINY)
        # torch.logit rounds the last elements of an array, which fill no vector, differently.
        odds = smoothed / (1 - smoothed) if self.multi_label else smoothed
        return odds.log()


@collective
def make_smoother(stored: StoredRows, nodes: NodeBlock) -> Smoother | None:
    """Return the smoother of ``[correct_and_smooth]``; None if it is off.

    It propagates over the undirected union of ``graph.relations`` without added self loops.

    Raises `CollectiveInputError` if a block of the store cannot be read, or a weight is negative.
    """
    context, store, row_map = stored.context, stored.store, stored.row_map
    grid, config, device = context.grid, context.config, context.device
    options = config.correct_and_smooth
    if not options.enabled:
        return None
    assert nodes.labels is not None
    assert nodes.split is not None
    rows = read_adjacency(grid, store, row_map, config.graph.relations, undirected=True)
    weights = rows.weights if config.graph.weights == "use" else None
    matrix = DistCSR.from_rows(row_map, rows.indptr, rows.columns, weights)
    check_weights(context, matrix)
    kinds = (Aggregation.SYMMETRIC, Aggregation.MEAN_IN)
    dtype = np.dtype(config.train.dtype)
    adjacency = Adjacency(context.operators(), matrix, kinds, dtype, nodes.original_id)
    products = adjacency.products()
    mean = products.operators[Aggregation.MEAN_IN]
    operators: dict[str, AggregationOperator] = {
        "DAD": products.operators[Aggregation.SYMMETRIC],
        "DA": mean,
        # The transpose of D^-1 A, since A is symmetric.
        "AD": Transposed(mean),
    }
    stages = CorrectAndSmooth(
        Propagation(
            operators[options.correct_matrix], options.correct_alpha, options.correct_steps
        ),
        Propagation(operators[options.smooth_matrix], options.smooth_alpha, options.smooth_steps),
        options.fixed_scale if options.scale == "fixed" else None,
        traced_sums(grid, context.trace),
    )
    truth = label_columns(nodes.labels, nodes.split, store.num_classes, dtype)
    known = device.tensor(training_mask(nodes.labels, nodes.split))
    return Smoother(stages, device.tensor(truth), known, store.multi_label)
