"""The comparison of training runs counts bytes as the runs do, and edges as defined."""

import json
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from benchmarks import compare_training
from benchmarks.active_edges import active_edge_share
from benchmarks.pass_totals import PassTotals
from benchmarks.training_share import copy_with_split, draw_split
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.gallery import planted, planted_types
from hpcgnn.graph.operators import Adjacency, make_operators
from hpcgnn.operator import Aggregation
from hpcgnn.partition import block, read_pattern
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import GraphArrays, GraphStore, Split, store_from_arrays
from hpcgnn.trace import TraceRecorder
from tests.support.matrices import block_row, ugly_matrix, uneven_starts
from tests.support.training import make_config, train

NUM_NODES = 211


def make_store(folder: Path) -> Path:
    """Write a store in two parts with a tenth of its nodes for training."""
    whole, parts, few = (folder / name for name in ("whole.h5", "parts.h5", "few.h5"))
    planted(NUM_NODES, 4, 8, 5).write(whole)
    with GraphStore.open(whole) as opened:
        partition = block()(read_pattern(opened), 2)
        write_partitioned(opened, parts, partition, method="block", seed=0)
    with GraphStore.open(parts) as opened:
        copy_with_split(opened, few, draw_split(NUM_NODES, 0.1, 3))
    return few


def test_only_the_split_is_new(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with GraphStore.open(store) as few, GraphStore.open(store.with_name("parts.h5")) as parts:
        counts = np.bincount(few.read_nodes(0, NUM_NODES).split, minlength=4)
        assert counts.tolist() == [0, 21, 21, NUM_NODES - 42]
        assert (few.num_parts, few.partition_info) == (2, parts.partition_info)
        for name in ("features", "labels", "original_id"):
            copied, known = (getattr(each.read_nodes(0, NUM_NODES), name) for each in (few, parts))
            np.testing.assert_array_equal(copied, known)
        rows, known_rows = (each.read_adjacency(0, NUM_NODES) for each in (few, parts))
        np.testing.assert_array_equal(rows.indptr, known_rows.indptr)
        np.testing.assert_array_equal(rows.indices, known_rows.indices)


def test_node_types_are_copied(tmp_path: Path) -> None:
    planted_types(60, 3, 4, 7).write(tmp_path / "types.h5")
    with GraphStore.open(tmp_path / "types.h5") as types:
        copy_with_split(types, tmp_path / "few.h5", draw_split(60, 0.1, 3))
        known = types.read_nodes(0, 60)
    with GraphStore.open(tmp_path / "few.h5") as few:
        copied = few.read_nodes(0, 60)
        np.testing.assert_array_equal(copied.types, known.types)
        for rows, known_rows in zip(copied.type_features, known.type_features, strict=True):
            np.testing.assert_array_equal(rows, known_rows)


@pytest.mark.max_ranks(2)
def test_comparison_counts_what_the_runs_count(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if comm.size == 1:
        pytest.skip("one rank sends nothing")
    store = comm.bcast(make_store(comm_tmp_path) if comm.rank == 0 else None)
    words = ["model.num_layers=3", "train.epochs=3", "train.evaluate_every=3"]
    words += ["trace.enabled=true", "run.save_predictions=false"]
    runs = [
        train(
            comm, make_config(store, comm_tmp_path / each, *words, f"exchange.active_sets={each}")
        )
        for each in ("false", "true")
    ]
    if comm.rank > 0:
        return
    whole, active = (run.path for run in runs)
    named = ["compare_training", f"whole={whole}", f"active={active}", "--json"]
    monkeypatch.setattr("sys.argv", named)
    capsys.readouterr()
    compare_training.main()
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for run, result in zip(runs, results, strict=True):
        ranks = run.summary["ranks_detail"]
        gradients = sum(each["exchanges"]["reduce.gradients"]["bytes"] for each in ranks)
        # The last epoch also evaluates.
        sent = run.column("bytes_sent")
        assert result["bytes_total"] + gradients / len(sent) == sent[1]
        assert result["epochs"] == 2
    assert results[0]["active_edges"] == 1
    assert results[0]["bytes_backward"] > results[1]["bytes_backward"]


def test_active_edges_of_a_path(tmp_path: Path) -> None:
    path, ends = tmp_path / "path.h5", np.arange(6)
    split = np.full(7, Split.TEST, np.uint8)
    split[6] = Split.TRAIN
    store_from_arrays(
        path, GraphArrays(name="path", num_nodes=7, edges={"": (ends, ends + 1)}, split=split)
    )
    # Node i reads node i - 1. The last layer needs 5 -> 6; the one before also needs 4 -> 5, and
    # the reverse of the edge 5 -> 6, for the output of node 5.
    assert active_edge_share(path, (), (1, 1), undirected=False) == (1 + 3) / (2 * 2 * 6)
    assert active_edge_share(path, (), (1, 1), undirected=True) == (1 + 3) / (2 * 12)
    assert active_edge_share(path, (), (8, 1), undirected=True) == (8 * 1 + 3) / (9 * 12)


def test_active_edges_are_those_of_the_engine(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    path, layers = comm_tmp_path / "few.h5", 3
    matrix = ugly_matrix(97, 41, weighted=False)
    split = np.where(np.arange(97) % 13 == 5, Split.TRAIN, Split.TEST).astype(np.uint8)
    if comm.rank == 0:
        columns, rows = matrix.indices, np.repeat(np.arange(97), np.diff(matrix.indptr))
        store_from_arrays(
            path, GraphArrays(name="ugly", num_nodes=97, edges={"": (columns, rows)}, split=split)
        )
    comm.Barrier()
    expected = active_edge_share(path, (), (1,) * (layers - 1), undirected=False)
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(97, comm.size, 7), grid.block)
        both = (Aggregation.MEAN_IN, Aggregation.MEAN_OUT)
        products = Adjacency(
            make_operators(grid, ExchangeConfig(method="joint"), TraceRecorder.off()),
            block_row(matrix, row_map),
            both,
            np.float64,
            np.arange(row_map.num_local),
        ).products()
        targets = split[row_map.start : row_map.stop] == Split.TRAIN
        views = products.active_views(targets, layers).layers
        counted = sum(each.operators[kind].size.num_entries for each in views[1:] for kind in both)
    assert counted / ((layers - 1) * len(both) * matrix.nnz) == pytest.approx(expected)


def test_a_link_belongs_to_a_host() -> None:
    sent = np.array([[[0, 5, 7], [1, 0, 2], [3, 4, 0]], [[0, 0, 0], [9, 0, 0], [0, 0, 0]]])
    totals = PassTotals(sent, np.array([4, 4]), 0.0, 0.0)
    assert totals.link_bytes(["a", "b", "c"]) == 12 + 9
    assert totals.link_bytes(["a", "a", "b"]) == 9 + 0
    assert totals.link_bytes(["a", "a", "a"]) == 0
