"""Planetoid files `ind.NAME.{x,y,tx,ty,allx,ally,graph,test.index}` (Yang et al., 2016).

Nodes 0 to len(allx) - 1 have the features `allx`; the first len(x) of them are for training and the
next 500 for validation. `test.index` lists the nodes of the rows of `tx`. Test nodes missing from
that list (the isolated nodes of Citeseer) get zero features and no label.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from hpcgnn.convert.nodes import labelled, split_from_indices
from hpcgnn.convert.read.arrays import RelationEdges, array_source, matrix_features
from hpcgnn.convert.read.pickles import load_array, load_lists, load_matrix
from hpcgnn.convert.read.tables import read_column
from hpcgnn.convert.source import ConvertOptions, GraphSource, Labels, NodeArrays
from hpcgnn.errors import InputError
from hpcgnn.storage import first_true

_VALID_NODES = 500
_SUFFIXES = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the graph in the folder `path`, or of which `path` is one file; raises `InputError`."""
    del options  # no option applies
    prefix = find_prefix(path)
    files = {suffix: prefix.with_name(f"{prefix.name}.{suffix}") for suffix in _SUFFIXES}
    test = read_column(files["test.index"])
    allx, tx, num_train = _features(files)
    graph = load_lists(files["graph"])
    num_nodes = max(
        allx.shape[0] + len(test), int(test.max(initial=-1)) + 1, max(graph, default=-1) + 1
    )
    _check_test(files["test.index"], test, allx.shape[0], tx.shape[0])
    # The row of each node in the stack of allx, tx and one row of zeros.
    rows_above = allx.shape[0]
    order = np.full(num_nodes, rows_above + len(test))
    order[:rows_above] = np.arange(rows_above)
    order[test] = rows_above + np.arange(len(test))
    zeros = scipy.sparse.csr_matrix((1, allx.shape[1]), dtype=allx.dtype)
    features = scipy.sparse.vstack([allx, tx, zeros], format="csr")[order]
    last_valid = min(num_train + _VALID_NODES, rows_above)
    parts = {"train": np.arange(num_train), "valid": np.arange(num_train, last_valid), "test": test}
    where = {name: str(files["test.index"]) for name in parts}
    nodes = NodeArrays(
        features=matrix_features(features, str(files["allx"])),
        splits={"": split_from_indices(parts, num_nodes, where)},
        labels=_labels(files, {"y": num_train, "ally": rows_above, "ty": tx.shape[0]}, order),
    )
    edges = {"": RelationEdges(*_edges(graph, files["graph"], num_nodes))}
    return array_source(prefix, edges, num_nodes, nodes, inputs=tuple(files.values()))


def find_prefix(path: Path) -> Path:
    """Return `FOLDER/ind.NAME` for a folder with one graph, for a file of it, or for itself."""
    if path.is_dir():
        graphs = sorted(path.glob("ind.*.graph"))
        if len(graphs) != 1:
            choice = " or ".join(str(graph.with_suffix("")) for graph in graphs)
            remedy = f"choose {choice}" if graphs else "check the path"
            raise InputError(f"{path}: holds {len(graphs)} Planetoid graphs; {remedy}")
        return graphs[0].with_suffix("")
    for suffix in _SUFFIXES:
        if path.name.startswith("ind.") and path.name.endswith(f".{suffix}"):
            return path.with_name(path.name.removesuffix(f".{suffix}"))
    return path


def _features(files: dict[str, Path]) -> tuple[Any, Any, int]:
    x, tx, allx = (load_matrix(files[suffix]) for suffix in ("x", "tx", "allx"))
    for suffix, part in (("x", x), ("tx", tx)):
        if part.shape[1] != allx.shape[1]:
            raise InputError(
                f"{files[suffix]}: has {part.shape[1]} columns and allx has {allx.shape[1]}; "
                "copy the files of one graph"
            )
    if x.shape[0] > allx.shape[0]:
        raise InputError(f"{files['x']}: has more rows than allx; copy the files of one graph")
    return allx, tx, x.shape[0]


def _check_test(path: Path, test: NDArray[np.int64], num_other: int, rows: int) -> None:
    if len(test) != rows:
        raise InputError(
            f"{path}: lists {len(test)} nodes for the {rows} rows of tx; copy both again"
        )
    if len(test) and test.min() < num_other:
        line = int(np.argmin(test)) + 1
        raise InputError(
            f"{path}: line {line}: node {test.min()} belongs to the {num_other} rows of allx; "
            "test nodes must come after them"
        )
    if len(np.unique(test)) != len(test):
        raise InputError(f"{path}: lists a node twice; copy it again")


def _labels(files: dict[str, Path], rows: dict[str, int], order: NDArray[np.int64]) -> Labels:
    arrays = {suffix: load_array(files[suffix]) for suffix in rows}
    columns = arrays["ally"].shape[-1:]
    for suffix, array in arrays.items():
        if array.shape != (rows[suffix], *columns) or array.dtype.kind not in "biuf":
            raise InputError(
                f"{files[suffix]}: has shape {array.shape} and dtype {array.dtype}; expected "
                f"{rows[suffix]} rows of 0 and 1, one column a class: copy the files of one graph"
            )
        wrong = (array != 0) & (array != 1)
        if (row := first_true(wrong.any(axis=1) | (array.sum(axis=1) > 1))) is not None:
            raise InputError(
                f"{files[suffix]}: row {row} does not mark one class; "
                "a row has a single 1, or none for no label"
            )
    none = np.zeros((1, *columns), arrays["ally"].dtype)
    one_hot = np.concatenate([arrays["ally"], arrays["ty"], none])[order]
    classes = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1)
    return replace(labelled(classes, str(files["ally"])), num_classes=columns[0])


def _edges(
    graph: dict[int, list[int]], path: Path, num_nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each edge once per direction; the lists repeat many, or have only one direction."""
    lengths = [len(neighbours) for neighbours in graph.values()]
    src = np.repeat(np.fromiter(graph, np.int64, len(graph)), lengths)
    dst = np.fromiter((j for items in graph.values() for j in items), np.int64, len(src))
    for ids in (src, dst):
        if (edge := first_true((ids < 0) | (ids >= num_nodes))) is not None:
            raise InputError(
                f"{path}: the list of node {src[edge]} has an id outside 0..{num_nodes - 1}; "
                "copy it again"
            )
    keys = np.unique(np.concatenate([src * num_nodes + dst, dst * num_nodes + src]))
    return keys // num_nodes, keys % num_nodes
