"""Small graphs with edge cases for samplers, and distributions by enumeration."""

import numpy as np
import scipy
import scipy.sparse as sp

from hpcgnn.sampling import Topology
from tests.support.matrices import ugly_matrix


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
    return bool(scipy.stats.chisquare(counts[possible], expected).pvalue > 1e-4)
