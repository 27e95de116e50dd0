"""Graphs in one .npz file: edge arrays or a sparse matrix, with or without node data.

Entry (i, j) of a matrix is the edge i -> j. docs/formats.md lists the names of the arrays, and the
order in which they are tried for edges.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.console import report
from hpcgnn.convert.nodes import (
    SPLIT_PREFIXES,
    check_names,
    find_masks,
    labelled,
    single_labels,
    split_from_codes,
    split_from_indices,
    splits_from_masks,
)
from hpcgnn.convert.read.arrays import array_features, checked_matrix, matrix_features
from hpcgnn.convert.read.edges import (
    EdgeArrays,
    EdgeLabelArray,
    Pairs,
    check_vector,
    compressed_edges,
    has_weights,
    index_pairs,
    square,
    vector_pairs,
)
from hpcgnn.convert.read.npy import ArrayFile, Npz, decode_texts
from hpcgnn.convert.series import FieldArray, join_fields
from hpcgnn.convert.source import (
    CHUNK_EDGES,
    MOST_RELATIONS,
    ConvertOptions,
    GraphSource,
    NodeArrays,
    NodeKind,
    check_array,
    check_count,
    check_density,
)
from hpcgnn.convert.tables.codes import SIGNS
from hpcgnn.errors import InputError
from hpcgnn.storage import MAX_NODE_TYPES, first_true
from hpcgnn.typing import Array

_ENDS = (("src", "dst"), ("row", "col"), ("source", "target"))
_WEIGHTS = ("weights", "weight", "edge_weight", "data")
_EDGE_FEATURES = ("edge_attr", "edge_feat", "edge_features")
_EDGE_LABELS = ("edge_label", "edge_labels", "edge_y")
_EDGE_TARGETS = ("edge_target", "edge_targets")
_EDGE_CLASSES = ("edge_class_names", "edge_classes", "edge_target_names")
_LAYOUTS = "indptr and indices, edge_index, or src and dst"
_FEATURES = ("x", "features", "feat", "feats", "node_feat", "attr_matrix")
_LABELS = ("y", "labels", "label", "node_label")
_CLASSES = ("class_names", "classes")


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the graph of an .npz file; raises `InputError`."""
    npz = Npz(path)
    edges = _find_edges(npz)
    counts: dict[str, int] = {}
    if edges.num_nodes is not None:
        counts[edges.where] = edges.num_nodes
    elif (shape := npz.get("shape")) is not None:
        counts[shape.where] = square(shape)
    num_nodes, nodes = _read_nodes(npz, counts, edges.num_edges, options)
    return GraphSource(
        path=path,
        edges=edges.chunks,
        inputs=(path,),
        relations=edges.relations,
        num_nodes=num_nodes,
        counted=edges.num_nodes is not None,
        columns=dict.fromkeys(edges.relations, edges.columns),
        edge_labels=() if edges.labels is None else edges.labels.names,
        nodes=nodes,
        ignored=npz.unused(),
    )


def _find_edges(npz: Npz) -> EdgeArrays:
    """Return the edges in the first known layout that the file has; raises `InputError`."""
    if "format" in npz and "shape" in npz:
        kind = npz.word("format")
        if kind not in ("csr", "csc", "coo"):
            raise InputError(
                f"{npz.path}: format is {kind!r}; save the matrix as csr, csc or coo "
                "(matrix.tocsr())"
            )
        if kind == "coo":
            return _vectors(npz, "row", "col")
        return compressed_edges(npz, major_is_src=kind == "csr")
    for prefix in ("adj_", ""):
        if f"{prefix}indptr" in npz and f"{prefix}indices" in npz:
            return compressed_edges(npz, prefix, major_is_src=True)
    if (index := npz.get("edge_index")) is not None:
        return _with_extras(npz, index, index_pairs(index), index.shape[1])
    for ends in _ENDS:
        if ends[0] in npz and ends[1] in npz:
            return _vectors(npz, *ends)
    raise InputError(f"{npz.path}: holds no edges; name the arrays {_LAYOUTS}")


def _vectors(npz: Npz, src_name: str, dst_name: str) -> EdgeArrays:
    src, dst = npz.need(src_name), npz.need(dst_name)
    return _with_extras(npz, src, vector_pairs(src, dst), src.shape[0])


