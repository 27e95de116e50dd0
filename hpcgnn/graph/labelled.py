"""What is predicted on a rank: labels and roles of its nodes, or of the graphs that it owns."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from hpcgnn.autograd import GraphMembers
from hpcgnn.comm import ProcessGrid, RowMap, RowRequest, agree, bcast, redistribute
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.graph.stored import StoredRows
from hpcgnn.graph.targets import fingerprint_of, read_targets, target_scale
from hpcgnn.spmd import collective
from hpcgnn.storage import NodeBlock
from hpcgnn.typing import Array, GlobalIndices, Mask


@dataclass(frozen=True)
class TargetScale:
    """The numbers that are predicted: their names, and what models see them scaled by."""

    names: tuple[str, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Labelled:
    """What is predicted on a rank.

    `ids` (n,) int64 are original ids of nodes, or numbers of graphs, rising; `labels` and `split`
    are of these, as in `NodeBlock`, None where the store has none; of numbers to predict (n, T)
    float64, scaled, NaN where missing. `num_graphs` counts the graphs of all ranks, where each is
    predicted as a whole, else 0; without `targets` classes are predicted. `fingerprint` is of the
    store and the file of targets, where there is one; else empty.
    """

    ids: GlobalIndices
    labels: Array | None
    split: Array | None
    members: GraphMembers | None = None
    num_graphs: int = 0
    targets: TargetScale | None = None
    fingerprint: str = ""


Label: TypeAlias = Callable[[StoredRows, NodeBlock], Labelled]
"""Returns what is predicted, of the rows and the node data of this rank; collective."""


@dataclass(frozen=True)
class Reading:
    """What an objective reads of a stored graph.

    `fields` are node data that the store must hold: "features", "labels", "split"; `label` finds
    what is predicted.
    """

    fields: tuple[str, ...]
    label: Label


@collective
def label_nodes(stored: StoredRows, nodes: NodeBlock) -> Labelled:
    """Return the nodes with their labels, or with the numbers of ``graph.targets``.

    Raises `CollectiveInputError` when the file of targets does not read, or does not fit the graph.
    """
    return _with_targets(stored, Labelled(nodes.original_id, nodes.labels, nodes.split))


@collective
def label_graphs(stored: StoredRows, nodes: NodeBlock) -> Labelled:
    """Return the graphs that this rank owns, with the labels and the role of their nodes.

    Raises `CollectiveInputError` when the nodes have no graphs, two of one graph have not the same
    label or role, or the file of targets does not fit.
    """
    context, path = stored.context, stored.store.path
    grid = context.grid
    with agree(grid.world):
        if nodes.graph is None:
            raise InputError(
                f"train.task = 'graphs': {path} is one graph; convert many with a column graph in "
                "--nodes, or a data set that has them"
            )
    assert nodes.graph is not None
    with context.trace.span("plan.graphs"):
        members, ids = find_members(context, nodes.graph)
        # Numbers of a file take the place of labels.
        stored_labels = None if context.config.graph.targets else nodes.labels
        labels = _of_graphs(members, stored_labels)
        split = _of_graphs(members, nodes.split)
    with agree(grid.world):
        for what, values in (("label", labels), ("set of the split", split)):
            if values is not None and (wrong := values[1]).any():
                raise InputError(
                    f"{path}: nodes of graph {ids[int(np.argmax(wrong))]} have not all the same "
                    f"{what}; train.task = 'graphs' predicts one for each graph, and train.task = "
                    "'full' those of nodes"
                )
    labelled = Labelled(
        ids,
        None if labels is None else labels[0],
        None if split is None else split[0],
        members,
        int(grid.layer.allreduce(len(ids))),
    )
    return _with_targets(stored, labelled)


@collective
def _with_targets(stored: StoredRows, labelled: Labelled) -> Labelled:
    """Return it with the numbers of ``graph.targets`` in place of labels, where there are some."""
    context, store = stored.context, stored.store
    grid, config, content = context.grid, context.config, ""
    if not config.graph.targets:
        return labelled
    with context.trace.span("read.nodes"), agree(grid.world):
        targets = read_targets(config, store, labelled.ids, labelled.num_graphs)
        if grid.rank == 0:
            content = fingerprint_of(config, store)
    assert labelled.split is not None
    where = f"graph.targets: {config.graph.targets}"
    scale = TargetScale(targets.names, *target_scale(grid, where, targets, labelled.split))
    scaled = (targets.values - np.array(scale.means)) / np.array(scale.deviations)
    fingerprint = bcast(grid.world, content)
    return replace(labelled, labels=scaled, targets=scale, fingerprint=fingerprint)


@collective
def find_members(context: Context, graph: GlobalIndices) -> tuple[GraphMembers, GlobalIndices]:
    """Return the nodes of graphs, and the numbers (G,) of those that this rank owns.

    A rank owns a range of the numbers, whatever ranks have the nodes; `graph` (N,) int64 has the
    number of each local node's graph.
    """
    grid, layer = context.grid, context.grid.layer
    own_graphs, pieces = np.unique(graph, return_inverse=True)
    last = int(max(layer.allgather(int(graph.max(initial=-1)))))
    counts = np.concatenate([[0], np.cumsum(layer.allgather(len(own_graphs)))]).astype(np.int64)
    piece_map = RowMap(counts, grid.block)
    numbers = np.arange(piece_map.start, piece_map.stop, dtype=np.int64)
    owners = even_rows(last + 1, grid).owner(own_graphs)
    # In the order of the ranks, so that pieces rise.
    numbers, graph_of_pieces = redistribute(layer, owners, numbers, own_graphs)
    ids, places = np.unique(graph_of_pieces, return_inverse=True)
    device = context.device
    members = GraphMembers(
        pieces=device.tensor(pieces.astype(np.int64)),
        num_pieces=len(own_graphs),
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
def _of_graphs(members: GraphMembers, values: Array | None) -> tuple[Array, Mask] | None:
    """Return (G, ...) what a node of each graph has, and whether another one has something else."""
    if values is None:
        return None
    assert members.request is not None
    pieces, graphs = members.pieces.cpu().numpy(), members.graphs.cpu().numpy()
    values_of_pieces, differ = _first_of(values, pieces, members.num_pieces)
    rows, wrong = members.request.rows(values_of_pieces), members.request.rows(differ)
    of_graphs, unequal = _first_of(rows, graphs, members.num_graphs)
    unequal[graphs[wrong]] = True
    return of_graphs, unequal


def _first_of(values: Array, groups: GlobalIndices, count: int) -> tuple[Array, Mask]:
    first = np.empty(count, np.int64)
    # Written backwards, so that the first of each group stays.
    first[groups[::-1]] = np.arange(len(groups) - 1, -1, -1)
    first_values, differ = values[first], np.zeros(count, np.bool_)
    unequal = values != first_values[groups]
    differ[groups[unequal if values.ndim == 1 else unequal.any(axis=1)]] = True
    return first_values, differ
