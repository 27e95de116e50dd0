"""A symmetric matrix, with scaled rows or not, is kept in one orientation, any other in two."""

import gc
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp

from hpcgnn.comm import ProcessGrid
from hpcgnn.graph.context import Context
from hpcgnn.graph.load import load_graph
from hpcgnn.operator import Aggregation
from hpcgnn.sparse import LocalCSR
from hpcgnn.sparse.local import CodedCSR
from hpcgnn.trace import TraceRecorder
from tests.support.training import Graph, make_config, make_graph, write_store

POWERS = {"gcn": (Aggregation.SYMMETRIC, 0.5, 0.5), "sage": (Aggregation.MEAN_IN, 1.0, 0.0)}


def make(kind: str) -> Graph:
    """Return a graph with a hub and isolated nodes."""
    if kind == "directed":
        return make_graph(weighted=False)
    made = make_graph(weighted=kind != "unweighted", directed=False)
    if kind != "unequal weights":
        return made
    # One weight of a pair is changed: the pattern is symmetric, the matrix is not.
    matrix = made.adjacency.tolil()
    row, column = next(each for each in zip(*matrix.nonzero(), strict=True) if each[0] != each[1])
    matrix[row, column] *= 2
    return replace(made, adjacency=sp.csr_matrix(matrix), directed=True)


def dense_matrix(graph: Graph, kind: Aggregation, by_row: float, by_column: float) -> np.ndarray:
    dense = graph.adjacency.toarray()
    if kind.self_loops:
        loops = np.flatnonzero(dense.diagonal() == 0)
        dense[loops, loops] = 1

    def inverse(sums: np.ndarray, power: float) -> np.ndarray:
        return np.divide(1, sums**power, out=np.zeros_like(sums), where=sums > 0)

    return (
        inverse(dense.sum(axis=1), by_row)[:, None] * dense * inverse(dense.sum(axis=0), by_column)
    )


def matrices_of(holder: Any) -> list[LocalCSR | CodedCSR]:
    """Return the matrices that an object refers to, one of those that share columns."""
    met, waiting, found = set[int](), [holder], dict[int, LocalCSR | CodedCSR]()
    while waiting:
        each = waiting.pop()
        if id(each) in met or isinstance(each, (type, types.ModuleType, types.FunctionType)):
            continue
        met.add(id(each))
        if isinstance(each, (LocalCSR, CodedCSR)):
            found[id(each.coded or each.indices)] = each
        waiting += gc.get_referents(each)
    return list(found.values())


def entries_of(holder: Any) -> int:
    return sum(matrix.nnz for matrix in matrices_of(holder))


@pytest.mark.parametrize("kind", ["unweighted", "weighted", "unequal weights", "directed"])
@pytest.mark.parametrize("model", POWERS)
@pytest.mark.parametrize("exchange", ["aware sequential", "joint resident", "oblivious resident"])
def test_products_and_their_adjoints(
    comm: MPI.Intracomm, comm_tmp_path: Path, kind: str, model: str, exchange: str
) -> None:
    graph, (aggregation, *powers) = make(kind), POWERS[model]
    store = write_store(comm, comm_tmp_path, graph, method="empty second")
    method, schedule = exchange.split()
    words = (f"model.name={model}", f"exchange.method={method}", f"exchange.schedule={schedule}")
    config = make_config(store, comm_tmp_path / "run", "train.dtype=float64", *words)
    dense = dense_matrix(graph, aggregation, *powers)
    with ProcessGrid(comm) as grid:
        loaded = load_graph(Context.open(grid, config, TraceRecorder.off()))
        ids, operator = loaded.products.node_ids, loaded.products.operators[aggregation]
        x = np.random.default_rng(4).normal(size=(len(dense), 3))
        first = operator.apply(np.ascontiguousarray(x[ids]))
        np.testing.assert_allclose(first, (dense @ x)[ids], rtol=1e-12, atol=1e-12)
        once = entries_of(operator)
        reverse = operator.apply_transpose(np.ascontiguousarray(x[ids]))
        np.testing.assert_allclose(reverse, (dense.T @ x)[ids], rtol=1e-12, atol=1e-12)
        added = comm.allreduce(entries_of(operator) - once)
    # Factors of rows become factors of columns if there are no values.
    turned = kind == "unweighted" and (method != "joint" or comm.size == 1)
    if not graph.directed and (powers[0] == powers[1] or turned):
        assert added == 0
    elif method == "joint":
        # The product itself transposed the pushed entries.
        assert 0 < added <= np.count_nonzero(dense)
    else:
        assert added == np.count_nonzero(dense)


@pytest.mark.parametrize("model", POWERS)
@pytest.mark.parametrize("schedule", ["sequential", "resident"])
def test_a_graph_keeps_its_columns_once(
    comm: MPI.Intracomm, comm_tmp_path: Path, schedule: str, model: str
) -> None:
    graph = make("unweighted")
    store = write_store(comm, comm_tmp_path, graph, method="empty second")
    words = (f"model.name={model}", "exchange.active_sets=false", f"exchange.schedule={schedule}")
    config = make_config(store, comm_tmp_path / "run", *words)
    with ProcessGrid(comm) as grid:
        loaded = load_graph(Context.open(grid, config, TraceRecorder.off()))
        operator = loaded.products.operators[POWERS[model][0]]
        x = np.ones((len(loaded.products.node_ids), 3), np.float32)
        operator.apply_transpose(operator.apply(x))
        kept = matrices_of(loaded)
        entries = comm.allreduce(sum(matrix.nnz for matrix in kept))
    assert entries == np.count_nonzero(dense_matrix(graph, *POWERS[model]))
    assert all(matrix.values is None for matrix in kept)
