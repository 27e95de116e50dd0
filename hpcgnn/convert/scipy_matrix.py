"""The Python entry for SciPy matrices."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.convert.memory import node_arrays, store_arrays
from hpcgnn.convert.pipeline import Report
from hpcgnn.convert.source import ConvertOptions
from hpcgnn.errors import InputError

__all__ = ["from_scipy"]


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
    node j then aggregates from node i, and the store holds it in row j, column i. For a matrix in
    whose rows nodes aggregate, pass its transpose. Values other than 1 become float32 weights;
    stored zeros are no edges.

    `features` [n, f], `labels` [n] (-1 for none) or [n, classes] of 0 and 1, and `split` [n] of
    `hpcgnn.storage.Split` may be arrays or tensors. Raises `InputError` for faulty values, and then
    an earlier file at `path` stays whole.
    """
    if not scipy.sparse.issparse(matrix):
        raise InputError(
            f"matrix: is a {type(matrix).__name__}; give a SciPy sparse matrix (csr_matrix(array))"
        )
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"matrix: has shape {matrix.shape}; an adjacency is square")
    entries = matrix.tocoo()
    weights = None if (entries.data == 1).all() else entries.data
    return store_arrays(
        path,
        "matrix",
        {"": (entries.row.astype(np.int64), entries.col.astype(np.int64), weights)},
        matrix.shape[0],
        node_arrays("matrix", features, labels, split, class_names),
        options or ConvertOptions(),
    )
