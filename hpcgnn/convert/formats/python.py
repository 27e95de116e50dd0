"""Graphs in the memory of a Python program: SciPy matrices, torch-geometric and DGL graphs.

Neither torch-geometric nor DGL is imported, except to load a data set by name: graphs are
recognised by attributes and methods, and tensors may be of any library that converts to NumPy.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.convert.nodes import (
    MASK_NAMES,
    EdgeType,
    edge_ends,
    find_masks,
    join_types,
    labelled,
    relation_names,
    split_from_codes,
    splits_from_masks,
)
from hpcgnn.convert.pipeline import Report, write_store
from hpcgnn.convert.read.arrays import (
    RelationEdges,
    array_source,
    many_graphs,
    matrix_features,
    side_by_side,
)
from hpcgnn.convert.source import (
    ConvertOptions,
    GraphSource,
    NodeArrays,
    check_array,
)
from hpcgnn.errors import InputError
from hpcgnn.storage import check_output
from hpcgnn.typing import Array

_BY_NAME = "pyg:"
_DGL_FEATURES = ("feat", "x", "features")
_TORCH_GEOMETRIC_KEYS = MASK_NAMES.keys() | {
    "edge_index",
    "edge_weight",
    "edge_attr",
    "num_nodes",
    "x",
    "y",
}
_DGL_LABELS = ("label", "labels", "y")


def from_scipy(
    matrix: Any,
    path: str | os.PathLike[str],
    *,
    features: Any = None,
    labels: Any = None,
    split: Any = None,
    class_names: Sequence[str] = (),
    options: ConvertOptions | None = None,
) -> Report:
    """Write the graph of a square SciPy matrix or sparse array to the store `path`.

    A non-zero in row i, column j is the edge i -> j, the usual convention for adjacency matrices:
    node j then aggregates from node i, and the store holds it in row j, column i. If row i of your
    matrix lists the nodes that node i aggregates from, pass its transpose. Values other than 1
    become float32 weights; stored zeros are no edges.

    `features` [n, f], `labels` [n] (-1 for none) or [n, classes] of 0 and 1, and `split` [n] of
    `hpcgnn.storage.Split` may be arrays or tensors. Raises `InputError` for faulty values; an
    existing file at `path` is then left as it was.
    """
    # Whoever made a sparse matrix has imported SciPy; converting files should not import it.
    sparse = sys.modules.get("scipy.sparse")
    if sparse is None or not sparse.issparse(matrix):
        raise InputError(
            f"matrix: is a {type(matrix).__name__}; give a SciPy sparse matrix (csr_matrix(array))"
        )
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"matrix: has shape {matrix.shape}; an adjacency is square")
    entries = matrix.tocoo()
    weights = None if (entries.data == 1).all() else entries.data
    edges = {"": RelationEdges(entries.row.astype(np.int64), entries.col.astype(np.int64), weights)}
    nodes = _nodes("matrix", features, labels, split, class_names)
    check_output(path)
    source = array_source(Path("matrix"), edges, matrix.shape[0], nodes)
    return write_store(source, Path(path), options or ConvertOptions(), "matrix")


def from_torch_geometric(
    data: Any, path: str | os.PathLike[str], *, options: ConvertOptions | None = None
) -> Report:
    """Write a `Data`, several of them (a list, a data set, a batch), or a `HeteroData` to `path`.

    Stored are `edge_index` (row 0 holds the sources), `edge_weight`, `edge_attr`, `x`, `y`,
    `train_mask`, `val_mask` and `test_mask`, and the positions `pos` of a single `Data`. If masks
    have several columns, `options.split` is the column to use (default: all). Each edge type of a
    `HeteroData` becomes a relation, called `source-relation-target` if several edge types share a
    relation. With several node types, each has its own features, one may have labels, and nodes are
    numbered type after type. Raises `InputError` for faulty values; an existing file at `path` is
    then left as it was.
    """
    options = options or ConvertOptions()
    check_output(path)
    return write_store(_any_source(data, options, "data"), Path(path), options, "data")


def _any_source(data: Any, options: ConvertOptions, origin: str) -> GraphSource:
    if hasattr(data, "to_data_list"):
        data = data.to_data_list()
    elif callable(getattr(data, "indices", None)):
        # A data set also has the attributes of a `Data`: those of all its graphs, concatenated.
        data = [data[i] for i in range(len(data))]
        data = data[0] if len(data) == 1 else data
    read = torch_geometric_graphs if isinstance(data, Sequence) else torch_geometric_source
    return read(data, options, origin)


def torch_geometric_source(data: Any, options: ConvertOptions, origin: str) -> GraphSource:
    """Return the graph of a `Data` or `HeteroData`, called `origin` in messages; `InputError`."""
    if not hasattr(data, "edge_types"):
        edges = {"": _torch_geometric_edges(data, origin)}
        count, nodes = _torch_geometric_nodes(data, options, origin)
        unknown = tuple(key for key in _unknown(data) if key != "pos")
        if (positions := getattr(data, "pos", None)) is not None:
            array = to_array(positions, where := f"{origin}: pos")
            check_array(array, where, "[n, D]", "iuf")
            nodes = replace(nodes, positions=array.astype(np.float64))
        return array_source(Path(origin), edges, count, nodes, ignored=unknown)
    names = relation_names(data.edge_types)
    relations = {
        name: _torch_geometric_edges(data[kind], f"{origin}[{name!r}]")
        for kind, name in names.items()
    }
    stores = {name: data[name] for name in data.node_types}
    parts = {
        name: _torch_geometric_nodes(
            store, options, f"{origin}[{name!r}]" if len(stores) > 1 else origin
        )
        for name, store in stores.items()
    }
    ignored = [f"{name}: {key}" for name, store in stores.items() for key in _unknown(store)]
    ignored += [f"{name}: {key}" for kind, name in names.items() for key in _unknown(data[kind])]
    return _source_of_types(origin, relations, names, parts, tuple(ignored))


def torch_geometric_graphs(
    graphs: Sequence[Any], options: ConvertOptions, origin: str
) -> GraphSource:
    """Return many `Data` as one graph that records the graph of each node; raises `InputError`.

    If `y` has one row a node, these are node labels, and masks give the split. Otherwise `y` is the
    class of a graph or a row of numbers to predict for it.
    """
    located = [(f"{origin}[{number}]", data) for number, data in enumerate(graphs)]
    for where, data in located:
        if hasattr(data, "edge_types") or getattr(data, "num_nodes", None) is None:
            raise InputError(f"{where}: is no Data of one node type with num_nodes")
    if not located:
        raise InputError(f"{origin}: has no graph")
    sizes = [int(data.num_nodes) for _, data in located]
    columns = {}
    for key in ("x", "y"):
        pairs = [(where, getattr(data, key, None)) for where, data in located]
        arrays = [to_array(value, f"{where}: {key}") for where, value in pairs if value is not None]
        if arrays and len(arrays) < len(located):
            raise InputError(f"{origin}: some graphs have {key} and others do not; give it to all")
        columns[key] = arrays
    edges = [_torch_geometric_edges(data, where) for where, data in located]
    many = partial(
        many_graphs,
        Path(origin),
        np.repeat(np.arange(len(sizes)), sizes),
        side_by_side(edges, sizes, origin),
        _stacked(columns["x"], f"{origin}: x"),
    )
    ignored = tuple(dict.fromkeys(key for _, data in located for key in _unknown(data)))
    values, where = columns["y"], f"{origin}: y"
    if values and [len(np.atleast_1d(array)) for array in values] == sizes:
        source = many(None, ignored=ignored)
        labels = labelled(np.concatenate(values), where)

        def mask(name: str) -> Array | None:
            masks = [getattr(data, name, None) for _, data in located]
            if any(values is None for values in masks):
                return None
            return np.concatenate([to_array(values, f"{origin}: {name}") for values in masks])

        splits = _find_splits(mask, options, origin)
        return replace(source, nodes=replace(source.nodes, labels=labels, splits=splits))
    ignored += tuple(sorted(key for key in MASK_NAMES if any(hasattr(d, key) for _, d in located)))
    rows = _stacked([array.reshape(1, -1) for array in values], where)
    return many(rows, ignored=ignored)


def read_data_set(path: Path, options: ConvertOptions) -> GraphSource:
    """Read a data set of torch-geometric by name, `pyg:CLASS` or `pyg:CLASS/NAME`.

    CLASS is a class of `torch_geometric.datasets`, which downloads the files that are missing in
    its folder `--root`. Several graphs become one store. Raises `InputError`.
    """
    origin = str(path)
    kind, _, name = origin.removeprefix(_BY_NAME).partition("/")
    return _any_source(_dataset(origin, kind, name, options), options, origin)


def _dataset(origin: str, kind: str, name: str, options: ConvertOptions) -> Any:
    try:
        classes = vars(import_module("torch_geometric.datasets"))
    except ImportError as error:
        raise InputError(
            f"{origin}: needs torch-geometric ({error}); pip install torch_geometric"
        ) from None
    if not isinstance(classes.get(kind), type):
        near = get_close_matches(
            kind, [name for name in classes if isinstance(classes[name], type)]
        )
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"{origin}: torch_geometric.datasets has no {kind!r}{hint}")
    takes, arguments = signature(classes[kind]).parameters, {}
    if "root" in takes:
        arguments["root"] = options.take("root")
        if arguments["root"] is None and takes["root"].default is takes["root"].empty:
            raise InputError(f"{origin}: give the folder to find it in or download to, --root DIR")
    if name:
        arguments["name"] = name
        if "name" not in takes:
            raise InputError(f"{origin}: {kind} takes no name; give {_BY_NAME}{kind}")
    elif "name" in takes and takes["name"].default is takes["name"].empty:
        raise InputError(f"{origin}: {kind} has several data sets; give {_BY_NAME}{kind}/NAME")
    try:
        return classes[kind](**arguments)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise InputError(f"{origin}: torch-geometric cannot load it ({reason[:300]})") from error


def _stacked(arrays: Sequence[Array], where: str) -> Array | None:
    if not arrays:
        return None
    try:
        return np.concatenate(arrays)
    except ValueError as error:
        raise InputError(f"{where}: graphs have unequal widths ({error}); give the same") from None


def _unknown(store: Any) -> tuple[str, ...]:
    """Return the keys of a `Data`, or of a part of a `HeteroData`, that are not stored."""
    keys = getattr(store, "keys", None)
    names = vars(store) if keys is None else keys() if callable(keys) else keys
    return tuple(key for key in names if key not in _TORCH_GEOMETRIC_KEYS)


def _torch_geometric_nodes(
    store: Any, options: ConvertOptions, where: str
) -> tuple[int, NodeArrays]:
    num_nodes = getattr(store, "num_nodes", None)
    if num_nodes is None:
        raise InputError(f"{where}: has no num_nodes; set it")
    splits = _find_splits(lambda name: getattr(store, name, None), options, where)
    nodes = _nodes(where, getattr(store, "x", None), getattr(store, "y", None))
    return int(num_nodes), replace(nodes, splits=splits)


def _torch_geometric_edges(store: Any, where: str) -> RelationEdges:
    index = getattr(store, "edge_index", None)
    if index is None:
        raise InputError(f"{where}: has no edge_index; set it (sparse adj_t is not read)")
    ends = to_array(index, f"{where}: edge_index")
    if ends.ndim != 2 or ends.shape[0] != 2:
        raise InputError(f"{where}: edge_index has shape {ends.shape}; it is [2, E]")
    return _with_data(ends, store, "edge_weight", "edge_attr", where)


def _with_data(ends: Any, data: Any, weight: str, features: str, where: str) -> RelationEdges:
    """Return edges with the weights and features that `data` has under these names."""
    arrays = {}
    for key in (weight, features):
        value = data.get(key) if isinstance(data, Mapping) else getattr(data, key, None)
        arrays[key] = None if value is None else to_array(value, f"{where}: {key}")
    weights, columns = arrays[weight], arrays[features]
    if columns is not None:
        columns = columns[:, None] if columns.ndim == 1 else columns
        check_array(columns, f"{where}: {features}", "[E, F]")
    return RelationEdges(
        ends[0], ends[1], None if weights is None else weights.reshape(-1), columns
    )


def from_dgl(
    graph: Any,
    path: str | os.PathLike[str],
    *,
    weight: str | None = None,
    options: ConvertOptions | None = None,
) -> Report:
    """Write a DGL graph to the store `path`.

    Stored are the features (`feat`), labels (`label`) and masks `train_mask`, `val_mask` and
    `test_mask` of `ndata`, and the features (`feat`) of `edata`, with the weights called `weight`
    if it is given. Several edge types become relations, called `source-relation-target` if several
    share a relation. With several node types, each has its own features, one may have labels, and
    nodes are numbered type after type. Raises `InputError` for faulty values; an existing file at
    `path` is then left as it was.
    """
    options = options or ConvertOptions()
    if not hasattr(graph, "canonical_etypes"):
        raise InputError(
            f"graph: is a {type(graph).__name__}; give a DGL graph, or dgl.batch(graphs) of several"
        )
    node_types, etypes = list(graph.ntypes), list(graph.canonical_etypes)
    names = relation_names(etypes)
    if len(node_types) == len(etypes) == 1:
        names = {etypes[0]: ""}
    edges, parts = {}, {}
    ignored: list[str] = []
    for etype, name in names.items():
        data, where = graph.edges[etype].data, f"graph, edges {etype[1]}"
        if weight not in {None, *data}:
            raise InputError(f"{where}: edata has no {weight!r}; give the name of its weights")
        features = _first(_DGL_FEATURES, data)
        ignored += [f"edata {key}" for key in data if key not in (weight, features)]
        # In the order of edge ids, which is that of edata.
        ends = [to_array(side, where) for side in graph.edges(order="eid", etype=etype)]
        edge_data = {key: data[key] for key in {weight, features} & set(data)}
        edges[name] = _with_data(
            ends, edge_data, weight or "", features if features != weight else "", where
        )
    for name in node_types:
        several = len(node_types) > 1
        where = f"graph, nodes {name}" if several else "graph"
        data = graph.nodes[name].data if several else graph.ndata
        count = graph.num_nodes(name) if several else graph.num_nodes()
        keys = [_first(names, data) for names in (_DGL_FEATURES, _DGL_LABELS)]
        ignored += [f"ndata {key}" for key in data if key not in {*keys, *MASK_NAMES}]
        values = [data[key] if key else None for key in keys]
        nodes = _nodes(where, values[0], values[1])
        splits = _find_splits(data.get, options, where)
        parts[name] = int(count), replace(nodes, splits=splits)
    check_output(path)
    source = _source_of_types("graph", edges, names, parts, tuple(ignored))
    return write_store(source, Path(path), options, "graph")


def _first(names: Sequence[str], data: Mapping[str, Any]) -> str:
    return next((name for name in names if name in data), "")


def to_array(value: Any, where: str) -> Array:
    """Return an array of numbers or text from an array or a tensor on any device; `InputError`."""
    for step in ("detach", "cpu"):
        if hasattr(value, step):
            value = getattr(value, step)()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{where} is no array ({error}); convert it to NumPy first") from error
    if array.dtype.kind not in "biufSU":
        raise InputError(f"{where} has dtype {array.dtype}; give numbers")
    return array


def _source_of_types(
    origin: str,
    edges: Mapping[str, RelationEdges],
    names: Mapping[EdgeType, str],
    parts: Mapping[str, tuple[int, NodeArrays]],
    ignored: tuple[str, ...],
) -> GraphSource:
    """Return a graph; `parts` are the number and the data of the nodes of each type."""
    if len(parts) == 1:
        ((count, nodes),) = parts.values()
        return array_source(Path(origin), edges, count, nodes, ignored=ignored)
    counts = {name: count for name, (count, _) in parts.items()}
    joined = join_types({name: nodes for name, (_, nodes) in parts.items()}, counts, origin)
    ends = edge_ends(names, counts)
    return array_source(Path(origin), edges, sum(counts.values()), joined, ends, ignored=ignored)


def _find_splits(
    get: Callable[[str], Any], options: ConvertOptions, origin: str
) -> dict[str, NDArray[np.uint8]]:

    def array(name: str) -> Array | None:
        mask = get(name)
        return None if mask is None else to_array(mask, f"{origin}: {name}")

    masks, where = find_masks(array, origin)
    return splits_from_masks(masks, options, where)


def _nodes(
    origin: str,
    features: Any = None,
    labels: Any = None,
    split: Any = None,
    class_names: Sequence[str] = (),
) -> NodeArrays:
    fields: dict[str, Any] = {}
    if features is not None:
        where = f"{origin}: features"
        fields["features"] = matrix_features(to_array(features, where), where)
    if labels is not None:
        where = f"{origin}: labels"
        fields["labels"] = labelled(to_array(labels, where), where, class_names)
    if split is not None:
        values = to_array(split, f"{origin}: split")
        fields["splits"] = {"": split_from_codes(values, f"{origin}: split")}
    return NodeArrays(**fields)
