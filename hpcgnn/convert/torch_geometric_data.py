"""The Python entry for `Data` and `HeteroData` of torch-geometric, recognised by attributes."""

import os
from typing import Any

from hpcgnn.convert.memory import Edges, find_split, store_arrays, to_array
from hpcgnn.convert.pipeline import Report
from hpcgnn.convert.source import ConvertOptions
from hpcgnn.errors import InputError

__all__ = ["from_torch_geometric"]


def from_torch_geometric(
    data: Any, path: str | os.PathLike[str], *, options: ConvertOptions | None = None
) -> Report:
    """Write a `Data`, or a `HeteroData` with one type of nodes, to the store `path`.

    Taken over: `edge_index` (row 0 the sources), `edge_weight`, `x`, `y`, and `train_mask`,
    `val_mask`, `test_mask`; of several masks side by side `options.split` is the number of the
    column. Each edge type of a `HeteroData` becomes a relation. Raises `InputError` for faulty
    values, and then an earlier file at `path` stays whole.
    """
    chosen = options or ConvertOptions()
    if hasattr(data, "edge_types"):
        nodes, edges = _typed(data)
    else:
        nodes, edges = data, {"": _edges(data, "data")}
    num_nodes = getattr(nodes, "num_nodes", None)
    if num_nodes is None:
        raise InputError("data: has no num_nodes; set it")
    return store_arrays(
        path,
        "data",
        edges,
        int(num_nodes),
        chosen,
        features=getattr(nodes, "x", None),
        labels=getattr(nodes, "y", None),
        split=find_split(lambda name: getattr(nodes, name, None), chosen, "data"),
    )


def _typed(data: Any) -> tuple[Any, dict[str, Edges]]:
    node_types, edge_types = list(data.node_types), list(data.edge_types)
    if len(node_types) != 1:
        raise InputError(
            f"data: has the node types {', '.join(map(str, node_types))}; only one is stored: "
            "call data.to_homogeneous() first"
        )
    edges = {
        str(edge_type[1]): _edges(data[edge_type], f"data[{edge_type[1]!r}]")
        for edge_type in edge_types
    }
    return data[node_types[0]], edges


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
