"""A rank's share of a store as ``torch_geometric.data.HeteroData``; types have their own widths."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch

from hpcgnn.comm import ProcessGrid, RowMap, RowRequest, agree, bcast
from hpcgnn.errors import InputError
from hpcgnn.pyg.divide_graph import share_of_rows
from hpcgnn.pyg.row_axis import mark
from hpcgnn.sparse import EdgeRows, read_edge_rows
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, NodeBlock, Split, assign_parts
from hpcgnn.typing import Array, GlobalIndices

_MASKS: Mapping[str, Split] = {
    "train_mask": Split.TRAIN,
    "val_mask": Split.VALID,
    "test_mask": Split.TEST,
}


@collective
def read_types(grid: ProcessGrid, path: str) -> Any:
    """Return this rank's share of a store with node types; see `hpcgnn.divide`."""
    with agree(grid.world):
        data, store = _empty(), GraphStore.open(path, grid.world)
    with store:
        with agree(grid.world):
            if not store.node_types:
                raise InputError(
                    f"{path} has no node types: open it with hpcgnn.open_graph, and take graph.data"
                )
            if any(store.weighted(name) for name in store.relations):
                raise InputError(
                    f"{path}: edge weights have no place in HeteroData; convert it without"
                )
            starts = assign_parts(store.row_starts, store.part_edges(None), grid.num_blocks)
        rows = RowMap(bcast(grid.world, starts), grid.block)
        with agree(grid.world):
            nodes = store.read_nodes(rows.start, rows.stop)
        names = [node_type.name for node_type in store.node_types]
        assert nodes.types is not None
        order = np.argsort(nodes.types, kind="stable")
        parts = {name: np.flatnonzero(nodes.types == t) for t, name in enumerate(names)}
        for (name, part), x in zip(parts.items(), nodes.type_features, strict=True):
            for key, value in _of_nodes(nodes, part).items():
                data[name][key] = mark(value, 0, kind=name)
            if x.shape[1]:
                data[name].x = mark(torch.from_numpy(x), 0, kind=name)
            data[name].num_nodes = len(part)
        # On a rank, nodes are ordered by type.
        new_rows = np.empty_like(order)
        new_rows[order] = rows.start + np.arange(len(order))
        types = {name: nodes.original_id[part] for name, part in parts.items()}
        for name in store.relations:
            edges = read_edge_rows(grid, store, rows, [name], None)
            own = nodes.types[edges.targets]
            sources, of_sources = _at_sources(grid, rows, edges.sources, new_rows, nodes.types)
            pairs = np.stack([of_sources, own])
            for kinds in _pairs(grid, pairs, len(names)):
                chosen = (pairs == np.array(kinds)[:, None]).all(0)
                chosen_edges = EdgeRows(
                    new_rows[edges.targets[chosen]] - rows.start,
                    sources[chosen],
                    edges.features[chosen],
                )
                ends = names[kinds[0]], names[kinds[1]]
                share = share_of_rows(grid, rows, chosen_edges, types, ends)
                # Remove the types that the store adds to names of relations to make them unique.
                bare = name.removeprefix(f"{ends[0]}-").removesuffix(f"-{ends[1]}") or "to"
                relation = data[ends[0], bare, ends[1]]
                relation.edge_index = share.index
                if share.features.shape[1]:
                    relation.edge_attr = mark(share.features, 0)
    return data


def _empty() -> Any:
    try:
        return import_module("torch_geometric.data").HeteroData()
    except ModuleNotFoundError as error:
        raise InputError(
            "a store with node types is read as HeteroData: pip install torch-geometric"
        ) from error


def _of_nodes(nodes: NodeBlock, part: GlobalIndices) -> dict[str, torch.Tensor]:
    columns = {"n_id": nodes.original_id[part]}
    if nodes.labels is not None:
        columns["y"] = nodes.labels[part].astype(np.int64)
    if nodes.split is not None:
        columns |= {key: nodes.split[part] == role for key, role in _MASKS.items()}
    return {key: torch.from_numpy(value) for key, value in columns.items()}


@collective
def _at_sources(
    grid: ProcessGrid, rows: RowMap, sources: GlobalIndices, new_rows: GlobalIndices, types: Array
) -> tuple[GlobalIndices, Array]:
    """Return the new rows and the types of the sources of edges, on whichever ranks they are."""
    requested, inverse = np.unique(sources, return_inverse=True)
    request = RowRequest.make(grid.layer, rows, requested)
    return request.rows(new_rows)[inverse], request.rows(types)[inverse]


@collective
def _pairs(grid: ProcessGrid, pairs: Array, num_types: int) -> list[tuple[int, int]]:
    """Return the pairs of source and target types of the edges of all ranks, in order."""
    occurs = np.zeros((num_types, num_types), np.bool_)
    occurs[tuple(pairs)] = True
    anywhere = np.logical_or.reduce(grid.layer.allgather(occurs))
    return [(int(source), int(target)) for source, target in np.argwhere(anywhere)]
