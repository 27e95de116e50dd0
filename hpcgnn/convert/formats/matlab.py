"""MATLAB files (.mat) up to version 7.2: a sparse adjacency matrix and node data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.convert.nodes import labelled
from hpcgnn.convert.read.arrays import RelationEdges, array_source, matrix_features
from hpcgnn.convert.read.mat import MatFile
from hpcgnn.convert.source import ConvertOptions, GraphSource, NodeArrays
from hpcgnn.errors import InputError
from hpcgnn.typing import Array

_ADJACENCY = ("network", "Network", "A", "adj", "adjacency", "W", "graph", "G")
_FEATURES = ("features", "Attributes", "attributes", "attrb", "X", "x", "fea", "feature")
_LABELS = ("group", "Label", "label", "labels", "Class", "gnd", "y", "Y")


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the graph of a file; raises `InputError`."""
    del options  # no option applies
    file = MatFile(path)
    name = _first_in(file, _ADJACENCY)
    matrix = file.load(name) if name else None
    if "Problem" in file and not name:
        # The layout of the SuiteSparse collection.
        name, matrix = "A", file.load("Problem", "A")
    if matrix is None:
        raise InputError(
            f"{path}: holds {', '.join(file) or 'nothing'}, but no adjacency; name the matrix "
            f"one of {', '.join(_ADJACENCY)}"
        )
    if np.ndim(matrix) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{path}: {name} has shape {np.shape(matrix)}; an adjacency is square")
    coo = scipy.sparse.coo_matrix(matrix)
    weights = None if (coo.data == 1).all() else coo.data
    fields: dict[str, Any] = {}
    used = {name, "Problem"}
    if key := _first_in(file, _FEATURES):
        fields["features"] = matrix_features(file.load(key), f"{path}: {key}")
        used.add(key)
    if key := _first_in(file, _LABELS):
        fields["labels"] = labelled(_labels(file.load(key)), f"{path}: {key}")
        used.add(key)
    edges = {"": RelationEdges(coo.row.astype(np.int64), coo.col.astype(np.int64), weights)}
    ignored = tuple(variable for variable in file if variable not in used)
    nodes = NodeArrays(**fields)
    return array_source(path, edges, matrix.shape[0], nodes, inputs=(path,), ignored=ignored)


def _first_in(file: MatFile, names: Sequence[str]) -> str:
    return next((name for name in names if name in file), "")


def _labels(value: Any) -> Array:
    """Return classes counted from 0 (MATLAB counts from 1), or a matrix of 0 and 1."""
    array = value.toarray() if scipy.sparse.issparse(value) else np.asarray(value)
    if array.ndim == 2 and 1 in array.shape:
        array = array.reshape(-1)
    if array.ndim == 1 and array.dtype.kind in "biuf" and array.size and array.min() >= 1:
        array = array.astype(np.float64) - 1
    return array
