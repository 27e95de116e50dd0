"""Sparse feature matrices as streams of dense rows: a store holds dense features."""

from collections.abc import Sequence
from functools import partial

import scipy.sparse

from hpcgnn.convert.source import Features, FeatureStream
from hpcgnn.errors import InputError
from hpcgnn.typing import Array

__all__ = ["checked_matrix", "dense_features"]

_BLOCK_VALUES = 1 << 20


def checked_matrix(
    where: str, *, data: Array, indices: Array, indptr: Array, shape: Sequence[int]
) -> scipy.sparse.csr_matrix:
    """Return a CSR matrix whose parts fit together; raises `InputError` if they do not."""
    kinds = (data.dtype.kind in "biuf", indices.dtype.kind in "iu", indptr.dtype.kind in "iu")
    try:
        if not all(kinds) or len(shape) != 2 or not all(type(side) is int for side in shape):
            raise ValueError("values must be numbers, indices and two sides whole numbers")
        matrix = scipy.sparse.csr_matrix((data, indices, indptr), shape=tuple(shape))
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{where} is no valid CSR matrix ({reason}); save it again") from error
    return matrix


def dense_features(parts: Sequence[scipy.sparse.csr_matrix], where: str) -> Features:
    """Return the rows of CSR matrices below each other, all with equally many columns."""
    columns = parts[0].shape[1]
    rows = max(1, _BLOCK_VALUES // max(1, columns))
    return Features(columns, parts[0].dtype, partial(_blocks, parts, rows), partial(_locate, where))


def _blocks(parts: Sequence[scipy.sparse.csr_matrix], rows: int) -> FeatureStream:
    for part in parts:
        for first in range(0, part.shape[0], rows):
            yield part[first : first + rows].toarray()


def _locate(where: str, row: int) -> str:
    return f"{where}, row {row}"
