"""Which graphs share a supergraph: first-fit decreasing over shuffled windows."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.typing import Array, GlobalIndices

__all__ = ["Window", "first_fit_decreasing", "pack_lanes"]

_PAGE_GRAPHS = 64


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


@dataclass(frozen=True, eq=False)
class Window:
    """Graphs that are read together: sorted numbers, and the positions that share a supergraph."""

    graphs: GlobalIndices
    bins: tuple[GlobalIndices, ...]


def pack_lanes(
    sizes: Array, budget: int, lanes: int, window: int, rng: np.random.Generator
) -> list[list[Window]]:
    """Deal graphs out to lanes, each of which packs its own into supergraphs; every graph once.

    Not collective.

    A step takes one supergraph of each lane, so lanes are what ranks share. Pages of neighbouring
    graphs are shuffled and dealt out; a lane reads windows of several pages, packs the graphs of a
    window by first-fit decreasing, and shuffles its supergraphs, so that a step sees small graphs
    and large ones. The supergraphs of a step differ little in nodes, which balances ranks.

    Parameters
    ----------
    sizes
        (n,) nodes of each graph.
    budget
        Nodes of a supergraph.
    lanes
        Supergraphs of a step.
    window
        Graphs that a lane packs together.
    rng
        Draws the order.

    Returns
    -------
    list of list of Window
        The windows of each lane, in order.
    """
    page = max(1, min(_PAGE_GRAPHS, window // 8, len(sizes) // (8 * lanes)))
    firsts = rng.permutation(np.arange(0, len(sizes), page))
    dealt = []
    for lane in range(lanes):
        mine = firsts[lane::lanes]
        pages = max(1, window // page)
        windows = []
        for low in range(0, len(mine), pages):
            chosen = np.sort(mine[low : low + pages])[:, None] + np.arange(page)
            graphs = chosen[chosen < len(sizes)]
            # Equal sizes would keep the order of the store.
            mixed = rng.permutation(len(graphs))
            packed = first_fit_decreasing(sizes[graphs[mixed]], budget)
            order = rng.permutation(len(packed))
            windows.append(Window(graphs, tuple(mixed[packed[place]] for place in order)))
        dealt.append(windows)
    return dealt
