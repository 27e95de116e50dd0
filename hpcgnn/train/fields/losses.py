"""The loss of one predicted step: the squared error, or a function of the user's own."""

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
    """One step of one sample, as a loss sees it; rows are the n local nodes, or the E edges.

    Parameters
    ----------
    values
        By field (rows, F) float64, what is predicted, in physical units.
    truth
        By field (rows, F) float64, NaN where missing; of all fields of the run.
    before
        By field (rows, F) float64, the frame that the model read last.
    errors
        (n, W) float64, of all predicted columns, in deviations of what the model gives; 0 where
        nothing counts.
    weights
        (n, W) float64, what each error counts: the node's weight, 0 at fixed nodes and where the
        truth is missing.
    size
        The sum of these over all ranks, times all predicted columns over those of nodes.
    of_edges
        The same three of the edges, in the order of the store.
    view
        The graph, with the operators of the model.
    positions
        (n, D) float64; None where the store has none.
    times
        Of the last frame that was read, and of what is predicted.
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
"""Returns this rank's share of the loss of a step; collective. Shares of a layer of the grid add up
to the loss."""


def squared_error(step: Predicted) -> Tensor:
    """Return the share of ``Σ w e² / Σ w`` over rows and columns, a scalar in float64.

    With fields of nodes and of edges it is the mean of both, by the columns that each has.
    """
    total = torch.zeros((), dtype=torch.float64)
    for errors, weights, size in ((step.errors, step.weights, step.size), step.of_edges):
        if errors.shape[1]:
            total = total + loss_sum((weights * errors.square()).sum(1)) / size
    return total


def find_loss(options: FieldsConfig) -> Loss:
    """Return the loss of a configuration; raises `InputError` where its module does not load."""
    if not options.loss:
        return squared_error
    loss: Loss = load_own("fields.loss", options.loss, callable, "function of a step")
    return loss
