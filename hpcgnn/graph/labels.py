"""Labels and splits to predict on a rank, of its nodes or of the graphs that it owns."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from hpcgnn.autograd import GraphMembers
from hpcgnn.comm import RowMap, RowRequest, agree, bcast, redistribute
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.graph.targets import fingerprint_of, read_targets, target_scale
from hpcgnn.spmd import collective
from hpcgnn.storage import NodeBlock
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Mask


@dataclass(frozen=True)
class TargetScale:
    """The names of regression targets, with the means and deviations that they are scaled by."""

    names: tuple[str, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Labelled:
    """The nodes or graphs to predict on a rank, with their labels.

    `ids` (n,) int64 are original ids of nodes, or increasing graph numbers. `labels` and `split`
    are as in `NodeBlock`, None if the store has none; in regression, labels are (n, T) float64,
    scaled, NaN for missing. `num_graphs` counts the graphs of all ranks if each is predicted as a
    whole, else it is 0. `targets` is None for classification. `fingerprint` covers the store and
    the file of targets; it is empty without such a file.
    """

    ids: GlobalIndices
    labels: Array | None
    split: Array | None
    members: GraphMembers | None = None
    num_graphs: int = 0
    targets: TargetScale | None = None
    fingerprint: str = ""


Label: TypeAlias = Callable[[StoredRows, NodeBlock], Labelled]
"""Makes the labels from the rows and the node data of this rank; collective."""


@dataclass(frozen=True)
class Reading:
    """The data that an objective reads from a stored graph.

    `fields` are node data that the store must have: "features", "labels", "split"; `label` makes
    the labels.
    """

    fields: tuple[str, ...]
    label: Label


@collective
def label_nodes(stored: StoredRows, nodes: NodeBlock) -> Labelled:
    """Return the nodes with their labels, or with the numbers of ``graph.targets``.

    Raises `CollectiveInputError` if the file of targets cannot be read or does not fit the graph.
    """
    return _with_targets(stored, Labelled(nodes.original_id, nodes.labels, nodes.split))


@collective
def label_graphs(stored: StoredRows, nodes: NodeBlock) -> Labelled:
    """Return the graphs that this rank owns, with the label and split of their nodes.

    Raises `CollectiveInputError` if the nodes have no graph numbers, two nodes of a graph differ in
    label or split, or the file of targets does not fit.
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
        # Targets from a file replace the labels.
        stored_labels = None if context.config.graph.targets else nodes.labels
        labels = _of_graphs(members, stored_labels)
        split = _of_graphs(members, nodes.split)
    with agree(grid.world):
        for kind, values in (("label", labels), ("set of the split", split)):
            if values is not None and (differs := values[1]).any():
                raise InputError(
                    f"{path}: nodes of graph {ids[int(np.argmax(differs))]} do not all have the "
                    f"same {kind}; train.task = 'graphs' predicts one for each graph, and "
                    "train.task = 'full' those of nodes"
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
    """Replace the labels by the numbers of ``graph.targets``, if it is set."""
    context, store = stored.context, stored.store
    grid, config, content = context.grid, context.config, ""
    if not config.graph.targets:
        return labelled
    graphs = np.concatenate(grid.layer.allgather(labelled.ids)) if labelled.num_graphs else None
    with context.trace.span("read.nodes"), agree(grid.world):
        targets = read_targets(config, store, labelled.ids, graphs)
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
    """Return the members of graphs, and the numbers (G,) of the graphs that this rank owns.

    A rank owns a range of graph numbers, whichever ranks own the nodes; `graph` (N,) int64 has the
    graph number of each local node.
    """
    grid, layer = context.grid, context.grid.layer
    own_graphs, pieces = np.unique(graph, return_inverse=True)
    last = int(max(layer.allgather(int(graph.max(initial=-1)))))
    counts = np.concatenate([[0], np.cumsum(layer.allgather(len(own_graphs)))]).astype(np.int64)
    piece_map = RowMap(counts, grid.block)
    numbers = np.arange(piece_map.start, piece_map.stop, dtype=np.int64)
    owners = owners_of_graphs(own_graphs, last + 1, grid.num_blocks)
    # They arrive ordered by rank, so that piece numbers increase.
    numbers, graph_of_pieces = redistribute(layer, owners, numbers, own_graphs)
    ids, graphs = np.unique(graph_of_pieces, return_inverse=True)
    device = context.device
    members = GraphMembers(
        pieces=device.tensor(pieces.astype(np.int64)),
        num_pieces=len(own_graphs),
        graphs=device.tensor(graphs.astype(np.int64)),
        ids=device.ids(ids),
        request=RowRequest.make(layer, piece_map, numbers),
        trace=context.trace,
    )
    return members, ids


def owners_of_graphs(graphs: GlobalIndices, count: int, blocks: int) -> LocalIndices:
    """Return the block rows (m,) int32 of graph numbers, if all below `count` are divided evenly.

    Numbers may have gaps of any size, so that a block row may have more than 2^31.
    """
    firsts = np.array([count * block // blocks for block in range(1, blocks)], np.int64)
    return np.searchsorted(firsts, graphs, side="right").astype(np.int32)


@collective
def _of_graphs(members: GraphMembers, values: Array | None) -> tuple[Array, Mask] | None:
    """Return one node's value for each graph, (G, ...), and a mask (G,) of graphs with others."""
    if values is None:
        return None
    assert members.request is not None
    pieces, graphs = members.pieces.cpu().numpy(), members.graphs.cpu().numpy()
    values_of_pieces, differ = _first_of(values, pieces, members.num_pieces)
    rows, rows_differ = members.request.rows(values_of_pieces), members.request.rows(differ)
    of_graphs, unequal = _first_of(rows, graphs, members.num_graphs)
    unequal[graphs[rows_differ]] = True
    return of_graphs, unequal


def _first_of(values: Array, groups: GlobalIndices, count: int) -> tuple[Array, Mask]:
    first = np.empty(count, np.int64)
    # Assigned backwards, so that the first of each group remains.
    first[groups[::-1]] = np.arange(len(groups) - 1, -1, -1)
    first_values, differ = values[first], np.zeros(count, np.bool_)
    unequal = values != first_values[groups]
    differ[groups[unequal if values.ndim == 1 else unequal.any(axis=1)]] = True
    return first_values, differ
