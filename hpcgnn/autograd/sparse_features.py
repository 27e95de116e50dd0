"""Sparse features, which the first layer multiplies in their stored form.

For torch they are a tensor (N, F) that needs no gradient. Linear maps only multiply the non-zeros,
``X W`` forward and ``Xᵀ G`` for the gradient of W; there is no array of N F numbers. Aggregation
would make the rows dense, so it follows the map, see `hpcgnn.nn.map_then_aggregate`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn import kernels
from hpcgnn.autograd.memory import in_order, memory_of
from hpcgnn.comm.row_map import spans
from hpcgnn.kernels.mixing import GOLDEN, Words, split_mix
from hpcgnn.sparse import LocalCSR
from hpcgnn.typing import FloatArray, GlobalIndices, LocalIndices, Offsets


@dataclass(frozen=True, eq=False)
class ColumnRuns:
    """The values of sparse rows sorted by column, cut into runs of bounded length.

    Run r has the entries `indptr[r]` to `indptr[r + 1]` - 1, all in column `runs[r]`, int64; entry
    e is in row `rows[e]`, int32, and column `columns[e]`, int64.
    """

    indptr: Offsets
    rows: LocalIndices
    values: Tensor
    columns: Tensor
    runs: Tensor

    def largest(self, num_columns: int) -> Tensor:
        """Return the largest magnitude of each column, 0 without entries."""
        zeros = self.values.new_zeros(num_columns)
        return zeros.scatter_reduce(0, self.columns, self.values.abs(), "amax")

    def product(self, factors: Tensor, dense: Tensor) -> Tensor:
        """Return, for each run, the sum of its entries' `factors` times their rows of `dense`."""
        out = dense.new_empty(len(self.runs), dense.shape[1])
        matrix = kernels.SparseMatrix(self.indptr, self.rows, factors.numpy())
        kernels.spmm(matrix, dense.numpy(), out.numpy())
        return out


