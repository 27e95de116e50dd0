"""A CSR matrix on one rank, with int32 columns, that multiplies through the native kernels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, Union

import numpy as np

from hpcgnn import kernels
from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.kernels.reuse import empty
from hpcgnn.sparse.pieces import row_pieces
from hpcgnn.typing import Array, FloatArray, LocalIndices, Mask, Offsets

if TYPE_CHECKING:
    from hpcgnn.sparse.device import DeviceCSR, DeviceMemory


@dataclass(frozen=True, eq=False)
class Kinds:
    """Which of `count` relations every row of a matrix is of, or every column: int32."""

    count: int
    of_rows: LocalIndices | None = None
    of_columns: LocalIndices | None = None

    @property
    def turned(self) -> "Kinds":
        """Those of the transpose."""
        return Kinds(self.count, self.of_columns, self.of_rows)

    def moved(self, columns: LocalIndices, num_columns: int) -> "Kinds":
        """Return those of columns in other places, as in `LocalCSR.select`."""
        if self.of_columns is None:
            return self
        return Kinds(self.count, None, _moved(self.of_columns, columns, num_columns))


class _InMainMemory:
    @cached_property
    def operand(self: Any) -> kernels.SparseMatrix:
        """The matrix as products take it, made once."""
        return operand(self)

    @property
    def memory(self) -> "MainMemory":
        """Main memory."""
        return MAIN


@dataclass(frozen=True, eq=False)
class LocalCSR(_InMainMemory):
    """Rows of a sparse matrix, all of them or a chosen subset.

    `indptr` (m + 1,) are int64 offsets of the m stored rows, `indices` (nnz,) int32 columns,
    `values` (nnz,) float32 or float64, or None when every entry is one. `shape` is that of the
    whole matrix, of which `rows` (m,) int32 are stored, increasing; None: all. `features` (nnz, F)
    are those of entries, for attention that reads features of edges; else None.

    Instead of values there may be factors, of which an entry is the product: `row_factors` of all
    rows, `column_factors` of all columns, float32 or float64; None: ones.

    `kinds` tells relations apart, for products of each with columns of its own.
    """

    indptr: Offsets
    indices: LocalIndices
    values: FloatArray | None
    shape: tuple[int, int]
    rows: LocalIndices | None = None
    features: FloatArray | None = None
    row_factors: FloatArray | None = None
    column_factors: FloatArray | None = None
    kinds: Kinds | None = None
    coded: ClassVar[None] = None

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return len(self.indices)

    def with_values(self, values: FloatArray | None) -> "LocalCSR":
        """Return the same pattern with other values, sharing the index arrays."""
        return LocalCSR(self.indptr, self.indices, values, self.shape, self.rows)

    def with_factors(self, rows: FloatArray | None, columns: FloatArray | None) -> "LocalCSR":
        """Return the same pattern with these factors in place of values."""
        return replace(self.with_values(None), row_factors=rows, column_factors=columns)

    def entries(self, chosen: Mask | None = None) -> FloatArray | None:
        """Return the numbers of all entries, or of `chosen` ones (nnz,); None: all are one."""
        index: Any = slice(None) if chosen is None else chosen
        if self.row_factors is None and self.column_factors is None:
            return None if self.values is None else self.values[index]
        values: FloatArray | None = None
        for factors, numbers in (
            (self.row_factors, self.entry_rows()),
            (self.column_factors, self.indices),
        ):
            if factors is not None:
                picked = factors[numbers[index]]
                values = picked if values is None else values * picked
        return values

    def entry_rows(self, stored: slice = slice(None)) -> LocalIndices:
        """Return the (nnz,) int32 matrix row of every entry, or of those of some stored rows."""
        rows = np.arange(len(self.indptr) - 1, dtype=np.int32) if self.rows is None else self.rows
        return np.repeat(rows[stored], np.diff(self.indptr)[stored])

    def pieces(self) -> Iterator[tuple[slice, slice]]:
        """Yield stored rows and their entries, a bounded number of entries at a time."""
        for rows in row_pieces(self.indptr):
            yield rows, slice(self.indptr[rows.start], self.indptr[rows.stop])

    def select(
        self,
        columns: LocalIndices,
        num_columns: int,
        *,
        kept: Mask | None = None,
        rows: LocalIndices | None = None,
        num_rows: int | None = None,
    ) -> "LocalCSR":
        """Return some of the entries, with rows and columns numbered anew.

        `columns` is the new int32 index of each column, `rows` that of each row, increasing, or
        None to leave them; a negative one drops its entries, as does `kept` (nnz,) where it is
        False. `num_rows` are those of the result when `rows` is given.
        """
        stored = np.arange(len(self.indptr) - 1, dtype=np.int32) if self.rows is None else self.rows
        if rows is not None:
            stored = rows[stored]
        counts, indices, values = kernels.select_csr(
            self.indptr,
            self.indices,
            self.values,
            columns,
            rows=None if rows is None else stored >= 0,
            entries=kept,
        )
        occupied = np.flatnonzero(counts)
        shape = self.shape[0] if num_rows is None else num_rows, num_columns
        by_row, by_column = self.row_factors, self.column_factors
        if by_row is not None and rows is not None:
            by_row = _moved(by_row, rows, shape[0])
        if by_column is not None:
            by_column = _moved(by_column, columns, num_columns)
        indptr = np.concatenate([[0], np.cumsum(counts[occupied])]).astype(np.int64)
        # A list of all rows would cost a pass over every result.
        left = None if len(occupied) == shape[0] else stored[occupied]
        part = LocalCSR(indptr, indices, values, shape, left)
        kinds = self.kinds
        if kinds is not None:
            assert rows is None, "matrices are cut before they know relations"
            kinds = kinds.moved(columns, num_columns)
        return replace(part, row_factors=by_row, column_factors=by_column, kinds=kinds)

    def beside(self, columns: FloatArray) -> "LocalCSR":
        """Return the matrix with columns (rows, k) behind its own, of which zeros are left out.

        All rows are stored.
        """
        assert self.values is not None
        rows, positions = np.nonzero(columns)
        more = np.bincount(rows, minlength=self.shape[0])
        indptr = self.indptr + np.concatenate([[0], np.cumsum(more)])
        # What was there moves by the entries of the rows before.
        moved = np.arange(self.nnz) + np.repeat((indptr - self.indptr)[:-1], np.diff(self.indptr))
        fresh = np.ones(self.nnz + len(rows), np.bool_)
        fresh[moved] = False
        dtype = np.result_type(self.values, columns)
        indices, values = np.empty(len(fresh), np.int32), np.empty(len(fresh), dtype)
        indices[moved], values[moved] = self.indices, self.values
        indices[fresh], values[fresh] = positions + self.shape[1], columns[rows, positions]
        return LocalCSR(indptr, indices, values, (self.shape[0], self.shape[1] + columns.shape[1]))

    def marks(self, rows: Mask) -> FloatArray:
        """Return how many entries of chosen rows (a mask) each column has, (columns, 1) float32."""
        out = np.empty((self.shape[1], 1), np.float32)
        marks = rows.astype(np.float32)[:, None]
        pattern = kernels.SparseMatrix(self.indptr, self.indices, rows=self.rows)
        kernels.spmm_transpose(pattern, marks, out)
        return out

    @cached_property
    def with_all_rows(self) -> "LocalCSR":
        """The same matrix with every row stored, also those without entries."""
        if self.rows is None:
            return self
        counts = np.zeros(self.shape[0], np.int64)
        counts[self.rows] = np.diff(self.indptr)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        return replace(self, indptr=indptr, rows=None)

    @cached_property
    def transposed(self) -> "LocalCSR":
        """The transpose, built at the first use and kept: products with it need no atomics."""
        has_features = self.features is not None
        indptr, indices, values, source = kernels.transpose_csr(
            self.indptr, self.indices, self.values, self.shape[1], with_source=has_features
        )
        features = None if self.features is None else self.features[source]
        if self.rows is not None:
            indices = self.rows[indices]
        shape = self.shape[1], self.shape[0]
        factors = self.column_factors, self.row_factors
        kinds = None if self.kinds is None else self.kinds.turned
        return LocalCSR(indptr, indices, values, shape, None, features, *factors, kinds)

    @cached_property
    def by_kind(self) -> "LocalCSR":
        """The same entries between nodes and pairs of a node and a relation, node after node.

        Where rows are of relations, their columns are pairs of that relation; where columns are,
        there is a row for each pair. Built at the first use and kept; shares what is the same.
        """
        kinds, (num_rows, num_columns) = self.kinds, self.shape
        assert kinds is not None
        count, lengths = kinds.count, np.diff(self.indptr)
        if kinds.of_rows is not None:
            stored = kinds.of_rows if self.rows is None else kinds.of_rows[self.rows]
            indices = self.indices * np.int32(count)
            indices += np.repeat(stored.astype(np.int32, copy=False), lengths)
            factors = self.column_factors
            factors = None if factors is None else np.repeat(factors, count)
            shape = num_rows, num_columns * count
            return replace(self, indices=indices, shape=shape, column_factors=factors, kinds=None)
        assert kinds.of_columns is not None
        stored = np.arange(len(lengths), dtype=np.int32) if self.rows is None else self.rows
        pairs = np.repeat(stored * np.int32(count), lengths)
        pairs += kinds.of_columns[self.indices]
        counts = np.bincount(pairs, minlength=num_rows * count)
        rows = None if self.rows is None else np.flatnonzero(counts).astype(np.int32)
        counts = counts if rows is None else counts[rows]
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        indices, values, factors = self.indices, self.values, self.row_factors
        if np.any(pairs[1:] < pairs[:-1]):
            order = np.argsort(pairs, kind="stable")
            indices, values = indices[order], None if values is None else values[order]
        factors = None if factors is None else np.repeat(factors, count)
        shape = num_rows * count, num_columns
        return LocalCSR(indptr, indices, values, shape, rows, None, factors, self.column_factors)

    @property
    def edges(self) -> kernels.Block:
        """The pattern as the attention kernels take it."""
        return kernels.Block(self.indptr, self.indices, self.rows)

    def matmul(
        self, x: Array, out: Array, *, accumulate: bool = False, half: WireFormat | None = None
    ) -> None:
        """Write or add ``A @ x`` to `out` (rows, width).

        `x` (columns, width) is C-contiguous, in the dtype of the values, or 16-bit floats as
        uint16, which `half` tells apart. Without `accumulate` every row is written, also rows that
        are not stored.

        With `kinds` the widths may differ: nodes then have columns for each relation, side by side,
        and an entry reads, or writes, those of its own.
        """
        if self.kinds is not None and x.shape[1] != out.shape[1]:
            width = min(x.shape[1], out.shape[1])
            x, out = x.reshape(-1, width), out.reshape(-1, width)
            self.by_kind.matmul(x, out, accumulate=accumulate, half=half)
            return
        multiply(kernels, self.operand, x, out, accumulate=accumulate, half=half)


@dataclass(frozen=True, eq=False)
class CodedCSR(_InMainMemory):
    """A `LocalCSR` whose columns take fewer than 4 bytes each; products have the same bits.

    What reads columns otherwise decodes them anew, and keeps them no longer than it needs.
    """

    indptr: Offsets
    coded: kernels.CodedColumns
    values: FloatArray | None
    shape: tuple[int, int]
    rows: LocalIndices | None
    row_factors: FloatArray | None
    column_factors: FloatArray | None
    indices: ClassVar[None] = None
    features: ClassVar[None] = None

    @classmethod
    def of(cls, matrix: LocalCSR) -> "CodedCSR":
        """Code the columns of a matrix without features of entries."""
        assert matrix.features is None
        coded = kernels.code_columns(matrix.indptr, matrix.indices)
        factors = matrix.row_factors, matrix.column_factors
        return cls(matrix.indptr, coded, matrix.values, matrix.shape, matrix.rows, *factors)

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return len(self.coded)

    @property
    def plain(self) -> LocalCSR:
        """The matrix with its columns decoded, made anew."""
        indices = kernels.decode_columns(self.coded, self.indptr)
        rest = self.rows, None, self.row_factors, self.column_factors
        return LocalCSR(self.indptr, indices, self.values, self.shape, *rest)

    @property
    def edges(self) -> kernels.Block:
        """The pattern as the attention kernels take it, made anew."""
        return self.plain.edges

    @property
    def with_all_rows(self) -> "CodedCSR":
        """The same matrix with every row stored; see `LocalCSR.with_all_rows`."""
        return CodedCSR.of(self.plain.with_all_rows)

    @cached_property
    def transposed(self) -> "CodedCSR":
        """The transpose, built at the first use and kept."""
        return CodedCSR.of(self.plain.transposed)

    def matmul(
        self, x: Array, out: Array, *, accumulate: bool = False, half: WireFormat | None = None
    ) -> None:
        """Do as `LocalCSR.matmul` does."""
        multiply(kernels, self.operand, x, out, accumulate=accumulate, half=half)


def turned(matrix: Any, factors: Array | None) -> Any:
    """Return a matrix of ones in main memory with factors (columns,) and none of rows; shared."""
    return replace(matrix, row_factors=None, column_factors=factors)


def _moved(factors: Array, numbers: LocalIndices, count: int) -> Array:
    """Return the factors of `count` new rows or columns, of which a negative number is none."""
    products = np.ones(count, factors.dtype)
    products[numbers[numbers >= 0]] = factors[numbers >= 0]
    return products


def operand(matrix: Any, groups: Any = None) -> kernels.SparseMatrix:
    """Return a `LocalMatrix` as products take it; a copy on a device has `groups`."""
    stored = matrix.indptr, matrix.indices, matrix.values, matrix.rows
    factors = {"row_factors": matrix.row_factors, "column_factors": matrix.column_factors}
    return kernels.SparseMatrix(*stored, groups=groups, coded=matrix.coded, **factors)


def multiply(
    face: Any,
    matrix: kernels.SparseMatrix,
    x: Array,
    out: Array,
    *,
    accumulate: bool,
    half: WireFormat | None,
) -> None:
    """Write or add ``A @ x`` to `out` with the kernels of a memory, `hpcgnn.kernels` or ``.cuda``.

    `matrix` is an `operand`.
    """
    if matrix.rows is not None and not accumulate:
        # The kernel leaves rows alone that are not stored.
        out[...] = 0
        accumulate = True
    face.spmm(matrix, x, out, accumulate=accumulate, half=half)


class MainMemory:
    """NumPy's arrays; a `Memory`."""

    kernels = kernels
    arrays = np
    empty = staticmethod(empty)

    def put(self, array: Array) -> Array:
        """Return the array."""
        return array

    def matrix(self, block: LocalCSR) -> LocalCSR:
        """Return the matrix."""
        return block

    def coded(self, block: LocalCSR) -> CodedCSR:
        """Return the matrix for products in little memory."""
        return CodedCSR.of(block)


MAIN = MainMemory()
"""The memory of this process."""

LocalMatrix: TypeAlias = Union[LocalCSR, CodedCSR, "DeviceCSR"]
"""A CSR matrix in some memory; what multiplies and attends is written once for all."""

Memory: TypeAlias = Union[MainMemory, "DeviceMemory"]
"""Where the rows of a product lie: its arrays, kernels and matrices."""
