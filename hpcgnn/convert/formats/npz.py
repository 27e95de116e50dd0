"""Graphs in one .npz file: edge arrays or a sparse matrix, with or without node data.

Edges are looked for in this order:

- the layout of `scipy.sparse.save_npz` (csr, csc or coo): entry (i, j) is the edge i -> j;
- `adj_indptr`, `adj_indices`, `adj_data`, or `indptr`, `indices`, `data`: a CSR matrix, likewise;
- `edge_index` [2, E]: row 0 holds the sources, row 1 the targets;
- `src`, `dst` or `row`, `col` or `source`, `target`.

Edge arrays may have `weights`, and for a typed graph `etype`, the numbers of the edges' relations,
and `etypes`, the relations' names.

Features, labels and splits are found under the names that are in use for them. `node_type` [n]
holds the number of each node's type and `node_types` the types' names; the features of a type are
an array `x_NAME` (or another of the usual names for features before the underscore) with a row for
each of its nodes, in the order of the nodes.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.convert.nodes import (
    SPLIT_PREFIXES,
    check_masks,
    labelled,
    split_from_indices,
    splits_from_masks,
)
from hpcgnn.convert.read.edges import (
    EdgeArrays,
    Pairs,
    check_vector,
    compressed_edges,
    has_weights,
    index_pairs,
    vector_pairs,
)
from hpcgnn.convert.read.features import array_features, checked_matrix, dense_features
from hpcgnn.convert.read.npy import ArrayFile, Npz, decode_texts
from hpcgnn.convert.source import (
    CHUNK_EDGES,
    MOST_RELATIONS,
    ConvertOptions,
    Features,
    GraphSource,
    NodeKind,
    Nodes,
    check_count,
)
from hpcgnn.errors import InputError
from hpcgnn.storage import MAX_NODE_TYPES, Split, first_true
from hpcgnn.typing import Array

_ENDS = (("src", "dst"), ("row", "col"), ("source", "target"))
_WEIGHTS = ("weights", "weight", "edge_weight", "data")
_EDGE_FEATURES = ("edge_attr", "edge_feat", "edge_features")
_LAYOUTS = "indptr and indices, edge_index, or src and dst"
_FEATURES = ("x", "features", "feat", "feats", "node_feat", "attr_matrix")
_LABELS = ("y", "labels", "label", "node_label")
_CLASSES = ("class_names", "classes")


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the graph of an .npz file; raises `InputError`."""
    npz = Npz(path)
    edges = _find_edges(npz)
    known: dict[str, int] = {}
    if edges.num_nodes is not None:
        known[edges.where] = edges.num_nodes
    elif (shape := npz.get("shape")) is not None:
        known[shape.where] = _square(shape)
    num_nodes, nodes = _read_nodes(npz, known, options)
    return GraphSource(
        path=path,
        edges=edges.chunks,
        inputs=(path,),
        relations=edges.relations,
        num_nodes=num_nodes,
        counted=edges.num_nodes is not None,
        columns=dict.fromkeys(edges.relations, edges.columns),
        nodes=nodes,
        ignored=npz.unused(),
    )


def _find_edges(npz: Npz) -> EdgeArrays:
    """Return the edges of an .npz file in any known layout; raises `InputError`."""
    kind = _scipy_format(npz)
    if kind in ("csr", "csc"):
        return compressed_edges(npz, major_is_src=kind == "csr")
    if kind == "coo":
        return _vectors(npz, "row", "col")
    for prefix in ("adj_", ""):
        if f"{prefix}indptr" in npz and f"{prefix}indices" in npz:
            return compressed_edges(npz, prefix, major_is_src=True)
    index = npz.get("edge_index")
    if index is not None:
        pairs = index_pairs(index)
        return _with_extras(npz, index, pairs, index.shape[1])
    for ends in _ENDS:
        if ends[0] in npz and ends[1] in npz:
            return _vectors(npz, *ends)
    raise InputError(f"{npz.path}: holds no edges; name the arrays {_LAYOUTS}")


def _scipy_format(npz: Npz) -> str | None:
    if "format" not in npz or "shape" not in npz:
        return None
    text = npz.word("format")
    if text not in ("csr", "csc", "coo"):
        raise InputError(
            f"{npz.path}: format is {text!r}; save the matrix as csr, csc or coo (matrix.tocsr())"
        )
    return text


