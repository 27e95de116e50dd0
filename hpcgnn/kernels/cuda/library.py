"""cuSPARSE's product through cupyx: the baseline of the benchmarks."""

import importlib
from typing import Any

from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy


class CusparseMatrix:
    """A CSR matrix that cuSPARSE multiplies.

    Parameters
    ----------
    indptr, indices
        ``(m + 1,)`` int64 and ``(nnz,)`` int32 of the device; columns ascend in each row.
    values
        ``(nnz,)`` float32 or float64; None = all ones, of `dtype`.
    shape
        Rows and columns.
    dtype
        Of the ones.
    """

    def __init__(
        self,
        indptr: DeviceArray,
        indices: DeviceArray,
        values: DeviceArray | None,
        shape: tuple[int, int],
        dtype: str = "float32",
    ) -> None:
        sparse = importlib.import_module("cupyx.scipy.sparse")
        data = load_cupy().ones(indices.shape, dtype) if values is None else values
        self._matrix: Any = sparse.csr_matrix((data, indices, indptr), shape=shape)
        # The scan of the whole pattern that this asks for belongs to no product.
        if not self._matrix.has_canonical_format:
            raise ValueError("columns must ascend in each row, without repeats")
        self._spmm: Any = importlib.import_module("cupyx.cusparse").spmm

    def spmm(self, x: DeviceArray, out: DeviceArray, *, accumulate: bool = False) -> None:
        """Write or add ``A @ x`` to `out`.

        Parameters
        ----------
        x
            ``(k, w)`` C-contiguous, of the dtype of the values.
        out
            ``(m, w)`` *Fortran*-contiguous: CuPy gives cuSPARSE no other layout of results.
        """
        # The transpose of rows one after the other is columns one after the other.
        self._spmm(self._matrix, x.T, out, beta=float(accumulate), transb=True)
