"""The peers of the GPU benchmark, if they are installed."""

import ctypes
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch

from benchmarks.spmm_graphs import Matrix
from hpcgnn.autograd.cupy_bridge import as_device_array, as_tensor
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy, pointer

__all__ = ["CusparseMatrix", "attention_peers", "product_peers"]

# Constants of cuSPARSE's header.
_INT32, _BY_ROWS, _FLOAT32, _REAL = 2, 2, 0, {4: 0, 2: 14}
_TYPES = {4: torch.float32, 2: torch.bfloat16}
_ALGORITHMS = {"cusparse_default": 0, "cusparse_csr2": 6, "cusparse_csr3": 12}


def product_peers(
    matrix: Matrix, x: DeviceArray, out: DeviceArray
) -> dict[str, Callable[[], object]]:
    """Return weighted products of libraries, which write ``A @ x`` to `out` or return it.

    `x`, `out` and the values are float32, or bfloat16 as uint16.
    """
    cupy, shape = load_cupy(), (matrix.num_nodes, matrix.num_nodes)
    pattern = [cupy.asarray(each.astype("int32")) for each in (matrix.indptr, matrix.indices)]
    values = torch.from_numpy(matrix.values).to("cuda", _TYPES[x.dtype.itemsize])
    cusparse = CusparseMatrix(*pattern, as_device_array(values), shape)
    peers: dict[str, Callable[[], object]] = {
        name: cusparse.product(x, out, number) for name, number in _ALGORITHMS.items()
    }
    if x.dtype != "float32":
        return peers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "CSR support is in beta"
        tensors = [as_tensor(each) for each in pattern]
        sparse = torch.sparse_csr_tensor(*tensors, values, shape)
    dense = as_tensor(x)
    peers["torch_csr"] = lambda: sparse @ dense
    if find_spec("torch_geometric") is not None:
        from torch_geometric.utils import spmm  # noqa: PLC0415  (only where it is installed)

        peers["pyg"] = partial(spmm, sparse, dense, reduce="sum")
    return peers


def attention_peers(
    matrix: Matrix, operands: list[torch.Tensor], heads: int
) -> dict[str, Callable[[], object]]:
    """Return torch-geometric's GATConv, forward and backward, on our operands."""
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
    """A CSR matrix for cuSPARSE's fastest products: row-major, preprocessed, with kept buffers.

    Parameters
    ----------
    indptr, indices
        ``(m + 1,)`` and ``(nnz,)`` int32 in device memory.
    values
        ``(nnz,)`` float32 or, as uint16, bfloat16; the dense matrices have the same type.
    shape
        Rows and columns.
    """

    def __init__(
        self,
        indptr: DeviceArray,
        indices: DeviceArray,
        values: DeviceArray,
        shape: tuple[int, int],
    ) -> None:
        # Torch has already loaded the library.
        self._library = ctypes.CDLL("libcusparse.so.12")
        self._handle, self._matrix = ctypes.c_void_p(), ctypes.c_void_p()
        self._held: list[DeviceArray] = [indptr, indices, values]
        self._type = _REAL[values.dtype.itemsize]
        self._call("cusparseCreate", ctypes.byref(self._handle))
        sizes = *map(ctypes.c_int64, shape), ctypes.c_int64(indices.size)
        places = (ctypes.c_void_p(pointer(array)) for array in self._held)
        kinds = _INT32, _INT32, 0, self._type
        self._call("cusparseCreateCsr", ctypes.byref(self._matrix), *sizes, *places, *kinds)

    def product(self, x: DeviceArray, out: DeviceArray, algorithm: int) -> Callable[[], None]:
        """Return a function that writes ``A @ x`` to `out`, preprocessed for these arrays.

        Parameters
        ----------
        x, out
            ``(k, w)`` and ``(m, w)``, C-contiguous, of the type of the values.
        algorithm
            0 for cuSPARSE's choice, 6 and 12 for its second and third CSR algorithm.
        """
        dense = [self._dense(array) for array in (x, out)]
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        words = [
            *(self._handle, 0, 0, ctypes.byref(one), self._matrix, dense[0]),
            *(ctypes.byref(zero), dense[1], _FLOAT32, algorithm),
        ]
        size = ctypes.c_size_t()
        self._call("cusparseSpMM_bufferSize", *words, ctypes.byref(size))
        buffer = load_cupy().empty(max(size.value, 1), "uint8")
        self._held += [x, out, buffer]
        words.append(ctypes.c_void_p(pointer(buffer)))
        self._call("cusparseSpMM_preprocess", *words)

        def multiply() -> None:
            stream = ctypes.c_void_p(load_cupy().cuda.get_current_stream().ptr)
            self._call("cusparseSetStream", self._handle, stream)
            self._call("cusparseSpMM", *words)

        return multiply

    def _dense(self, array: DeviceArray) -> ctypes.c_void_p:
        made, (rows, width) = ctypes.c_void_p(), array.shape
        sizes = ctypes.c_int64(rows), ctypes.c_int64(width), ctypes.c_int64(width)
        place = ctypes.c_void_p(pointer(array))
        self._call("cusparseCreateDnMat", ctypes.byref(made), *sizes, place, self._type, _BY_ROWS)
        return made

    def _call(self, name: str, *words: object) -> None:
        status = getattr(self._library, name)(*words)
        if status != 0:
            raise RuntimeError(f"{name} ended with status {status}")
