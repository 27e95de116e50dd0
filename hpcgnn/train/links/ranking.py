"""How well scores tell edges from wrong ones, exactly and over all ranks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from hpcgnn.comm import ProcessGrid, allreduce_max, allreduce_sum, redistribute
from hpcgnn.comm.collect_rows import owners_in_order
from hpcgnn.spmd import collective
from hpcgnn.train.links.candidates import KnownTargets, ScoreBlock
from hpcgnn.train.links.edges import LinkEdges
from hpcgnn.typing import Array, FloatArray

HITS = (1, 10)
"""The ranks k of Hits@k."""

_STEPS: Mapping[str, float] = MappingProxyType({"float32": 2.0**-18, "float64": 2.0**-32})


@dataclass(frozen=True, eq=False)
class LinkScores:
    """Scores of the edges of a rank.

    Parameters
    ----------
    edges
        (E,) float64 of the edges.
    wrong
        (E, K) float64 of their wrong ends.
    step
        Scores that differ by less than half of it count as equal; the same on all ranks.
    """

    edges: FloatArray
    wrong: FloatArray
    step: float

    @classmethod
    @collective
    def of(
        cls, grid: ProcessGrid, edges: FloatArray, wrong: FloatArray, dtype: str
    ) -> "LinkScores":
        """Return the scores with their step.

        Nodes with equal inputs tie; the last bits of their scores depend on which rank computed
        them, and so would metrics.

        Parameters
        ----------
        dtype
            float32 or float64, which the scores were computed in.
        """
        largest = np.array([max(np.abs(scores).max(initial=0) for scores in (edges, wrong))])
        allreduce_max(grid.layer, largest)
        step = max(float(largest[0]), np.finfo(np.float64).tiny) * _STEPS[dtype]
        return cls(edges, wrong, step)

    @property
    def bounds(self) -> tuple[FloatArray, FloatArray]:
        """(E,) the lowest and the highest score that equals that of each edge."""
        return self.edges - self.step / 2, self.edges + self.step / 2

    def ranks(self) -> FloatArray:
        """Return (E,) the rank of each edge among its wrong ends; see `rank_metrics`."""
        low, high = self.bounds
        larger = (self.wrong > high[:, None]).sum(axis=1)
        return _rank(larger, (self.wrong >= low[:, None]).sum(axis=1))


def _rank(larger: Array, not_lower: Array) -> FloatArray:
    """Return ranks from counts of larger scores, and of larger and equal ones."""
    return 1 + (larger + not_lower) / 2


@dataclass(frozen=True, eq=False)
class LinkRanks:
    """Ranks of the edges of a rank among all nodes of the target's type.

    Parameters
    ----------
    raw
        (E,) float64 among all nodes but the two of the edge.
    filtered
        (E,) float64 without the nodes that are known targets of the source, too.
    """

    raw: FloatArray
    filtered: FloatArray


@collective
def rank_among_all(
    blocks: Iterator[ScoreBlock],
    edges: LinkEdges,
    scores: LinkScores,
    known_targets: KnownTargets,
    types: Array | None,
) -> LinkRanks:
    """Return the ranks of edges among all nodes of the target's type.

    Parameters
    ----------
    blocks
        Scores of the edges' sources and all nodes.
    known_targets
        The targets of the edges' sources.
    types
        (num_rows,) uint8 the node types of all rows; None without types.
    """
    low, high = scores.bounds
    counts = np.zeros((2, 2, len(edges)), np.int64)
    for block in blocks:
        some, block_scores = block.queries, block.scores
        # No edge ends where it begins.
        block.set_aside(edges.sources[some])
        block.set_aside(edges.targets[some])
        if types is not None:
            block.keep(types[edges.targets[some]][:, None] == types[block.rows])
        known_rows, columns = known_targets.between(some, block.first, block_scores.shape[1])
        known_scores = block_scores[known_rows, columns]
        for (raw, filtered), bound, exceeds in zip(
            counts, (high[some], low[some]), (np.greater, np.greater_equal), strict=True
        ):
            # Compared in the type of the scores.
            bound = bound.astype(block_scores.dtype)
            number = np.count_nonzero(exceeds(block_scores, bound[:, None]), axis=1)
            gone = exceeds(known_scores, bound[known_rows])
            raw[some] += number
            filtered[some] += number - np.bincount(known_rows[gone], minlength=len(number))
    (larger, larger_new), (not_lower, not_lower_new) = counts
    return LinkRanks(_rank(larger, not_lower), _rank(larger_new, not_lower_new))


@collective
def rank_metrics(grid: ProcessGrid, ranks: FloatArray) -> dict[str, float]:
    """Return mrr and hitsK of the ranks (E,) of the edges of all ranks; empty without edges.

    The rank of an edge is one more than its wrong ends with larger scores, and half of those with
    an equal one.
    """
    sums = np.array([len(ranks), (1 / ranks).sum(), *((ranks <= k).sum() for k in HITS)])
    allreduce_sum(grid.layer, sums)
    if sums[0] == 0:
        return {}
    means = sums[1:] / sums[0]
    return dict(zip(("mrr", *(f"hits{k}" for k in HITS)), means.tolist(), strict=True))


@collective
def area_under_curve(grid: ProcessGrid, scores: LinkScores) -> float:
    """Return the chance that an edge's score exceeds that of a wrong end of any edge.

    Equals count half. The scores of all ranks are sorted, equals on one rank.
    """
    # Whole numbers are equal for scores that rounding parts; those of edges become odd.
    whole = [np.round(values / scores.step) for values in (scores.edges, scores.wrong.reshape(-1))]
    keys = np.concatenate([values.astype(np.int64) for values in whole])
    owners = owners_in_order(grid.layer, keys)
    keys *= 2
    keys[: len(scores.edges)] += 1
    (keys,) = redistribute(grid.layer, owners, keys)
    keys.sort()
    first = np.flatnonzero(np.diff(keys >> 1, prepend=(keys[:1] >> 1) - 1)) if len(keys) else keys
    edges = np.add.reduceat(keys & 1, first) if len(first) else keys
    wrong = np.diff(np.append(first, len(keys))) - edges
    counts = np.array(grid.layer.allgather((int(edges.sum()), int(wrong.sum()))))
    below = np.cumsum(wrong) - wrong + counts[: grid.layer.rank, 1].sum()
    wins = np.array([float((edges * (below + wrong / 2)).sum())])
    allreduce_sum(grid.layer, wins)
    num_edges, num_wrong = counts.sum(axis=0)
    return float(wins[0]) / max(float(num_edges) * float(num_wrong), 1.0)
