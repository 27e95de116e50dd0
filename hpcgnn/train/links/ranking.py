"""How well scores tell edges from wrong ones, exactly and over all ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from hpcgnn.comm import ProcessGrid, allreduce_max, allreduce_sum
from hpcgnn.comm.collect_rows import in_order
from hpcgnn.spmd import collective
from hpcgnn.typing import FloatArray, GlobalIndices

HITS = (1, 10)
"""The ranks k of Hits@k."""

_STEPS: Mapping[str, float] = MappingProxyType({"float32": 2.0**-18, "float64": 2.0**-32})


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of the edges of a rank.

    Parameters
    ----------
    edges
        (E,) float64 of the edges.
    wrong
        (E, K) float64 of their wrong ends.
    """

    edges: FloatArray
    wrong: FloatArray

    @collective
    def settled(self, grid: ProcessGrid, dtype: str) -> "Scores":
        """Return whole numbers in the order of the scores, equal for those that rounding parts.

        Nodes with equal inputs tie; the last bits of their scores depend on which rank computed
        them, and so would metrics.

        Parameters
        ----------
        dtype
            float32 or float64, which the scores were computed in.
        """
        largest = np.array([max(np.abs(each).max(initial=0) for each in (self.edges, self.wrong))])
        allreduce_max(grid.layer, largest)
        step = max(float(largest[0]), np.finfo(np.float64).tiny) * _STEPS[dtype]
        return Scores(np.round(self.edges / step), np.round(self.wrong / step))


@collective
def rank_metrics(grid: ProcessGrid, scores: Scores) -> dict[str, float]:
    """Return mrr, hitsK and auc; empty when no rank has an edge.

    The rank of an edge is one more than its wrong ends with larger scores, and half of those with
    an equal one. AUC is the chance that an edge's score exceeds that of a wrong end of any edge,
    equals counting half.
    """
    larger = (scores.wrong > scores.edges[:, None]).sum(axis=1)
    equal = (scores.wrong == scores.edges[:, None]).sum(axis=1)
    ranks = 1 + larger + equal / 2
    sums = np.array([len(ranks), (1 / ranks).sum(), *((ranks <= k).sum() for k in HITS)])
    allreduce_sum(grid.layer, sums)
    auc = _area(grid, scores)
    if sums[0] == 0:
        return {}
    means = dict(zip(("mrr", *(f"hits{k}" for k in HITS)), sums[1:] / sums[0], strict=True))
    return {**{name: float(value) for name, value in means.items()}, "auc": auc}


def _area(grid: ProcessGrid, scores: Scores) -> float:
    """Return the area under the curve: the scores of all ranks sorted, equals on one rank."""
    values = np.concatenate([scores.edges, scores.wrong.reshape(-1)])
    is_edge = np.zeros(len(values), np.int64)
    is_edge[: len(scores.edges)] = 1
    keys, is_edge = in_order(grid.layer, _ordered_bits(values), _ordered_bits(values), is_edge)
    first = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1)) if len(keys) else keys
    edges = np.add.reduceat(is_edge, first) if len(first) else is_edge
    wrong = np.diff(np.append(first, len(keys))) - edges
    counts = np.array(grid.layer.allgather((int(edges.sum()), int(wrong.sum()))))
    below = np.cumsum(wrong) - wrong + counts[: grid.layer.rank, 1].sum()
    wins = np.array([float((edges * (below + wrong / 2)).sum())])
    allreduce_sum(grid.layer, wins)
    num_edges, num_wrong = counts.sum(axis=0)
    return float(wins[0]) / max(float(num_edges) * float(num_wrong), 1.0)


def _ordered_bits(values: FloatArray) -> GlobalIndices:
    """Return int64 numbers in the order of float64 values, equal for equal ones."""
    # Minus zero becomes zero.
    bits = (values + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))