def _vectors(npz: Npz, src_name: str, dst_name: str) -> EdgeArrays:
    src, dst = npz.need(src_name), npz.need(dst_name)
    return _with_extras(npz, src, vector_pairs(src, dst), src.shape[0])


def _with_extras(npz: Npz, ends: ArrayFile, pairs: Pairs, num_edges: int) -> EdgeArrays:
    weights = npz.get(*_WEIGHTS)
    if weights is not None:
        _check_per_edge(weights, "biuf", ends, num_edges)
        weights = weights if has_weights(weights) else None
    relation_ids = npz.get("etype", "edge_type")
    relations: tuple[str, ...] = ("",)
    if relation_ids is not None:
        _check_per_edge(relation_ids, "iu", ends, num_edges)
        relations = _relation_names(npz, relation_ids)
    features = npz.get(*_EDGE_FEATURES)
    if features is not None:
        _check_edge_features(features, ends, num_edges)
    return EdgeArrays(
        npz.path,
        ends.where,
        num_edges,
        pairs,
        weights,
        relation_ids,
        relations,
        features=features,
    )


def _check_edge_features(array: ArrayFile, ends: ArrayFile, num_edges: int) -> None:
    if len(array.shape) not in (1, 2) or array.dtype.kind not in "biuf" or 0 in array.shape[1:]:
        raise InputError(
            f"{array.where} has shape {array.shape} and dtype {array.dtype}; give numbers [E, F]"
        )
    if array.shape[0] != num_edges:
        raise InputError(
            f"{array.where} has {array.shape[0]} rows for the {num_edges} edges of {ends.member}; "
            "give one an edge"
        )


def _check_per_edge(array: ArrayFile, kinds: str, ends: ArrayFile, num_edges: int) -> None:
    check_vector(array, kinds)
    if array.shape[0] != num_edges:
        raise InputError(
            f"{array.where} has {array.shape[0]} values for the {num_edges} edges of "
            f"{ends.member}; give one an edge"
        )


def _relation_names(npz: Npz, relation_ids: ArrayFile) -> tuple[str, ...]:
    names = npz.get("etypes", "edge_types")
    if names is None:
        blocks = relation_ids.flat(0, relation_ids.shape[0], CHUNK_EDGES)
        highest = max((int(block.max()) for block in blocks), default=0)
        check_count(highest + 1, MOST_RELATIONS, "relations", relation_ids.where)
        return tuple(str(number) for number in range(highest + 1))
    check_vector(names, "SU")
    texts = decode_texts(names.load(), names.where)
    if len(set(texts)) != len(texts):
        raise InputError(f"{names.where}: a relation is named twice; give each its own name")
    return tuple(texts)


def _square(shape: ArrayFile) -> int:
    sides = shape.load().ravel().tolist()
    if len(sides) != 2 or sides[0] != sides[1]:
        raise InputError(
            f"{shape.where} is {sides}; an adjacency is square: save it with one row and one "
            "column a node"
        )
    return int(sides[0])


def _read_nodes(
    npz: Npz, known: dict[str, int], options: ConvertOptions
) -> tuple[int | None, Nodes]:
    """Return the number of nodes, None if nothing tells it, and the node data.

    `known` maps the place of what already tells the number of nodes to that number; all that the
    file says must agree with it, else `InputError` is raised.
    """
    fields: dict[str, Any] = {}
    if (numbers := npz.get("node_type", "ntype")) is not None:
        fields["types"], fields["kinds"] = _read_kinds(npz, numbers, options)
        known[numbers.where] = len(fields["types"])
    else:
        fields["features"] = _features(npz, options, known)
    labels = npz.get(*_LABELS)
    if labels is not None:
        fields["labels"] = labelled(labels.load(), labels.where, npz.texts(*_CLASSES) or ())
        known[labels.where] = len(fields["labels"].values)
    if (count := npz.get("num_nodes")) is not None:
        known[count.where] = _scalar(count)
    if (asked := options.take("num_nodes")) is not None:
        known["--num-nodes"] = asked
    masks = _masks(npz)
    known |= {f"{npz.path}: {name} mask": len(mask) for name, mask in masks[0].items()}
    num_nodes = _agreed(known)
    return num_nodes, Nodes(splits=_splits(npz, masks, num_nodes, options), **fields)


