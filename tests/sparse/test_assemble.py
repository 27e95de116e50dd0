from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.sparse import pieces, read_adjacency
from hpcgnn.storage import GraphArrays, GraphStore, store_from_arrays
from tests.support.matrices import ugly_matrix, uneven_starts

NUM_NODES = 37


def write_store(path: Path, *, weighted: bool) -> dict[str, sp.csr_matrix]:
    relations = {
        name: ugly_matrix(NUM_NODES, seed, weighted=weighted)
        for name, seed in (("cites", 41), ("mentions", 43))
    }
    edges = {}
    for name, matrix in relations.items():
        matrix.data = matrix.data.astype(np.float32).astype(np.float64)
        dst, src = matrix.nonzero()
        edges[name] = (src, dst, matrix.data.astype(np.float32)) if weighted else (src, dst)
    store_from_arrays(path, GraphArrays(name="typed", num_nodes=NUM_NODES, edges=edges))
    return relations


@pytest.mark.pairs
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("chosen", [("cites",), ()])
@pytest.mark.parametrize("piece", [1, 11, pieces.PIECE])
def test_union_reverse_and_loops(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    piece: int,
    weighted: bool,
    undirected: bool,
    self_loops: bool,
    chosen: tuple[str, ...],
) -> None:
    monkeypatch.setattr(pieces, "PIECE", piece)
    path = comm_tmp_path / "typed.h5"
    if comm.rank == 0:
        write_store(path, weighted=weighted)
    comm.Barrier()
    relations = {
        name: ugly_matrix(NUM_NODES, seed, weighted=weighted)
        for name, seed in (("cites", 41), ("mentions", 43))
    }
    expected = sp.csr_matrix((NUM_NODES, NUM_NODES))
    for name in chosen or relations:
        expected = expected.maximum(relations[name].astype(np.float32).astype(np.float64))
    if undirected:
        expected = expected.maximum(expected.T)
    expected = expected.toarray()
    if self_loops:
        loops = np.diag(expected) == 0
        expected[np.flatnonzero(loops), np.flatnonzero(loops)] = 1.0
    row_map = RowMap(uneven_starts(NUM_NODES, comm.size, 8), comm.rank)
    with ProcessGrid(comm) as grid, GraphStore.open(path) as store:
        rows = read_adjacency(
            grid, store, row_map, chosen, undirected=undirected, self_loops=self_loops
        )
    values = np.ones(len(rows.columns)) if rows.weights is None else rows.weights
    assert (rows.weights is not None) == weighted
    assert rows.columns.dtype == np.int32
    got = sp.csr_matrix((values, rows.columns, rows.indptr), (row_map.num_local, NUM_NODES))
    assert got.has_canonical_format
    np.testing.assert_array_equal(got.toarray(), expected[row_map.start : row_map.stop])