def _with_extras(npz: Npz, ends: ArrayFile, pairs: Pairs, num_edges: int) -> EdgeArrays:
    weights = npz.get(*_WEIGHTS)
    relation_ids = npz.get("etype", "edge_type")
    features, split = npz.get(*_EDGE_FEATURES), npz.get("edge_split")
    labels, targets = npz.get(*_EDGE_LABELS), npz.get(*_EDGE_TARGETS)
    if labels is not None and targets is not None:
        raise InputError(
            f"{npz.path}: has both {labels.member} and {targets.member}; give edges one of them"
        )
    matrices, relations = (features, labels, targets), [""]
    vectors = ((weights, "biuf"), (relation_ids, "iu"), (split, "iu"))
    for array, kinds in (*vectors, *((matrix, "biuf") for matrix in matrices)):
        if array is None:
            continue
        if array not in matrices:
            check_vector(array, kinds)
        elif len(array.shape) != 1:
            check_array(array, array.where, "[E, F]")
        if array.shape[0] != num_edges:
            unit = "rows" if array in matrices else "values"
            raise InputError(
                f"{array.where} has {array.shape[0]} {unit} for the {num_edges} edges of "
                f"{ends.member}; give one an edge"
            )
    if relation_ids is not None:
        names, highest = npz.get("etypes", "edge_types"), 0
        if names is None:
            blocks = relation_ids.flat(0, num_edges, CHUNK_EDGES)
            highest = max((int(block.max()) for block in blocks), default=0)
            check_count(highest + 1, MOST_RELATIONS, "relations", relation_ids.where)
        relations = _names(names, highest, "relation")
    return EdgeArrays(
        npz.path,
        ends.where,
        num_edges,
        pairs,
        weights if weights is not None and has_weights(weights) else None,
        relation_ids,
        tuple(relations),
        features=features,
        split=split,
        labels=_edge_labels(npz, labels, targets),
    )


def _edge_labels(
    npz: Npz, labels: ArrayFile | None, targets: ArrayFile | None
) -> EdgeLabelArray | None:
    """Return the edge labels, with the names of their classes or target columns."""
    array = targets if labels is None else labels
    if array is None:
        return None
    names, is_matrix = npz.texts(*_EDGE_CLASSES), len(array.shape) == 2
    if is_matrix or targets is not None:
        count = int(array.shape[1]) if is_matrix else 1
    elif names is None:
        blocks = array.flat(0, array.shape[0], CHUNK_EDGES)
        first, counts = 0, np.zeros(1, np.int64)
        for block in blocks:
            classes = single_labels(block, array.where, None, first, "edge")
            sizes = np.bincount(classes + 1, minlength=len(counts))
            sizes[: len(counts)] += counts
            first, counts = first + len(block), sizes
        count = max(1, len(counts) - 1)
        if count == 2 and counts[0] and not counts[1]:
            report(f"{array.where}: edges with -1 or nan {SIGNS}")
    else:
        count = len(names)
    if names is not None and len(names) != count:
        raise InputError(f"{array.where} has {count} columns for {len(names)} names; give one each")
    check_names(names or (), array.where)
    numbers = tuple(str(number) for number in range(count))
    return EdgeLabelArray(array, tuple(names or numbers), targets is not None)


def _names(array: ArrayFile | None, highest: int, kind: str) -> list[str]:
    """Return the names of relations or types; without an array, the numbers 0 to `highest`."""
    if array is None:
        return [str(number) for number in range(highest + 1)]
    check_vector(array, "SU")
    names = decode_texts(array.load(), array.where)
    if not names or len(set(names)) != len(names):
        raise InputError(f"{array.where}: must name at least one {kind}, each once")
    return names


def _read_nodes(
    npz: Npz, counts: dict[str, int], num_edges: int, options: ConvertOptions
) -> tuple[int | None, NodeArrays]:
    """Return the number of nodes, None if nothing in the file determines it, and the node data.

    `counts` maps each place in the file that implies a number of nodes to that number. Raises
    `InputError` unless all of them agree.
    """
    fields: dict[str, Any] = {}
    option = options.take("num_nodes")

    def load(array: ArrayFile) -> Array:
        """Load an array with one row a node, after checking its length against the graph."""
        if array.shape:
            _agreed({**counts, array.where: array.shape[0]})
            if option is None and array.packed_bytes < array.shape[0]:
                check_density(array.where, array.shape[0], num_edges)
        return array.load()

    if (numbers := npz.get("node_type", "ntype")) is not None:
        fields["types"], fields["kinds"] = _read_kinds(npz, numbers, load, options)
        counts[numbers.where] = len(fields["types"])
    elif (array := npz.get(*_FEATURES)) is not None:
        fields["features"] = array_features(array, options)
        counts[array.where] = array.shape[0]
    elif "attr_indptr" in npz:
        where = f"{npz.path}: attr_data"
        parts = {part: npz.need(f"attr_{part}").load() for part in ("data", "indices", "indptr")}
        shape = npz.need("attr_shape").load().ravel().tolist()
        matrix = checked_matrix(where, **parts, shape=shape)
        fields["features"] = matrix_features(matrix, where)
        counts[where] = matrix.shape[0]
    if (labels := npz.get(*_LABELS)) is not None:
        fields["labels"] = labelled(load(labels), labels.where, npz.texts(*_CLASSES) or ())
        counts[labels.where] = len(fields["labels"].values)
    if (count := npz.get("num_nodes")) is not None:
        values = count.load().ravel()
        if len(values) != 1 or values.dtype.kind not in "iu" or values[0] < 1:
            raise InputError(f"{count.where} must be one whole number above 0; save it again")
        counts[count.where] = int(values[0])
    if option is not None:
        counts["--num-nodes"] = option
    fields |= _read_mesh(npz, counts, load)
    masks, where_masks = find_masks(
        lambda name: None if (mask := npz.get(name)) is None else load(mask), f"{npz.path}"
    )
    counts |= {f"{npz.path}: {name} mask": len(mask) for name, mask in masks.items()}
    num_nodes = _agreed(counts)
    if masks:
        splits = splits_from_masks(masks, options, where_masks)
    elif (codes := npz.get("split")) is not None:
        splits = {"": split_from_codes(load(codes), codes.where)}
    else:
        splits = _split_by_numbers(npz, num_nodes)
    return num_nodes, NodeArrays(splits=splits, **fields)