class SparseFeatures(Tensor):
    """Rows of features as a CSR matrix; torch only sees their shape and dtype.

    `matrix` is in main memory, with all its rows stored and values in float64 or float32. If
    `dtype` is bfloat16, the values are rounded to it, and are multiplied with bfloat16 matrices.
    """

    matrix: LocalCSR

    @staticmethod
    def __new__(cls, matrix: LocalCSR, dtype: torch.dtype) -> "SparseFeatures":
        """Return the rows of a matrix."""
        features: SparseFeatures = Tensor._make_wrapper_subclass(cls, matrix.shape, dtype=dtype)
        features.matrix = matrix
        return features

    @classmethod
    def of(cls, matrix: LocalCSR, precision: str = "float32") -> "SparseFeatures":
        """Return the rows of a matrix; with precision bfloat16, their values are rounded."""
        assert matrix.values is not None
        if precision == "bfloat16":
            narrow = torch.from_numpy(matrix.values).bfloat16().float()
            return cls(matrix.with_values(narrow.numpy()), torch.bfloat16)
        return cls(matrix, torch.from_numpy(matrix.values).dtype)

    def like(self, indptr: Offsets, indices: LocalIndices, values: FloatArray) -> "SparseFeatures":
        """Return other rows with the same number of columns and dtype."""
        shape = len(indptr) - 1, self.shape[1]
        return SparseFeatures(LocalCSR(indptr, indices, values, shape), self.dtype)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """Return a text with the sizes only."""
        return f"SparseFeatures({tuple(self.shape)}, {self.matrix.nnz} values, {self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation of `_OPERATIONS`; raise `TypeError` for others, which need all zeros."""
        if func not in _OPERATIONS:
            raise TypeError(
                f"{func} does not work with sparse features; set graph.sparse_features=never"
            )
        return _OPERATIONS[func](*args, **(kwargs or {}))

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """The size of the matrix' arrays in bytes."""
        stored = self.matrix
        assert stored.values is not None
        return stored.indptr.nbytes + stored.indices.nbytes + stored.values.nbytes

    def write_product(self, matrix: Tensor, out: Tensor, *, accumulate: bool = False) -> Tensor:
        """Write or add ``X matrix`` (N, width) to `out`, and return it."""
        array = memory_of(out).array
        rows = array(in_order(matrix))
        self.matrix.matmul(rows, array(out), accumulate=accumulate, half=self._half)
        return out

    def contract(self, right: Tensor) -> Tensor:
        """Return ``Xᵀ right`` (F, width) in the dtype of weights."""
        rows = memory_of(right).array(right.contiguous())
        wide = np.float64 if rows.dtype == np.float64 else np.float32
        total = np.empty((self.shape[1], rows.shape[1]), wide)
        kernels.spmm_transpose(self.matrix.operand, rows, total, half=self._half)
        return torch.from_numpy(total)

    def by_column(self, length: int) -> ColumnRuns:
        """Return the values by column, in runs of at most `length`."""
        stored = self.matrix
        starts, rows, flipped, _ = kernels.transpose_csr(
            stored.indptr, stored.indices, stored.values, self.shape[1]
        )
        counts = np.diff(starts)
        num_runs = -(-counts // length)
        runs = np.repeat(np.arange(len(counts)), num_runs)
        first = starts[runs] + length * spans(np.zeros(len(num_runs), np.int64), num_runs)
        indptr = np.append(first, stored.nnz).astype(np.int64)
        columns = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
        values = torch.from_numpy(flipped)
        return ColumnRuns(indptr, rows, values, columns, torch.from_numpy(runs))

    def dropped(self, node_ids: GlobalIndices, word: int, p: float) -> "SparseFeatures":
        """Return the rows after dropout; values are dropped as in the dense row."""
        values = drop_values(self.matrix, node_ids, word, p)
        return SparseFeatures(self.matrix.with_values(values), self.dtype)

    def take(self, rows: Tensor) -> "SparseFeatures":
        """Return some rows, (m,) int64 in any order."""
        matrix, numbers = self.matrix, rows.numpy()
        assert matrix.values is not None
        counts = np.diff(matrix.indptr)[numbers]
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        entries = spans(matrix.indptr[numbers], counts)
        return self.like(indptr, matrix.indices[entries], matrix.values[entries])

    def written_out(self) -> Tensor:
        """Return the rows as a dense tensor (N, F)."""
        return self.add_to(torch.zeros(self.shape, dtype=self.dtype))

    def beside(self, columns: Tensor) -> "SparseFeatures":
        """Return the rows with columns (N, k) of the same dtype appended."""
        wide = columns.float() if columns.dtype == torch.bfloat16 else columns
        return SparseFeatures(self.matrix.beside(wide.numpy()), self.dtype)

    def add_to(self, dense: Tensor) -> Tensor:
        """Return the sum of these rows and a tensor (N, F)."""
        out = dense.clone()
        entries = self.matrix.entry_rows().astype(np.int64), self.matrix.indices.astype(np.int64)
        values = torch.from_numpy(self.matrix.values).to(out.dtype)
        return out.index_put_(tuple(map(torch.from_numpy, entries)), values, accumulate=True)

    @property
    def _half(self) -> Any:
        return "bfloat16" if self.dtype == torch.bfloat16 else None


def _index(rows: SparseFeatures, index: Sequence[Tensor | None]) -> SparseFeatures:
    (numbers,) = index
    assert numbers is not None
    return rows.take(numbers)


def _slice(
    rows: SparseFeatures, dim: int = 0, start: int | None = None, end: int | None = None
) -> SparseFeatures:
    assert dim == 0
    stored = rows.matrix
    first, stop, _ = slice(start, end).indices(len(stored.indptr) - 1)
    starts = stored.indptr[first : max(first, stop) + 1]
    entries = slice(starts[0], starts[-1])
    assert stored.values is not None
    # Arrays are shared: scores take all rows, or chunks of them, in every pass.
    return rows.like(starts - starts[0], stored.indices[entries], stored.values[entries])


def _cat(parts: Sequence[Tensor], dim: int = 0) -> SparseFeatures:
    rows, *columns = parts
    tables = [part for part in parts if isinstance(part, SparseFeatures)]
    if dim == 0 and len(tables) == len(parts):
        stored = [table.matrix for table in tables]
        counts = np.concatenate([np.diff(part.indptr) for part in stored])
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        indices = np.concatenate([part.indices for part in stored])
        return tables[0].like(indptr, indices, np.concatenate([part.values for part in stored]))
    behind = dim == 1 and not any(isinstance(part, SparseFeatures) for part in columns)
    if not (behind and isinstance(rows, SparseFeatures)):
        raise TypeError(f"{_aten.cat.default} does not work with sparse features after others")
    return rows.beside(torch.cat(columns, dim=1))


def _to_copy(rows: SparseFeatures, *, dtype: torch.dtype, **_: Any) -> SparseFeatures:
    assert rows.dtype == torch.bfloat16
    assert dtype == torch.float32
    return SparseFeatures(rows.matrix, dtype)


_aten = torch.ops.aten
_OPERATIONS: Mapping[Any, Callable[..., Any]] = {
    _aten.detach.default: lambda rows: SparseFeatures(rows.matrix, rows.dtype),
    _aten.clone.default: lambda rows, **_: SparseFeatures(
        rows.matrix.with_values(rows.matrix.values.copy()), rows.dtype
    ),
    _aten.index.Tensor: _index,
    _aten.slice.Tensor: _slice,
    _aten.add.Tensor: lambda other, rows: rows.add_to(other),
    _aten.cat.default: _cat,
    _aten._to_copy.default: _to_copy,
}


def drop_values(matrix: LocalCSR, node_ids: GlobalIndices, word: int, p: float) -> FloatArray:
    """Return the values as `hpcgnn.kernels.dropout_rows` would leave them in dense rows."""
    assert matrix.values is not None
    # Draw as the kernel does: a stream for each row, and 32 bits of it for each column.
    key = split_mix(np.array([word], np.uint64))
    streams = key + node_ids.astype(np.uint64) * np.uint64(GOLDEN)
    streams = _mixed(_mixed(streams))
    limit, scale = np.uint64(int(np.ldexp(p, 32) + 0.5)), matrix.values.dtype.type(1 / (1 - p))
    out, lengths = np.empty_like(matrix.values), np.diff(matrix.indptr)
    for rows, entries in matrix.pieces():
        columns = matrix.indices[entries].astype(np.uint64)
        row_streams = np.repeat(streams[rows], lengths[rows])
        words = _mixed(row_streams + (columns >> np.uint64(1)) * np.uint64(GOLDEN))
        bits = (words >> ((columns & np.uint64(1)) << np.uint64(5))) & np.uint64(0xFFFFFFFF)
        out[entries] = np.where(bits >= limit, matrix.values[entries] * scale, 0)
    return out


def _mixed(words: Words) -> Words:
    """Return the outputs of SplitMix64 for some states."""
    return split_mix(words - np.uint64(GOLDEN))
