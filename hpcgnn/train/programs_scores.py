"""What a model says about the holes of program graphs: shares of candidates, and how good they are.

Messages pass along all edges, whatever the training dropped, unless a band is asked for.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.comm import ProcessGrid, allreduce_sum
from hpcgnn.nn import GGNN, candidate_loss
from hpcgnn.storage import InstanceSplit, InstanceStore
from hpcgnn.train.programs_facts import JUDGED
from hpcgnn.train.programs_input import Prepared, ProgramInput
from hpcgnn.typing import Array, FloatArray, GlobalIndices

__all__ = ["Scores", "by_split", "chance", "judge", "score"]


@dataclass(frozen=True, eq=False)
class Scores:
    """Graphs and what a model says of each.

    Parameters
    ----------
    graphs
        (g,) int64 numbers in the store, rising.
    shares
        (g, width) float32: the candidates' probabilities; 0 for those that a graph lacks.
    """

    graphs: GlobalIndices
    shares: FloatArray

    @property
    def chosen(self) -> Array:
        """(g,) int32: the candidate with the largest share."""
        chosen: Array = self.shares.argmax(axis=1).astype(np.int32)
        return chosen


@torch.no_grad()
def judge(grid: ProcessGrid, source: ProgramInput, model: GGNN, limit: int) -> dict[str, float]:
    """Return loss and accuracy on the first `limit` graphs of each split that is judged; 0: all.

    Collective.
    """
    sums = np.zeros((len(JUDGED), 3))
    for row, split in enumerate(JUDGED.values()):
        for each in source.evaluation(split, limit):
            logits_M = model(each.graph, each.propagator, None)
            loss, correct = candidate_loss(logits_M, each.graph, 1)
            sums[row] += [each.graph.num_graphs, float(loss), int(correct.sum())]
    allreduce_sum(grid.world, sums)
    values = {}
    for prefix, (count, loss_sum, correct_sum) in zip(JUDGED, sums, strict=True):
        if count:
            values[f"{prefix}_loss"] = loss_sum / count
            values[f"{prefix}_accuracy"] = correct_sum / count
    return values


def score(
    grid: ProcessGrid, prepared: Iterable[Prepared], model: GGNN, width: int
) -> Scores | None:
    """Return the scores of all ranks' graphs on rank 0, None elsewhere.

    Collective.

    A graph has a few numbers only, so rank 0 gathers them all.

    Parameters
    ----------
    grid
        The ranks.
    prepared
        Supergraphs of this rank.
    model
        The model.
    width
        Candidates of the graph with most.
    """
    pieces = grid.world.gather([_shares(model, each, width) for each in prepared], root=0)
    if pieces is None:
        return None
    rows = [row for piece in pieces for row in piece]
    graphs = np.concatenate([np.empty(0, np.int64), *(row.graphs for row in rows)])
    shares = np.concatenate([np.empty((0, width), np.float32), *(row.shares for row in rows)])
    order = np.argsort(graphs)
    return Scores(graphs[order], shares[order])


@torch.no_grad()
def _shares(model: GGNN, each: Prepared, width: int) -> Scores:
    graph = each.graph
    logits_M = model(graph, each.propagator, None)
    owners = torch.from_numpy(graph.candidate_graphs)
    places = torch.arange(len(owners)) - torch.from_numpy(graph.candidate_starts)[owners]
    table = torch.full((graph.num_graphs, width), -torch.inf, dtype=logits_M.dtype)
    table[owners, places] = logits_M.cpu()
    return Scores(each.numbers, table.softmax(dim=1).to(torch.float32).numpy())


def chance(store: InstanceStore, split: InstanceSplit) -> float | None:
    """Return the accuracy of guesses on a split, None where it has no graphs.

    Not collective.
    """
    low, high = store.split_range(split)
    counts = store.graphs["num_candidates"][low:high]
    return float((1 / counts).mean()) if high > low else None


def by_split(store: InstanceStore, scores: Scores) -> dict[str, dict[str, Any]]:
    """Return graphs, accuracy, loss and chance of each split that has scores.

    Not collective.
    """
    rows = store.graphs[scores.graphs]
    right = scores.shares[np.arange(len(rows)), rows["label"]]
    found = {}
    for split in InstanceSplit:
        mine = rows["split"] == split
        if mine.any():
            found[split.name.lower()] = {
                "graphs": int(mine.sum()),
                "accuracy": float((scores.chosen == rows["label"])[mine].mean()),
                "loss": float(-np.log(right[mine]).mean()),
                "chance": chance(store, split),
            }
    return found
