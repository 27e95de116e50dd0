"""The Python entry for `Data` and `HeteroData` of torch-geometric, recognised by attributes."""

import os
from typing import Any

from hpcgnn.convert.memory import Edges, find_split, node_arrays, store_arrays, to_array
from hpcgnn.convert.node_types import join_types, relation_names, type_ranges
from hpcgnn.convert.pipeline import Report
from hpcgnn.convert.source import ConvertOptions, Nodes
from hpcgnn.errors import InputError

__all__ = ["from_torch_geometric"]


def from_torch_geometric(
    data: Any, path: str | os.PathLike[str], *, options: ConvertOptions | None = None
) -> Report:
    """Write a `Data` or a `HeteroData` to the store `path`.

    Taken over: `edge_index` (row 0 the sources), `edge_weight`, `x`, `y`, and `train_mask`,
    `val_mask`, `test_mask`; of several masks side by side `options.split` is the number of the
    column. Each edge type of a `HeteroData` becomes a relation, called `source-relation-target`
    where several edge types share a relation. Of several node types each has its own features, one
    may have labels, and nodes are numbered type after type. Raises `InputError` for faulty values,
    and then an earlier file at `path` stays whole.
    """
    chosen = options or ConvertOptions()
    if not hasattr(data, "edge_types"):
        edges = {"": _edges(data, "data")}
        return store_arrays(
            path, "data", edges, _count(data, "data"), _nodes(data, chosen, "data"), chosen
        )
    names = relation_names(data.edge_types)
    relations = {name: _edges(data[each], f"data[{name!r}]") for each, name in names.items()}
    stores = {name: data[name] for name in data.node_types}
    places = {name: f"data[{name!r}]" if len(stores) > 1 else "data" for name in stores}
    counts = {name: _count(store, places[name]) for name, store in stores.items()}
    parts = {name: _nodes(store, chosen, places[name]) for name, store in stores.items()}
    if len(parts) == 1:
        (only,), (count,) = parts.values(), counts.values()
        return store_arrays(path, "data", relations, count, only, chosen)
    ranges = type_ranges(counts)
    return store_arrays(
        path,
        "data",
        relations,
        sum(counts.values()),
        join_types(parts, counts, "data"),
        chosen,
        ends={name: (ranges[src], ranges[dst]) for (src, _, dst), name in names.items()},
    )


def _count(store: Any, where: str) -> int:
    num_nodes = getattr(store, "num_nodes", None)
    if num_nodes is None:
        raise InputError(f"{where}: has no num_nodes; set it")
    return int(num_nodes)


def _nodes(store: Any, options: ConvertOptions, where: str) -> Nodes:
    return node_arrays(
        where,
        getattr(store, "x", None),
        getattr(store, "y", None),
        find_split(lambda name: getattr(store, name, None), options, where),
    )


def _edges(store: Any, where: str) -> Edges:
    index = getattr(store, "edge_index", None)
    if index is None:
        raise InputError(f"{where}: has no edge_index; set it (sparse adj_t is not read)")
    ends = to_array(index, f"{where}: edge_index")
    if ends.ndim != 2 or ends.shape[0] != 2:
        raise InputError(f"{where}: edge_index has shape {ends.shape}; it is [2, E]")
    weight = getattr(store, "edge_weight", None)
    weights = None if weight is None else to_array(weight, f"{where}: edge_weight").reshape(-1)
    return ends[0], ends[1], weights
