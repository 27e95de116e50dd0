"""What a rank has labels and a role for: its nodes, or the graphs that it owns of many."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.autograd import GraphMembers
from hpcgnn.comm import ProcessGrid, RowMap, RowRequest, agree, redistribute
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.spmd import collective
from hpcgnn.storage import NodeBlock
from hpcgnn.typing import Array, GlobalIndices, Mask


@dataclass(frozen=True, eq=False)
class Labelled:
    """What is predicted on a rank.

    Parameters
    ----------
    ids
        (n,) int64 original ids of nodes, or numbers of graphs, rising.
    labels, split
        Of these, as in `NodeBlock`; None where the store has none.
    members
        Of graphs.
    """

    ids: GlobalIndices
    labels: Array | None
    split: Array | None
    members: GraphMembers | None = None


@collective
def find_members(context: Context, graph: GlobalIndices) -> tuple[GraphMembers, GlobalIndices]:
    """Return the nodes of graphs, and the numbers (G,) of those that this rank owns.

    A rank owns a range of the numbers, whatever ranks have the nodes.

    Parameters
    ----------
    graph
        (N,) int64 the number of the graph of each local node.
    """
    grid, layer = context.grid, context.grid.layer
    mine, pieces = np.unique(graph, return_inverse=True)
    last = int(max(layer.allgather(int(graph.max(initial=-1)))))
    counts = np.concatenate([[0], np.cumsum(layer.allgather(len(mine)))]).astype(np.int64)
    piece_map = RowMap(counts, grid.block)
    numbers = np.arange(piece_map.start, piece_map.stop, dtype=np.int64)
    owners = even_rows(last + 1, grid).owner(mine)
    # In the order of the ranks, so that pieces rise.
    numbers, found = redistribute(layer, owners, numbers, mine)
    ids, places = np.unique(found, return_inverse=True)
    device = context.device
    members = GraphMembers(
        pieces=device.tensor(pieces.astype(np.int64)),
        num_pieces=len(mine),
        graphs=device.tensor(places.astype(np.int64)),
        ids=device.ids(ids),
        request=RowRequest.make(layer, piece_map, numbers),
        trace=context.trace,
    )
    return members, ids


def even_rows(count: int, grid: ProcessGrid) -> RowMap:
    """Return which rank owns which of so many numbers."""
    return RowMap(np.arange(grid.num_blocks + 1, dtype=np.int64) * count // grid.num_blocks, 0)


@collective
def label_graphs(context: Context, nodes: NodeBlock, path: object) -> Labelled:
    """Return the graphs that this rank owns, with the labels and the role of their nodes.

    Parameters
    ----------
    path
        Of the store, for messages.

    Raises
    ------
    CollectiveInputError
        When the nodes have no graphs, or two of one graph have not the same label or role.
    """
    grid = context.grid
    with agree(grid.world):
        if nodes.graph is None:
            raise InputError(
                f"train.task = 'graphs': {path} is one graph; convert many with a column graph in "
                "--nodes, or a data set that has them"
            )
    assert nodes.graph is not None
    members, ids = find_members(context, nodes.graph)
    labels = _of_graphs(members, nodes.labels)
    split = _of_graphs(members, nodes.split)
    with agree(grid.world):
        for what, found in (("label", labels), ("set of the split", split)):
            if found is not None and (wrong := found[1]).any():
                raise InputError(
                    f"{path}: nodes of graph {ids[int(np.argmax(wrong))]} have not all the same "
                    f"{what}; train.task = 'graphs' predicts one for each graph"
                )
    return Labelled(
        ids,
        None if labels is None else labels[0],
        None if split is None else split[0],
        members,
    )


@collective
def _of_graphs(members: GraphMembers, values: Array | None) -> tuple[Array, Mask] | None:
    """Return (G, ...) what a node of each graph has, and whether another one has something else."""
    if values is None:
        return None
    assert members.request is not None
    pieces, graphs = members.pieces.cpu().numpy(), members.graphs.cpu().numpy()
    mine, differ = _first_of(values, pieces, members.num_pieces)
    rows, wrong = members.request.rows(mine), members.request.rows(differ)
    found, more = _first_of(rows, graphs, members.num_graphs)
    more[graphs[wrong]] = True
    return found, more


def _first_of(values: Array, groups: GlobalIndices, count: int) -> tuple[Array, Mask]:
    first = np.empty(count, np.int64)
    # Written backwards, so that the first of each group stays.
    first[groups[::-1]] = np.arange(len(groups) - 1, -1, -1)
    found, differ = values[first], np.zeros(count, np.bool_)
    unequal = values != found[groups]
    differ[groups[unequal if values.ndim == 1 else unequal.any(axis=1)]] = True
    return found, differ
