"""Partitioned sampling: each rank has a part and its halo, reshuffled from time to time."""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpcgnn.comm import CollectiveInputError, ProcessGrid, RowMap, RowRequest
from hpcgnn.errors import InputError
from hpcgnn.sparse import EdgeTable, PatternRows
from hpcgnn.train.sampled.graph import HomeRows
from hpcgnn.train.sampled.part import (
    choose_part,
    fetch_part,
)
from tests.support import training
from tests.support.matrices import ugly_matrix
from tests.train.sampled.test_sampled import check_mean_gradient, losses

COMMON = (
    "train.task=sampled",
    "train.dtype=float64",
    "train.epochs=2",
    "sampling.walkers=9",
    "sampling.budget=60",
    "sampling.steps=2",
    "run.save_predictions=false",
)
PARTS = (*COMMON, "sampling.topology=partitioned")
MOVING = ("sampling.reshuffle_epochs=1", "sampling.reshuffle_share=0.4")


def test_requests_bring_rows_and_entries(comm: MPI.Intracomm) -> None:
    rng = np.random.default_rng(4)
    # The second rank owns nothing, nor do those after the fourth, which owns one row, but the last.
    bounds = np.array([*[0, 7, 7, 19, *[20] * 4][: comm.size], 21], np.int64)
    matrix = sp.random(21, 5, 0.4, "csr", rng=rng)
    matrix.sort_indices()
    values = rng.random((21, 3))
    with ProcessGrid(comm) as grid:
        row_map = RowMap(bounds, grid.block)
        mine = slice(row_map.start, row_map.stop)
        wanted = np.flatnonzero(np.random.default_rng(comm.rank).random(21) < 0.6)
        wanted = wanted if comm.rank != 2 else wanted[:0]
        request = RowRequest.make(grid.layer, row_map, wanted.astype(np.int64))
        np.testing.assert_array_equal(request.rows(values[mine]), values[wanted])
        part = matrix[mine]
        indptr, (columns, data) = request.entries(
            part.indptr.astype(np.int64), part.indices, part.data
        )
    expected = matrix[wanted]
    np.testing.assert_array_equal(indptr, expected.indptr)
    np.testing.assert_array_equal(columns, expected.indices)
    np.testing.assert_array_equal(data, expected.data)


def home_of(grid: ProcessGrid, matrix: sp.csr_matrix, bounds: np.ndarray) -> HomeRows:
    row_map = RowMap(bounds, grid.block)
    mine = matrix[row_map.start : row_map.stop]
    rows = PatternRows(
        mine.indptr.astype(np.int64), mine.indices.astype(np.int64), mine.data.astype(np.float32)
    )
    ids = np.arange(row_map.start, row_map.stop, dtype=np.int64)
    features = np.stack([ids, ids**2], axis=1).astype(np.float64)
    return HomeRows(
        row_map=row_map,
        edges=rows,
        walked=rows,
        features=torch.from_numpy(features),
        labels=ids % 3,
        trained=np.ones(len(ids), np.bool_),
        node_ids=ids,
    )


def edges_of(rows: PatternRows, row_ids: np.ndarray, column_ids: np.ndarray) -> EdgeTable:
    """Return one or two edges for each entry, as pairs of ids."""
    ends = np.stack(
        [np.repeat(row_ids, np.diff(rows.indptr)), column_ids[rows.columns]], axis=1
    ).astype(np.float64)
    counts = 1 + ends.sum(axis=1).astype(np.int64) % 2
    return EdgeTable.of_counts(counts, np.repeat(ends, counts, axis=0))


