"""The gated graph neural network of the dense-hardware paper, over any propagator.

Shape suffixes: N nodes, H hidden width, P types of edges, Q rows of a propagator, M candidates.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpcgnn.autograd import DropoutKey, dropout, memory_of
from hpcgnn.banded import Supergraph
from hpcgnn.nn.ggnn_propagators import Propagator
from hpcgnn.nn.model import TrainableModule

__all__ = ["GGNN", "GGNNShape", "candidate_loss", "make_ggnn"]


@dataclass(frozen=True, kw_only=True)
class GGNNShape:
    """Sizes of a model.

    Parameters
    ----------
    num_buckets
        Buckets of hashed sub-tokens.
    num_types
        Types of edges, reverses included.
    hidden
        Width of node states.
    steps
        Steps of message passing.
    dropout
        Probability for the messages that come into the GRU cell.
    """

    num_buckets: int
    num_types: int
    hidden: int = 128
    steps: int = 8
    dropout: float = 0.0


class GGNN(TrainableModule):
    """Embeds the sub-tokens of nodes, passes messages in T gated steps, scores candidates.

    Not collective.

    ``E(t+1) = GRU(sum_p A_p E(t) W_p + b_p per edge, E(t))``: equation (1) of the paper with a
    bias for every type. The weights know nothing of the propagator, so a model may be trained with
    one and evaluated with another.

    Parameters
    ----------
    shape
        Its sizes.
    """

    def __init__(self, shape: GGNNShape) -> None:
        super().__init__()
        width = shape.hidden
        self.shape = shape
        self.embedding = nn.EmbeddingBag(shape.num_buckets, width, mode="mean")
        nn.init.normal_(self.embedding.weight, std=0.5)
        self.weight_PHH = nn.Parameter(torch.empty(shape.num_types, width, width))
        self.bias_PH = nn.Parameter(torch.zeros(shape.num_types, width))
        # A node hears of a few types only: gains as of one map, not of all of them stacked.
        nn.init.normal_(self.weight_PHH, std=width**-0.5)
        self.cell = nn.GRUCell(width, width)
        # A bias would shift all candidates alike.
        self.readout = nn.Linear(width, 1, bias=False)

    def input_parameters(self) -> list[nn.Parameter]:
        """Return the embeddings."""
        return list(self.embedding.parameters())

    def forward(self, graph: Supergraph, propagator: Propagator, key: DropoutKey | None) -> Tensor:
        """Return the logits (M,) of the candidates of `graph`.

        Not collective.

        Parameters
        ----------
        graph
            The supergraph.
        propagator
            One over its edges.
        key
            The draw of dropout masks; None: evaluation.
        """
        place = self.bias_PH.device
        tokens = torch.from_numpy(graph.subtokens).to(place)
        starts = torch.from_numpy(graph.subtoken_starts).to(place)
        node_ids = torch.from_numpy(graph.node_ids).to(place)
        ids = memory_of(node_ids).array(node_ids)
        state_NH: Tensor = self.embedding(tokens, starts[:-1])
        for step in range(self.shape.steps):
            messages_NH = propagator(state_NH, self.weight_PHH, self.bias_PH)
            draw = None if key is None else key.at(step)
            messages_NH = dropout(messages_NH, ids, draw, self.shape.dropout)
            state_NH = self.cell(messages_NH, state_NH)
        scores: Tensor = self.readout(state_NH[torch.from_numpy(graph.candidates).to(place)])
        return scores.squeeze(1)


def make_ggnn(shape: GGNNShape, *, seed: int, dtype: torch.dtype) -> GGNN:
    """Return a new model, equal on all ranks for equal arguments.

    Not collective.

    Parameters
    ----------
    shape
        Its sizes.
    seed
        Of the initial weights; torch's global generator is left as it was.
    dtype
        torch.float32 or torch.float64. Weights are drawn in float64, so both start alike.
    """
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_default_dtype(torch.float64)
        try:
            model = GGNN(shape)
        finally:
            torch.set_default_dtype(before)
    return model.to(dtype)


def candidate_loss(
    logits_M: Tensor, graph: Supergraph, num_global: int, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return this rank's share of the mean cross entropy, and which graphs are right.

    Not collective.

    Each graph's softmax runs over its own candidates. A smoothed target gives each of c candidates
    ``smoothing / c``, and the right one the rest.

    Parameters
    ----------
    logits_M
        Scores of the candidates of `graph`.
    graph
        The supergraph.
    num_global
        Graphs of all ranks, at least 1.
    smoothing
        In [0, 1).

    Returns
    -------
    loss, correct
        A scalar, and (g,) bool: the right candidate has the highest score.
    """
    arrays = graph.candidate_graphs, graph.candidate_starts, graph.labels
    owners_M, starts, labels = (torch.from_numpy(each).to(logits_M.device) for each in arrays)
    counts = starts[1:] - starts[:-1]
    places_M = torch.arange(len(owners_M), device=logits_M.device) - starts[owners_M]
    width = int(counts.max()) if graph.num_graphs else 1
    table = logits_M.new_full((graph.num_graphs, width), -torch.inf)
    table = table.index_put((owners_M, places_M), logits_M)
    log_shares_M = functional.log_softmax(table, dim=1)[owners_M, places_M]
    sums = logits_M.new_zeros(graph.num_graphs).index_add(0, owners_M, log_shares_M)
    right = log_shares_M[starts[:-1] + labels]
    target = (1 - smoothing) * right + smoothing * sums / counts
    return -target.sum() / num_global, table.argmax(dim=1) == labels
