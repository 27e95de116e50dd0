"""A CSR matrix on one rank, with int32 columns, that multiplies through the native kernels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, Union

import numpy as np

from hpcgnn import kernels
from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.kernels.reuse import empty
from hpcgnn.sparse.by_length import NARROW, NarrowProducts
from hpcgnn.sparse.pieces import row_pieces
from hpcgnn.typing import Array, FloatArray, LocalIndices, Mask, Offsets

if TYPE_CHECKING:
    from hpcgnn.sparse.device import DeviceCSR, DeviceMemory


@dataclass(frozen=True, eq=False)
class Kinds:
    """The relation, int32 below `count`, of every row of a matrix, or of every column."""

    count: int
    of_rows: LocalIndices | None = None
    of_columns: LocalIndices | None = None

    @property
    def turned(self) -> "Kinds":
        """The relations of the transpose."""
        return Kinds(self.count, self.of_columns, self.of_rows)

    def moved(self, columns: LocalIndices, num_columns: int) -> "Kinds":
        """Return the relations after renumbering columns as in `LocalCSR.select`."""
        if self.of_columns is None:
            return self
        return Kinds(self.count, None, _moved(self.of_columns, columns, num_columns))


class _InMainMemory:
    @cached_property
    def operand(self: Any) -> kernels.SparseMatrix:
        """The matrix in the form that kernels take, made once."""
        return operand(self)

    @property
    def memory(self) -> "MainMemory":
        """Main memory."""
        return MAIN


@dataclass(frozen=True, eq=False)
class LocalCSR(_InMainMemory):
    """Rows of a sparse matrix, all of them or a subset.

    `indptr` (m + 1,) are int64 offsets of the m stored rows, `indices` (nnz,) int32 columns,
    `values` (nnz,) float32 or float64, or None if every entry is one. `shape` is that of the whole
    matrix; `rows` (m,) int32 are the stored rows, increasing, or None for all. `features` (nnz, F)
    are those of entries, for attention that reads features of edges; else None.

    Instead of values there may be factors, whose product is the entry: `row_factors` of all rows
    and `column_factors` of all columns, float32 or float64, or None for ones.

    `kinds` has the relations of rows or columns, for products of each with its own columns.
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
        """Return the same pattern with factors instead of values."""
        return replace(self.with_values(None), row_factors=rows, column_factors=columns)

    def entries(self, chosen: Mask | None = None) -> FloatArray | None:
        """Return the values of all entries, or of those in `chosen` (nnz,); None if all are one."""
        index: Any = slice(None) if chosen is None else chosen
        if self.row_factors is None and self.column_factors is None:
            return None if self.values is None else self.values[index]
        values: FloatArray | None = None
        for factors, numbers in (
            (self.row_factors, self.entry_rows()),
            (self.column_factors, self.indices),
        ):
            if factors is not None:
                of_entries = factors[numbers[index]]
                values = of_entries if values is None else values * of_entries
        return values

    def entry_rows(self, stored: slice = slice(None)) -> LocalIndices:
        """Return the row (nnz,) int32 of every entry, or of the entries of some stored rows."""
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
        """Return some of the entries, with rows and columns renumbered.

        `columns` is the new int32 index of each column, `rows` that of each row, increasing, or
        None to leave rows as they are. Entries with a negative index, or with False in `kept`
        (nnz,), are dropped. With `rows`, `num_rows` is the number of rows of the result.
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
        # None, not a list of all rows, which would cost a pass over every result.
        stored_rows = None if len(occupied) == shape[0] else stored[occupied]
        part = LocalCSR(indptr, indices, values, shape, stored_rows)
        kinds = self.kinds
        if kinds is not None:
            assert rows is None, "rows are selected before relations are known"
            kinds = kinds.moved(columns, num_columns)
        return replace(part, row_factors=by_row, column_factors=by_column, kinds=kinds)

    def beside(self, columns: FloatArray) -> "LocalCSR":
        """Append dense `columns` (rows, k), without their zeros; all rows must be stored."""
        assert self.values is not None
        rows, positions = np.nonzero(columns)
        more = np.bincount(rows, minlength=self.shape[0])
        indptr = self.indptr + np.concatenate([[0], np.cumsum(more)])
        # Old entries move by the number of new entries in earlier rows.
        moved = np.arange(self.nnz) + np.repeat((indptr - self.indptr)[:-1], np.diff(self.indptr))
        is_new = np.ones(self.nnz + len(rows), np.bool_)
        is_new[moved] = False
        dtype = np.result_type(self.values, columns)
        indices, values = np.empty(len(is_new), np.int32), np.empty(len(is_new), dtype)
        indices[moved], values[moved] = self.indices, self.values
        indices[is_new], values[is_new] = positions + self.shape[1], columns[rows, positions]
        return LocalCSR(indptr, indices, values, (self.shape[0], self.shape[1] + columns.shape[1]))

    def marks(self, rows: Mask) -> FloatArray:
        """Count the entries of each column in the rows of a mask, (columns, 1) float32."""
        out = np.empty((self.shape[1], 1), np.float32)
        marks = rows.astype(np.float32)[:, None]
        pattern = kernels.SparseMatrix(self.indptr, self.indices, rows=self.rows)
        kernels.spmm_transpose(pattern, marks, out)
        return out

    @cached_property
    def with_all_rows(self) -> "LocalCSR":
        """The same matrix with every row stored, empty ones included."""
        if self.rows is None:
            return self
        counts = np.zeros(self.shape[0], np.int64)
        counts[self.rows] = np.diff(self.indptr)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        return replace(self, indptr=indptr, rows=None)

    @cached_property
    def transposed(self) -> "LocalCSR":
        """The transpose, made once: products with it need no atomics."""
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
        """The same entries, with pairs (node, relation), numbered node after node, on one side.

        If rows have relations, a column becomes the pair of its node and the row's relation; if
        columns have relations, there is a row for each pair. Made once; shares unchanged arrays.
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

    @cached_property
    def _narrow(self) -> NarrowProducts:
        return NarrowProducts(self.operand)

    def values_changed(self) -> None:
        """Forget copies of the values, which were changed in place."""
        vars(self).pop("_narrow", None)

    @property
    def edges(self) -> kernels.Block:
        """The pattern for the attention kernels."""
        return kernels.Block(self.indptr, self.indices, self.rows)

    def matmul(
        self, x: Array, out: Array, *, accumulate: bool = False, half: WireFormat | None = None
    ) -> None:
        """Write or add ``A @ x`` to `out` (rows, width).

        `x` (columns, width) is C-contiguous, in the dtype of the values, or 16-bit floats as
        uint16, whose format is `half`. Without `accumulate` every row is written, also rows that
        are not stored.

        With `kinds` the widths may differ: the wider side has a block of columns for each relation,
        and an entry reads, or writes, the block of its relation.
        """
        if self.kinds is not None and x.shape[1] != out.shape[1]:
            width = min(x.shape[1], out.shape[1])
            x, out = x.reshape(-1, width), out.reshape(-1, width)
            self.by_kind.matmul(x, out, accumulate=accumulate, half=half)
            return
        matrix = self._narrow.operand() if x.shape[1] <= NARROW else self.operand
        multiply(kernels, matrix, x, out, accumulate=accumulate, half=half)


