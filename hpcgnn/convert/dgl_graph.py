"""The Python entry for graphs of DGL, recognised by their methods."""

import os
from typing import Any

from hpcgnn.convert.memory import Edges, find_split, store_arrays, to_array
from hpcgnn.convert.pipeline import Report
from hpcgnn.convert.source import ConvertOptions
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
    """Write a DGL graph with one type of nodes to the store `path`.

    Taken over from `ndata`: features (`feat`), labels (`label`) and the masks `train_mask`,
    `val_mask`, `test_mask`; from `edata` the weights called `weight`, if it is given. Several edge
    types become relations. Raises `InputError` for faulty values, and then an earlier file at
    `path` stays whole.
    """
    chosen = options or ConvertOptions()
    node_types = list(graph.ntypes)
    if len(node_types) != 1:
        raise InputError(
            f"graph: has the node types {', '.join(node_types)}; only one is stored: "
            "call dgl.to_homogeneous(graph) first"
        )
    types = list(graph.canonical_etypes)
    edges = {("" if len(types) == 1 else etype[1]): _edges(graph, etype, weight) for etype in types}
    data = graph.ndata
    return store_arrays(
        path,
        "graph",
        edges,
        int(graph.num_nodes()),
        chosen,
        features=_first(data, _FEATURES),
        labels=_first(data, _LABELS),
        split=find_split(data.get, chosen, "graph"),
    )


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
