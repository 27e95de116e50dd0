"""The table of peers: they compute the same networks, on graphs as described."""

import argparse
from pathlib import Path
from types import SimpleNamespace

from mpi4py import MPI

import numpy as np
import pytest
import torch_geometric
from scipy import sparse
from torch_geometric.nn import MessagePassing

from benchmarks import bench_table, harness
from benchmarks.bench_ways import process_like_training
from benchmarks.peer_models import PEERS
from benchmarks.table_graphs import RELATIONS, make_graph, names, open_graph

METHODS = [name for name in PEERS if name != "pyg_compiled"]


@pytest.fixture(scope="module", name="folder")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    for name in ("tiny", "cora"):
        make_graph(name, folder)
    return folder


@pytest.fixture(autouse=True)
def fresh_layers() -> None:
    """Reset how torch-geometric runs layers: a class keeps the choice of its first instance."""
    for layer in vars(torch_geometric.nn.conv).values():
        if isinstance(layer, type) and "propagate" in vars(layer) and layer is not MessagePassing:
            del layer.propagate


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("graph_name", ["tiny", "cora"])
@pytest.mark.parametrize("model", bench_table.MODELS)
def test_peers_train_our_networks(graph_name: str, model: str, folder: Path) -> None:
    graph = open_graph(graph_name, folder)
    options = argparse.Namespace(methods=["ours", "ours_fresh", *METHODS], most_gib=8.0, threads=1)
    # Second losses depend on the gradients of the first.
    with process_like_training(MPI.COMM_SELF) as grid:
        methods = bench_table.methods_of(graph, model, options, grid)
        losses = {name: [method.epoch(), method.epoch()] for name, method in methods}
    wanted = {name for name in METHODS if bench_table.is_installed(name)}
    if model == "gat":
        wanted -= set(bench_table.SPARSE_FEATURES)
    assert set(losses) == {"ours", "ours_fresh"} | wanted
    assert abs(losses["ours"][1] / losses["ours"][0] - 1) > 10 * bench_table.TOLERANCE
    for found in losses.values():
        np.testing.assert_allclose(found, losses["ours"], rtol=bench_table.TOLERANCE)


def test_graphs_are_as_described(folder: Path) -> None:
    graph = open_graph("cora", folder)
    matrix = graph.matrix
    assert matrix.num_nodes == 2708
    assert abs(matrix.indices.size / 10556 - 1) <= 0.01
    assert (graph.features.shape, graph.num_classes) == ((2708, 1433), 7)
    assert abs(graph.features.nnz / (2708 * 1433) - 0.0127) < 1e-3
    # Both directions of an edge have the same relation.
    values = graph.relations.astype(np.int64) + 1
    shape = (matrix.num_nodes, matrix.num_nodes)
    both = sparse.csr_matrix((values, matrix.indices, matrix.indptr), shape=shape)
    assert (both != both.T).nnz == 0
    assert set(graph.relations) == set(range(RELATIONS))
    assert "cora" in names()
    assert "tiny" not in names()


def test_slow_methods_sit_out(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, now = {"slow": 0, "quick": 0}, [0.0]

    def call(name: str, seconds: float) -> None:
        calls[name] += 1
        now[0] += seconds

    clock = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: 2 * now[0])
    monkeypatch.setattr(harness, "time", clock)
    functions = {"slow": lambda: call("slow", 8.0), "quick": lambda: call("quick", 1.0)}
    monkeypatch.setattr(harness, "joules_of_host", lambda _: lambda: (3 * now[0],))
    found = harness.interleave(functions, warmup=1, repeat=6, most_s=7.0)
    assert calls == {"slow": 3, "quick": 7}
    assert [len(found[name].cpu_seconds) for name in found] == [2, 6]
    assert found["slow"].median_cpu_s == 16
    assert (found["slow"].median_j, found["quick"].joules) == (24, (3.0,) * 6)


def test_no_joules_where_none_are_counted(tmp_path: Path) -> None:
    found = harness.interleave({"any": lambda: None}, warmup=0, repeat=2, folder=tmp_path)
    assert found["any"].joules == ()
    assert found["any"].median_j is None
