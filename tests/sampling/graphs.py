"""Small graphs that samplers must survive, and distributions by enumeration."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy import stats

from hpcgnn.sampling import Topology
from tests.ugly import ugly_matrix

PACKAGE = Path(__file__).parents[2] / "hpcgnn"


def topology_of(matrix: sp.csr_matrix) -> Topology:
    matrix = sp.csr_matrix(matrix)
    matrix.sort_indices()
    return Topology(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))


def symmetric(num_nodes: int = 60, seed: int = 1) -> Topology:
    return topology_of(ugly_matrix(num_nodes, seed, symmetric=True))


def ugly_topologies() -> dict[str, Topology]:
    return {
        "symmetric": symmetric(),
        "directed": topology_of(ugly_matrix(70, 3)),
        "no edges": topology_of(sp.csr_matrix((9, 9))),
        "one node": topology_of(sp.csr_matrix((1, 1))),
        "loop": topology_of(sp.csr_matrix(np.ones((1, 1)))),
    }


def fits(counts: np.ndarray, probabilities: np.ndarray) -> bool:
    """Return whether a chi-squared test finds counts of independent draws plausible."""
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = counts.sum() * probabilities[possible] / probabilities[possible].sum()
    return bool(stats.chisquare(counts[possible], expected).pvalue > 1e-4)


class SumsSampler:
    """The C++ frontier sampler by cumulative sums: the oracle."""

    def __init__(self, directory: Path) -> None:
        library = directory / "cumulative.so"
        source = PACKAGE / "sampling" / "tests" / "cumulative.cc"
        includes = [f"-I{PACKAGE}/sampling/src", f"-I{PACKAGE}/kernels/src"]
        words = ["c++", "-O3", "-std=c++20", "-shared", "-fPIC", *includes, source, "-o", library]
        subprocess.run(words, check=True)
        self._call = ctypes.CDLL(str(library)).sample_frontier_by_sums
        self._call.restype = ctypes.c_int64

    def visits(
        self, topology: Topology, walkers: int, budget: int, seed: int, k: int
    ) -> np.ndarray:
        out = np.empty(budget, np.int32)
        pointers = [
            ctypes.c_void_p(each.ctypes.data) for each in (topology.indptr, topology.indices)
        ]
        sizes = [ctypes.c_int64(each) for each in (topology.num_nodes, walkers, budget - walkers)]
        keys = [ctypes.c_uint64(seed), ctypes.c_int64(k)]
        count = self._call(*pointers, *sizes, *keys, ctypes.c_void_p(out.ctypes.data))
        return out[:count]