@pytest.mark.parametrize(("halo", "period"), [(0, 1), (1, 0), (2, 1)])
def test_parts_have_their_halo_and_no_more(comm: MPI.Intracomm, halo: int, period: int) -> None:
    matrix = ugly_matrix(60, 3, weighted=True, symmetric=True)
    matrix.sort_indices()
    bounds = np.linspace(0, 60, comm.size + 1).astype(np.int64)
    with ProcessGrid(comm) as grid:
        home = home_of(grid, matrix, bounds)
        home = replace(home, table=edges_of(home.edges, home.node_ids, np.arange(60)))
        part = choose_part(grid, home.row_map, 0.3, 5, period)
        again = choose_part(grid, home.row_map, 0.3, 5, period)
        graph, _ = fetch_part(grid, home, part, halo)
        parts = comm.allgather(part)
    np.testing.assert_array_equal(part, again)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(60))
    reached = np.zeros(60, bool)
    reached[part] = True
    for _ in range(halo):
        reached |= matrix[reached].sum(axis=0).A1 != 0
    ids = graph.node_ids
    np.testing.assert_array_equal(ids[: len(part)], part)
    np.testing.assert_array_equal(np.sort(ids), np.flatnonzero(reached))
    found = sp.csr_matrix((graph.weights, graph.edges.indices, graph.edges.indptr), [len(ids)] * 2)
    np.testing.assert_allclose(found.toarray(), matrix[ids][:, ids].toarray(), rtol=1e-6)
    np.testing.assert_array_equal(graph.features[:, 1], ids**2)
    np.testing.assert_array_equal(graph.labels, ids % 3)
    np.testing.assert_array_equal(np.flatnonzero(graph.trained), np.arange(len(part)))
    assert graph.edges.num_roots == len(part)
    expected = edges_of(PatternRows(graph.edges.indptr, graph.edges.indices, None), ids, ids)
    assert graph.table is not None
    np.testing.assert_array_equal(graph.table.features, expected.features)
    np.testing.assert_array_equal(graph.table.counts, expected.counts)


def test_a_rank_holds_its_part_and_halo_only(comm: MPI.Intracomm) -> None:
    """On a ring, a part of n nodes with a halo of depth 3 has n + 6 nodes of 3 entries each."""
    count = 4000
    shape = (count, count)
    ring = sp.diags_array([1.0, 1.0, 1.0, 1.0, 1.0], offsets=[-1, 0, 1, count - 1, 1 - count],
                          shape=shape).tocsr()  # fmt: skip
    bounds = np.linspace(0, count, comm.size + 1).astype(np.int64)
    with ProcessGrid(comm) as grid:
        graph, moved = fetch_part(
            grid,
            home_of(grid, ring, bounds),
            np.arange(bounds[grid.block], bounds[grid.block + 1]),
            3,
        )
    nodes = min(graph.edges.num_roots + 6, count)
    assert graph.edges.num_nodes == nodes
    assert moved == (6 if comm.size > 1 else 0)
    entries = 3 * nodes - (2 if comm.size > 1 else 0)
    # An id, two features, a label, a flag, an offset, two sums; an index and a weight per entry.
    assert graph.nbytes == nodes * (8 + 16 + 8 + 1 + 8 + 16) + 8 + entries * 8


@pytest.mark.max_ranks(1)
@pytest.mark.parametrize("sampler", ["frontier", "walk", "edge", "node", "neighbour"])
def test_one_part_is_the_shared_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path, sampler: str
) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph(weighted=True))
    words = (*COMMON, f"sampling.sampler={sampler}", "sampling.coverage=2")
    if sampler == "neighbour":
        words += ("sampling.fan_outs=[3, 2]", "graph.undirected=true")
    shared = losses(comm, comm_tmp_path / "shared", store, *words)
    alone = losses(
        comm, comm_tmp_path / "parts", store, *words, "sampling.topology=partitioned", *MOVING
    )
    np.testing.assert_array_equal(alone, shared)


