"""The Python entry for graphs of DGL, recognised by their methods."""

import os
from typing import Any

from hpcgnn.convert.memory import Edges, find_split, node_arrays, store_arrays, to_array
from hpcgnn.convert.node_types import join_types, relation_names, type_ranges
from hpcgnn.convert.pipeline import Report
from hpcgnn.convert.source import ConvertOptions, Nodes
from hpcgnn.errors import InputError

__all__ = ["from_dgl"]

_FEATURES = ("feat", "x", "features")
_LABELS = ("label", "labels", "y")


def from_dgl(
    graph: Any,
    path: str | os.PathLike[str],
    *,
    weight: str | None = None,
    options: ConvertOptions | None = None,
) -> Report:
    """Write a DGL graph to the store `path`.

    Taken over from the nodes' data: features (`feat`), labels (`label`) and the masks `train_mask`,
    `val_mask`, `test_mask`; from `edata` the weights called `weight`, if it is given. Several edge
    types become relations, called `source-relation-target` where several share a relation. Of
    several node types each has its own features, one may have labels, and nodes are numbered type
    after type. Raises `InputError` for faulty values, and then an earlier file at `path` stays
    whole.
    """
    chosen = options or ConvertOptions()
    node_types, etypes = list(graph.ntypes), list(graph.canonical_etypes)
    names = relation_names(etypes)
    if len(node_types) == len(etypes) == 1:
        names = {etypes[0]: ""}
    edges = {name: _edges(graph, etype, weight) for etype, name in names.items()}
    if len(node_types) == 1:
        nodes = _nodes(graph.ndata, chosen, "graph")
        return store_arrays(path, "graph", edges, int(graph.num_nodes()), nodes, chosen)
    counts = {name: int(graph.num_nodes(name)) for name in node_types}
    parts = {
        name: _nodes(graph.nodes[name].data, chosen, f"graph, nodes {name}") for name in node_types
    }
    ranges = type_ranges(counts)
    return store_arrays(
        path,
        "graph",
        edges,
        sum(counts.values()),
        join_types(parts, counts, "graph"),
        chosen,
        ends={name: (ranges[src], ranges[dst]) for (src, _, dst), name in names.items()},
    )


def _nodes(data: Any, options: ConvertOptions, where: str) -> Nodes:
    split = find_split(data.get, options, where)
    return node_arrays(where, _first(data, _FEATURES), _first(data, _LABELS), split)


def _first(data: Any, names: tuple[str, ...]) -> Any:
    return next((data[name] for name in names if name in data), None)


def _edges(graph: Any, etype: tuple[str, str, str], weight: str | None) -> Edges:
    where = f"graph, edges {etype[1]}"
    # In the order of their ids, so that the weights of edata belong to them.
    src, dst = graph.edges(order="eid", etype=etype)
    if weight is None:
        values = None
    elif weight in graph.edges[etype].data:
        values = to_array(graph.edges[etype].data[weight], f"{where}: {weight}").reshape(-1)
    else:
        raise InputError(f"{where}: edata has no {weight!r}; name another weight")
    return to_array(src, where), to_array(dst, where), values