def _features(npz: Npz, options: ConvertOptions, known: dict[str, int]) -> Features | None:
    array = npz.get(*_FEATURES)
    if array is not None:
        known[array.where] = array.shape[0] if array.shape else 0
        return array_features(array, options)
    if "attr_indptr" in npz:
        where = f"{npz.path}: attr_data"
        matrix = checked_matrix(
            where,
            data=npz.need("attr_data").load(),
            indices=npz.need("attr_indices").load(),
            indptr=npz.need("attr_indptr").load(),
            shape=npz.need("attr_shape").load().ravel().tolist(),
        )
        known[where] = matrix.shape[0]
        return dense_features(matrix, where)
    return None


def _scalar(array: ArrayFile) -> int:
    values = array.load().ravel()
    if len(values) != 1 or values.dtype.kind not in "iu" or values[0] < 1:
        raise InputError(f"{array.where} must be one whole number above 0; save it again")
    return int(values[0])


def _agreed(known: dict[str, int]) -> int | None:
    if not known:
        return None
    places = list(known.items())
    for place, count in places[1:]:
        if count != places[0][1]:
            raise InputError(
                f"{place} tells of {count} nodes and {places[0][0]} of {places[0][1]}; "
                "give each array one row a node"
            )
    return places[0][1]


def _masks(npz: Npz) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the masks of a split or of several, and where they are."""
    masks, where = {}, {}
    for name, prefixes in SPLIT_PREFIXES.items():
        array = npz.get(*(f"{prefix}_mask" for prefix in prefixes))
        if array is not None:
            masks[name], where[name] = array.load(), array.where
    check_masks(masks, where)
    return masks, where


def _splits(
    npz: Npz,
    masks: tuple[dict[str, Array], dict[str, str]],
    num_nodes: int | None,
    options: ConvertOptions,
) -> dict[str, NDArray[np.uint8]]:
    if masks[0]:
        return splits_from_masks(masks[0], options, masks[1])
    codes = npz.get("split")
    if codes is not None:
        return {"": _coded(codes)}
    arrays = {
        name: npz.get(*(f"{p}_{end}" for p in prefixes for end in ("idx", "index")))
        for name, prefixes in SPLIT_PREFIXES.items()
    }
    found = {name: array for name, array in arrays.items() if array is not None}
    if not found:
        return {}
    if num_nodes is None:
        raise InputError(f"{npz.path}: a split by node ids needs the array num_nodes; add it")
    values = {name: array.load() for name, array in found.items()}
    where = {name: array.where for name, array in found.items()}
    return {"": split_from_indices(values, num_nodes, where)}


def _coded(codes: ArrayFile) -> NDArray[np.uint8]:
    values = codes.load()
    if values.ndim != 1 or values.dtype.kind not in "iu" or not np.isin(values, list(Split)).all():
        raise InputError(
            f"{codes.where} must be a vector of 0 (none), 1 (train), 2 (valid) and 3 (test)"
        )
    return values.astype(np.uint8)


def _read_kinds(
    npz: Npz, numbers: ArrayFile, options: ConvertOptions
) -> tuple[Array, tuple[NodeKind, ...]]:
    """Return the nodes' types [n] in a small integer type, and what they are; `InputError`."""
    check_vector(numbers, "iu")
    types = numbers.load()
    names = _names(npz, types, numbers.where)
    node = first_true((types < 0) | (types >= len(names)))
    if node is not None:
        raise InputError(
            f"{numbers.where}: node {node} has the type {types[node]}, outside "
            f"0..{len(names) - 1}; correct it or name more types"
        )
    if shared := npz.get(*_FEATURES):
        raise InputError(
            f"{shared.where} holds features of all nodes, but {numbers.member} gives them types; "
            f"save those of each type, such as x_{names[0]}, or leave {numbers.member} out"
        )
    counts = np.bincount(types, minlength=len(names)).tolist()
    kinds = []
    for name, count in zip(names, counts, strict=True):
        array = npz.get(*(f"{prefix}_{name}" for prefix in _FEATURES))
        features = None if array is None else array_features(array, options)
        kinds.append(NodeKind(name, count, features))
    return types.astype(np.min_scalar_type(len(names))), tuple(kinds)


def _names(npz: Npz, types: Array, where: str) -> list[str]:
    array = npz.get("node_types", "ntypes")
    if array is None:
        highest = int(types.max(initial=0))
        check_count(highest + 1, MAX_NODE_TYPES, "node types", where)
        return [str(number) for number in range(highest + 1)]
    check_vector(array, "SU")
    names = decode_texts(array.load(), array.where)
    if not names or len(set(names)) != len(names):
        raise InputError(f"{array.where}: must name at least one type, each once")
    return names