@dataclass(frozen=True, eq=False)
class CodedCSR(_InMainMemory):
    """A `LocalCSR` whose columns take fewer than 4 bytes each; products are bit-identical.

    Other uses of the columns decode them temporarily.
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
        """The matrix with decoded columns, made at each call."""
        indices = kernels.decode_columns(self.coded, self.indptr)
        rest = self.rows, None, self.row_factors, self.column_factors
        return LocalCSR(self.indptr, indices, self.values, self.shape, *rest)

    @property
    def edges(self) -> kernels.Block:
        """The pattern for the attention kernels, made at each call."""
        return self.plain.edges

    @property
    def with_all_rows(self) -> "CodedCSR":
        """The same matrix with every row stored; see `LocalCSR.with_all_rows`."""
        return CodedCSR.of(self.plain.with_all_rows)

    @cached_property
    def transposed(self) -> "CodedCSR":
        """The transpose, made once."""
        return CodedCSR.of(self.plain.transposed)

    def matmul(
        self, x: Array, out: Array, *, accumulate: bool = False, half: WireFormat | None = None
    ) -> None:
        """Write or add ``A @ x`` as `LocalCSR.matmul`."""
        multiply(kernels, self.operand, x, out, accumulate=accumulate, half=half)


def turned(matrix: Any, factors: Array | None) -> Any:
    """Return a matrix of ones in main memory with column `factors` only; arrays are shared."""
    return replace(matrix, row_factors=None, column_factors=factors)


def _moved(factors: Array, numbers: LocalIndices, count: int) -> Array:
    """Return factors after renumbering to `count` rows or columns; negative numbers are dropped."""
    moved = np.ones(count, factors.dtype)
    moved[numbers[numbers >= 0]] = factors[numbers >= 0]
    return moved


def operand(matrix: Any, groups: Any = None) -> kernels.SparseMatrix:
    """Return a `LocalMatrix` in the form that kernels take; `groups` are for a GPU."""
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
    """Write or add ``A @ x`` to `out` with the kernels `face`, `hpcgnn.kernels` or ``.cuda``.

    `matrix` is an `operand`.
    """
    if matrix.rows is not None and len(matrix.rows) < len(out) and not accumulate:
        # The kernel does not write rows that are not stored.
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
"""A CSR matrix in main or GPU memory, with one interface for products and attention."""

Memory: TypeAlias = Union[MainMemory, "DeviceMemory"]
"""The memory of a product's rows, with its arrays, kernels and matrices."""
