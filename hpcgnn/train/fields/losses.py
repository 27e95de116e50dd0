"""The loss of one predicted step: the squared error, or the user's own function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from hpcgnn.autograd import loss_sum
from hpcgnn.config.fields import FieldsConfig
from hpcgnn.nn import GraphView
from hpcgnn.support import load_own


@dataclass(frozen=True, eq=False)
class Predicted:
    """One predicted step of one sample, as passed to a loss; rows are n local nodes or E edges.

    Parameters
    ----------
    values
        Predictions (rows, F) float64 by field, in physical units.
    truth
        (rows, F) float64 by field, for all fields of the run; NaN where missing.
    before
        (rows, F) float64 by field: the last frame that the model read.
    errors
        (n, W) float64 errors of all predicted columns, in deviations of the model's outputs; 0
        where the weight is 0.
    weights
        (n, W) float64 weights of the errors: the node's weight, 0 at fixed nodes and where the
        truth is missing.
    size
        The sum of the weights over all ranks, times all predicted columns over those of nodes.
    of_edges
        The errors, weights and size of the edges, in the order of the store.
    view
        The graph, with the operators of the model.
    positions
        (n, D) float64; None if the store has none.
    times
        The time of the last frame that was read, and the time of the prediction.
    """

    values: Mapping[str, Tensor]
    truth: Mapping[str, Tensor]
    before: Mapping[str, Tensor]
    errors: Tensor
    weights: Tensor
    size: float
    view: GraphView
    positions: Tensor | None
    times: tuple[float, float]
    of_edges: tuple[Tensor, Tensor, float]


Loss: TypeAlias = Callable[[Predicted], Tensor]
"""Returns this rank's share of the loss of a step; collective. The shares of the ranks of a grid
layer add up to the loss."""


def squared_error(step: Predicted) -> Tensor:
    """Return this rank's share of ``Σ w e² / Σ w`` over rows and columns, a float64 scalar.

    With node and edge fields, it is the mean of both, weighted by their numbers of columns.
    """
    total = torch.zeros((), dtype=torch.float64)
    for errors, weights, size in ((step.errors, step.weights, step.size), step.of_edges):
        if errors.shape[1]:
            total = total + loss_sum((weights * errors.square()).sum(1)) / size
    return total


def find_loss(options: FieldsConfig) -> Loss:
    """Return the loss of a configuration; raises `InputError` if its module cannot be loaded."""
    if not options.loss:
        return squared_error
    loss: Loss = load_own("fields.loss", options.loss, callable, "function of a step")
    return loss