@pytest.mark.parametrize(
    ("sampler", "model", "coverage"),
    [
        ("frontier", "sage", 1),
        ("edge", "gat", 1),
        ("node", "mixhop", 0),
    ],
)
def test_every_sampler_trains_on_parts(
    comm: MPI.Intracomm, comm_tmp_path: Path, sampler: str, model: str, coverage: int
) -> None:
    store = training.write_store(
        comm, comm_tmp_path, training.make_graph(weighted=True), method="empty second"
    )
    words = (*PARTS, f"sampling.sampler={sampler}", f"sampling.coverage={coverage}")
    words += (f"model.name={model}", "sampling.threads=2")
    still = losses(comm, comm_tmp_path / "still", store, *words)
    moving = losses(comm, comm_tmp_path / "moving", store, *words, *MOVING)
    assert np.isfinite(still).all()
    # No node moves before the first reshuffle.
    assert moving[0] == still[0]
    assert np.isfinite(moving).all()
    assert comm.size == 1 or (moving[1:] != still[1:]).all()


@pytest.mark.parametrize(("model", "kind"), [("gat", "whole part"), ("sage", "whole fan-out")])
def test_a_sample_of_everything_is_the_full_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str, kind: str
) -> None:
    """With a halo as deep as the model, no input of a part's nodes is cut."""
    store = training.write_store(comm, comm_tmp_path, training.make_graph(weighted=True))
    words = ["train.dtype=float64", "train.epochs=2", "run.save_predictions=false"]
    words += [f"model.name={model}", "model.dropout=0", "graph.undirected=true"]
    full = losses(comm, comm_tmp_path / "full", store, *words)
    words += ["train.task=sampled", "sampling.steps=1", "sampling.clip=1", "sampling.coverage=0"]
    words += ["sampling.topology=partitioned", "sampling.halo=2", *MOVING]
    if kind == "whole part":
        words += ["sampling.sampler=node", "sampling.budget=80000"]
    else:
        words += ["sampling.sampler=neighbour", "sampling.budget=1000"]
        words += ["sampling.fan_outs=[1000, 1000]"]
    sampled = losses(comm, comm_tmp_path / "sampled", store, *words)
    np.testing.assert_allclose(sampled, full, rtol=1e-9)


@pytest.mark.quality
def test_coefficients_make_losses_estimates_of_the_full_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    """The mean of a linear model's gradients over many steps is that of the full graph."""
    store = training.write_store(comm, comm_tmp_path, training.make_graph(directed=False))
    words = ["model.name=sage", "model.num_layers=1", "model.dropout=0", "train.dtype=float64"]
    words += ["train.task=sampled", "sampling.steps=100", "sampling.sampler=walk"]
    words += ["sampling.budget=60", "sampling.coverage=200", "sampling.clip=1"]
    words += ["sampling.topology=partitioned", "sampling.halo=1", "sampling.threads=0"]
    config = training.make_config(store, comm_tmp_path / "run", *words)
    check_mean_gradient(comm, config)


def test_resume_goes_on_as_if_nothing_had_happened(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    words = (*PARTS, "model.dropout=0.3", "run.checkpoint_every=1", "train.epochs=3")
    words += ("sampling.coverage=1", "sampling.reshuffle_epochs=2", "run.save_predictions=true")
    whole = training.train(comm, training.make_config(store, comm_tmp_path / "whole", *words))
    config = training.make_config(store, comm_tmp_path / "parts", *words)
    training.train(comm, config, training.StopAfter(1))
    training.assert_same(whole, training.train(comm, config))


def test_the_summary_tells_of_parts(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    graph: training.Graph = training.make_graph()
    store = training.write_store(comm, comm_tmp_path, graph)
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *PARTS, *MOVING))
    told = run.summary["sampling"]
    assert told["steps_per_epoch"] == 2
    assert 0 < told["part_nodes"] <= len(graph.ids)
    assert told["part_nodes"] + told["halo_nodes"] <= 2 * len(graph.ids)
    assert told["part_bytes"] > 0


def test_unsupported_options_are_named(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    with pytest.raises(InputError, match="reshuffle_epochs"):
        training.make_config(store, comm_tmp_path / "run", "sampling.reshuffle_epochs=2")
    words = (*PARTS, "train.reproducible=true", "train.dtype=float32")
    with pytest.raises(CollectiveInputError, match="from their own parts"):
        training.train(comm, training.make_config(store, comm_tmp_path / "run", *words))
