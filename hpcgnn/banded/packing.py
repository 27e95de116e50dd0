"""Which graphs share a supergraph: first-fit decreasing over a shuffled window."""

from collections.abc import Iterator

import numpy as np

from hpcgnn.typing import Array, GlobalIndices

__all__ = ["first_fit_decreasing", "pack_shuffled"]


def first_fit_decreasing(sizes: Array, budget: int) -> list[Array]:
    """Pack items into bins of at most `budget`; larger items get a bin each.

    Not collective.

    Parameters
    ----------
    sizes
        (n,) nodes.
    budget
        Nodes of a bin.

    Returns
    -------
    list of array
        Positions (int64) of the items of each bin; the bins in order of their opening.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    first_open: dict[int, int] = {}
    for item in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[item])
        # Sizes fall, so a bin that had no room for an equal size has none now.
        start = first_open.get(size, 0)
        place = next((b for b in range(start, len(bins)) if room[b] >= size), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(budget)
        bins[place].append(item)
        room[place] -= size
        first_open[size] = place
    return [np.array(each, np.int64) for each in bins]


def pack_shuffled(
    sizes: Array, budget: int, group: int, window: int, rng: np.random.Generator
) -> Iterator[list[GlobalIndices]]:
    """Yield, step by step, the graphs of `group` supergraphs; every graph once.

    Not collective.

    Graphs are shuffled, packed window by window, and the bins of a window shuffled, so that a step
    does not see graphs by size. The bins of a step differ little in nodes, which balances ranks.
    Bins that do not fill a step pass to the next window; those of the last step may be empty.

    Parameters
    ----------
    sizes
        (n,) nodes of each graph.
    budget
        Nodes of a supergraph.
    group
        Supergraphs of a step.
    window
        Graphs that are packed together.
    rng
        Draws the order.
    """
    order = rng.permutation(len(sizes))
    waiting: list[GlobalIndices] = []
    for low in range(0, len(order), window):
        chosen = order[low : low + window]
        packed = [chosen[each] for each in first_fit_decreasing(sizes[chosen], budget)]
        waiting += [packed[place] for place in rng.permutation(len(packed))]
        while len(waiting) >= group:
            yield waiting[:group]
            waiting = waiting[group:]
    if waiting:
        missing = group - len(waiting)
        yield waiting + [np.empty(0, np.int64)] * missing
