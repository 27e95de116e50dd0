"""The peers of the SpMM benchmark, if they are installed.

A peer is a function from a problem to a function without arguments that computes the whole product
and returns it as a NumPy array. All read the same operand; each allocates its result as usual.
"""

import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Any

import numpy as np
import torch
from scipy import sparse

from benchmarks.mkl_peer import load_mkl
from benchmarks.spmm_graphs import Matrix
from hpcgnn.typing import FloatArray

__all__ = ["PEERS", "Peer", "Problem", "import_dgl", "installed_peers", "torch_csr_matrix"]


@dataclass(frozen=True)
class Problem:
    """One product; `values` None means all ones."""

    matrix: Matrix
    values: FloatArray | None
    x: FloatArray
    threads: int

    @property
    def data(self) -> FloatArray:
        """Return the values, also if they are all ones."""
        return np.ones_like(self.matrix.values) if self.values is None else self.values


Peer = Callable[[Problem], Callable[[], FloatArray]]


def installed_peers(names: list[str]) -> dict[str, Peer]:
    """Return the peers of `names` that can be imported."""
    return {name: PEERS[name][1] for name in names if installed(PEERS[name][0])}


def installed(package: str) -> bool:
    """Return whether a package is installed, even one without modules."""
    return bool(list(distributions(name=package)))


def torch_csr(problem: Problem) -> Callable[[], FloatArray]:
    """Torch CSR (MKL), with int32 indices: faster than with the default int64."""
    torch.set_num_threads(problem.threads)
    a = torch_csr_matrix(problem.matrix, problem.data)
    x = torch.from_numpy(problem.x)
    return lambda: (a @ x).numpy()


def scipy_csr(problem: Problem) -> Callable[[], FloatArray]:
    """SciPy CSR: always one thread."""
    m = problem.matrix
    shape = (m.num_nodes, m.num_nodes)
    a = sparse.csr_matrix((problem.data, m.indices, m.indptr.astype(np.int32)), shape=shape)
    return lambda: a @ problem.x


def dgl_spmm(problem: Problem) -> Callable[[], FloatArray]:
    """DGL's g-SpMM with int32 indices: copy_u_sum without weights, u_mul_e_sum with them."""
    dgl = import_dgl()
    torch.set_num_threads(problem.threads)
    dgl.utils.set_num_threads(problem.threads)
    m = problem.matrix
    indptr, indices = torch.from_numpy(m.indptr), torch.from_numpy(m.indices).long()
    graph = dgl.graph(("csc", (indptr, indices, [])), num_nodes=m.num_nodes).int()
    x = torch.from_numpy(problem.x)
    if problem.values is None:
        return lambda: dgl.ops.copy_u_sum(graph, x).numpy()
    weights = torch.from_numpy(problem.values).reshape(-1, 1)
    return lambda: dgl.ops.u_mul_e_sum(graph, x, weights).numpy()


def pyg_spmm(problem: Problem) -> Callable[[], FloatArray]:
    """torch-geometric's spmm on a torch CSR matrix."""
    from torch_geometric.utils import spmm  # noqa: PLC0415  (only where it is installed)

    torch.set_num_threads(problem.threads)
    a = torch_csr_matrix(problem.matrix, problem.data)
    x = torch.from_numpy(problem.x)
    return lambda: spmm(a, x, reduce="sum").numpy()


def mkl_csr(problem: Problem) -> Callable[[], FloatArray]:
    """MKL's inspector-executor interface, with the best instructions of this processor."""
    m = problem.matrix
    # SciPy takes the dtype of all index arrays from `indptr`.
    matrix = sparse.csr_matrix(
        (problem.data, m.indices, m.indptr.astype(np.int32)), (m.num_nodes,) * 2
    )
    multiply = load_mkl().product(matrix, problem.x.shape[1], problem.threads)
    out = np.empty_like(problem.x)

    def product() -> FloatArray:
        multiply(problem.x, out)
        return out

    return product


def torch_csr_matrix(m: Matrix, values: FloatArray) -> torch.Tensor:
    """Return torch's CSR matrix of a pattern, with int32 indices."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "CSR support is in beta"
        return torch.sparse_csr_tensor(
            torch.from_numpy(m.indptr.astype(np.int32)),
            torch.from_numpy(m.indices),
            torch.from_numpy(values),
            (m.num_nodes, m.num_nodes),
        )


def import_dgl() -> Any:
    # DGL's wheel has a data-loading library only for older versions of torch. The rest works
    # without it, so an empty module of that name replaces the import.
    sys.modules.setdefault("dgl.graphbolt", types.ModuleType("dgl.graphbolt"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dgl  # noqa: PLC0415  (only where it is installed)

    return dgl


PEERS: dict[str, tuple[str, Peer]] = {
    "torch": ("torch", torch_csr),
    "scipy": ("scipy", scipy_csr),
    "dgl": ("dgl", dgl_spmm),
    "pyg": ("torch-geometric", pyg_spmm),
    "mkl": ("mkl", mkl_csr),
}
"""Each peer's package, and its product."""