def _read_mesh(
    npz: Npz, counts: dict[str, int], load: Callable[[ArrayFile], Array]
) -> dict[str, Any]:
    """Return positions, weights and fields of nodes and edges; add their row counts to `counts`."""
    mesh: dict[str, Any] = {}
    for names, key, shape in (
        (("positions", "pos"), "positions", "[n, D]"),
        (("node_weights",), "weights", "[n]"),
    ):
        if (array := npz.get(*names)) is not None:
            check_array(array, array.where, shape, "iuf")
            mesh[key] = load(array).astype(np.float64)
            counts[array.where] = array.shape[0]
    if (box := npz.get("box")) is not None:
        check_vector(box, "iuf")
        mesh["box"] = tuple(box.load().astype(np.float64).tolist())
    units = {name: npz.word(f"unit_{name}") for name in npz.after("unit_")}
    fields = [
        FieldArray.of_file(
            npz.need(f"{prefix}{name}"), name, units.get(name, ""), of_edges=of_edges
        )
        for prefix, of_edges in (("field_", False), ("edge_field_", True))
        for name in npz.after(prefix)
    ]
    for name in units.keys() - {*(field.name for field in fields), "times"}:
        raise InputError(f"{npz.path}: unit_{name} has no array field_{name}; leave it out")
    counts |= {field.where: field.shape[1] for field in fields if not field.of_edges}
    times, starts = npz.get("times"), npz.get("trajectory_starts")
    if fields:
        mesh["series"] = join_fields(
            fields,
            None if times is None else times.load(),
            None if starts is None else starts.load(),
            units.get("times", ""),
            str(npz.path) if times is None else times.where,
        )
    elif times is not None:
        raise InputError(
            f"{times.where}: there is no field_NAME (T, n, F); add one, or leave it out"
        )
    return mesh


def _agreed(counts: dict[str, int]) -> int | None:
    """Return the number of nodes on which all counts agree, None without any; `InputError`."""
    num_nodes = None
    for source, number in counts.items():
        if num_nodes not in (None, number):
            first = next(iter(counts))
            raise InputError(
                f"{source} implies {number} nodes and {first} implies {num_nodes}; give each "
                "array one row a node"
            )
        num_nodes = number
    return num_nodes


def _split_by_numbers(npz: Npz, num_nodes: int | None) -> dict[str, NDArray[np.uint8]]:
    """Return the split that arrays of node ids define, if any."""
    arrays = {
        name: npz.get(*(f"{p}_{end}" for p in prefixes for end in ("idx", "index")))
        for name, prefixes in SPLIT_PREFIXES.items()
    }
    present = {name: array for name, array in arrays.items() if array is not None}
    if not present:
        return {}
    if num_nodes is None:
        raise InputError(f"{npz.path}: a split by node ids needs the array num_nodes; add it")
    values = {name: array.load() for name, array in present.items()}
    where = {name: array.where for name, array in present.items()}
    return {"": split_from_indices(values, num_nodes, where)}


def _read_kinds(
    npz: Npz, numbers: ArrayFile, load: Callable[[ArrayFile], Array], options: ConvertOptions
) -> tuple[Array, tuple[NodeKind, ...]]:
    """Return the type index [n] of each node, in a small integer dtype, and the types."""
    check_vector(numbers, "iu")
    types, array = load(numbers), npz.get("node_types", "ntypes")
    highest = int(types.max(initial=0))
    if array is None:
        check_count(highest + 1, MAX_NODE_TYPES, "node types", numbers.where)
    names = _names(array, highest, "type")
    if (node := first_true((types < 0) | (types >= len(names)))) is not None:
        raise InputError(
            f"{numbers.where}: node {node} has the type {types[node]}, outside "
            f"0..{len(names) - 1}; correct it or name more types"
        )
    if shared := npz.get(*_FEATURES):
        raise InputError(
            f"{shared.where} holds features of all nodes, but {numbers.member} gives them types; "
            f"save one array for each type, such as x_{names[0]}, or leave {numbers.member} out"
        )
    kinds = []
    for name, count in zip(names, np.bincount(types, minlength=len(names)).tolist(), strict=True):
        features = npz.get(*(f"{prefix}_{name}" for prefix in _FEATURES))
        matrix = None if features is None else array_features(features, options)
        kinds.append(NodeKind(name, count, matrix))
    return types.astype(np.min_scalar_type(len(names))), tuple(kinds)
