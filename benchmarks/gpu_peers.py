"""The peers of the GPU benchmark, each where it is installed."""

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.spmm_graphs import Matrix
from hpcgnn.autograd.crossing import as_tensor
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy

__all__ = ["CusparseMatrix", "attention_peers", "product_peers"]


def product_peers(matrix: Matrix, x: Any) -> dict[str, Callable[[], object]]:
    """Return weighted float32 products of libraries with the device array `x`."""
    cupy, shape = load_cupy(), (matrix.num_nodes, matrix.num_nodes)
    arrays = [cupy.asarray(each) for each in (matrix.indptr, matrix.indices, matrix.values)]
    cusparse = CusparseMatrix(arrays[0], arrays[1], arrays[2], shape)
    by_columns = cupy.empty(x.shape, x.dtype, order="F")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "CSR support is in beta"
        # One width of index for offsets and columns: torch takes no other.
        tensors = [as_tensor(each) for each in (arrays[0].astype("int32"), *arrays[1:])]
        sparse = torch.sparse_csr_tensor(*tensors, shape)
    dense = as_tensor(x)
    peers: dict[str, Callable[[], object]] = {
        "cusparse": partial(cusparse.spmm, x, by_columns),
        "torch_csr": lambda: sparse @ dense,
    }
    if find_spec("torch_geometric") is not None:
        from torch_geometric.utils import spmm  # noqa: PLC0415  (only where it is installed)

        peers["pyg"] = partial(spmm, sparse, dense, reduce="sum")
    return peers


def attention_peers(
    matrix: Matrix, operands: list[torch.Tensor], heads: int
) -> dict[str, Callable[[], object]]:
    """Return torch-geometric's GATConv, forward and backward, on the operands of ours."""
    from torch_geometric.nn import GATConv  # noqa: PLC0415  (only where it is installed)

    x, weight, source, target, grad = operands
    layer = GATConv(
        weight.shape[0],
        weight.shape[1] // heads,
        heads=heads,
        negative_slope=0.2,
        add_self_loops=False,
        bias=False,
    ).to(x.device)
    with torch.no_grad():
        layer.lin.weight.copy_(weight.T)
        layer.att_src.copy_(source[None])
        layer.att_dst.copy_(target[None])
    leaf = x.clone().requires_grad_()
    csr = torch.from_numpy(matrix.indptr), torch.from_numpy(matrix.indices).long()
    rows = torch.repeat_interleave(torch.arange(matrix.num_nodes), csr[0].diff())
    edges = torch.stack([csr[1], rows]).to(x.device)

    def run() -> None:
        leaf.grad = None
        layer.zero_grad(set_to_none=True)
        layer(leaf, edges).backward(grad)

    return {"pyg": run}


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
