"""Graphs and row maps like those of real users: hubs, isolated nodes, empty ranks, odd sizes."""

from mpi4py import MPI

import numpy as np
import scipy.sparse as sp

from hpcgnn.comm import RowMap
from hpcgnn.sparse import DistCSR


def ugly_matrix(
    num_nodes: int, seed: int, *, weighted: bool = True, symmetric: bool = False
) -> sp.csr_matrix:
    """Return a float64 matrix with a hub row, a hub column, self loops and isolated nodes."""
    rng = np.random.default_rng(seed)
    density = min(3.0 / num_nodes, 1.0)
    matrix = sp.random(num_nodes, num_nodes, density, rng=rng, format="lil")
    if num_nodes > 4:
        matrix[1, :] = 1.0
        matrix[:, 2] = 1.0
        matrix[3, 3] = 1.0
        isolated = rng.integers(0, num_nodes, max(num_nodes // 10, 1))
        matrix[isolated, :] = 0
        matrix[:, isolated] = 0
    matrix = sp.csr_matrix(matrix)
    matrix.data = rng.uniform(0.5, 2.0, matrix.nnz) if weighted else np.ones(matrix.nnz)
    matrix.eliminate_zeros()
    if symmetric:
        matrix = sp.csr_matrix(matrix.maximum(matrix.T))
    matrix.sort_indices()
    return matrix


def uneven_starts(num_nodes: int, num_blocks: int, seed: int) -> np.ndarray:
    """Return row starts with blocks of very different sizes; with four, some are empty."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, num_nodes + 1, num_blocks - 1))
    if num_blocks > 3:
        cuts[1] = cuts[0]
    return np.concatenate([[0], cuts, [num_nodes]]).astype(np.int64)


def block_row(matrix: sp.csr_matrix, row_map: RowMap, dtype: type = np.float64) -> DistCSR:
    """Return this rank's rows of a matrix that every rank has."""
    rows = sp.csr_matrix(matrix[row_map.start : row_map.stop])
    return DistCSR.from_rows(
        row_map,
        rows.indptr.astype(np.int64),
        rows.indices.astype(np.int64),
        rows.data.astype(dtype),
    )


def gather_rows(comm: MPI.Intracomm, rows: np.ndarray) -> np.ndarray:
    """Return the rows of all ranks, in rank order, on every rank."""
    return np.concatenate(comm.allgather(rows))
