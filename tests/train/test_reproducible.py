"""Equal bits of losses, weights and predictions for any distribution and any exchange."""

from collections.abc import Sequence
from pathlib import Path

from mpi4py import MPI

import h5py
import numpy as np
import pytest

from tests.support.exact_runs import (
    EDGE_MODELS,
    MODELS,
    MODES,
    OBJECTIVES,
    differences,
    write_mode,
    write_model,
    write_objective,
)
from tests.support.examples import EXAMPLES
from tests.support.training import (
    Run,
    make_config,
    make_graph,
    predict_with,
    train,
    train_alone,
    write_store,
)

QUICK = ("gcn", "gat", "rgcn", "gatedgcn", "gatv2", "transformer of edges", "rgat")
WAYS = (
    ("exchange.method=push",),
    ("exchange.method=joint", "exchange.schedule=sequential", "exchange.prefetch=1"),
    ("exchange.method=hierarchical", "exchange.schedule=sequential"),
    ("exchange.method=aware",),
    ("exchange.method=oblivious",),
)


def assert_equal_bits(runs: Sequence[Run], other: Run) -> None:
    """Rank 0 compares the files, which it has written, at the end: the others do not wait."""
    for run in runs if MPI.COMM_WORLD.rank == 0 else ():
        assert run.tensors()
        assert not differences(run, other)


@pytest.mark.parametrize(
    "model",
    [pytest.param(each, marks=() if each in QUICK else (pytest.mark.slow,)) for each in MODELS],
)
def test_equal_bits(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    store, words = write_model(comm, comm_tmp_path, model)
    options = ("train.reproducible=true", "train.epochs=2", *words)
    alone = train_alone(comm, make_config(store, comm_tmp_path / "alone", *options))
    # Quick models use all exchanges over the numbers of ranks, slow ones use all with each number.
    pulls = model in EDGE_MODELS or model == "rgat"
    ways = tuple(way for way in WAYS if not (pulls and way[0].endswith(("push", "joint"))))
    if model in QUICK:
        ways = ways[comm.size - 2 :: 2]
    if comm.size == 1:
        ways = (("run.threads=2",),)
    runs = []
    for place, way in enumerate(ways):
        replication = comm.size // (1 + place % 2) if comm.size % 2 == 0 else 1
        options_here = (*options, f"exchange.replication={replication}", *way)
        runs.append(train(comm, make_config(store, comm_tmp_path / f"way{place}", *options_here)))
    assert_equal_bits(runs, alone)


@pytest.mark.parametrize("mode", MODES)
def test_equal_bits_of_modes(comm: MPI.Intracomm, comm_tmp_path: Path, mode: str) -> None:
    store, words = write_mode(comm, comm_tmp_path, mode)
    options = ("train.reproducible=true", "train.epochs=2", *words)
    alone = train_alone(comm, make_config(store, comm_tmp_path / "alone", *options))
    runs = [
        train(comm, make_config(store, comm_tmp_path / way, *options, way))
        for way in ("exchange.method=joint", "exchange.schedule=sequential")
    ]
    assert_equal_bits(runs, alone)


QUICK_OBJECTIVES = (
    "classes of edges",
    "links by mlp",
    "graphs by attention",
    "sampled, rgcn",
    "sampled by neighbours, gine",
    "graphs in batches",
)


@pytest.mark.parametrize(
    "objective",
    [
        pytest.param(each, marks=() if each in QUICK_OBJECTIVES else (pytest.mark.slow,))
        for each in OBJECTIVES
    ],
)
def test_equal_bits_of_objectives(comm: MPI.Intracomm, comm_tmp_path: Path, objective: str) -> None:
    store, words = write_objective(comm, comm_tmp_path, objective)
    words.append("train.epochs=2")
    options = (*words, "train.reproducible=true")
    alone = train_alone(comm, make_config(store, comm_tmp_path / "alone", *options))
    runs = [
        train(comm, make_config(store, comm_tmp_path / f"way{place}", *options, *way))
        for place, way in enumerate((("exchange.method=aware",), WAYS[2]))
    ]
    usual = train(comm, make_config(store, comm_tmp_path / "usual", *words))
    # Weights of edges are rounded to 24 bits.
    assert_equal_bits(runs, alone)
    within = 1e-6 if "train.dtype=float64" in words else 1e-4
    np.testing.assert_allclose(alone.column("train_loss"), usual.column("train_loss"), rtol=within)


@pytest.mark.parametrize("model", QUICK)
def test_equal_bits_where_a_rank_has_no_rows(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str
) -> None:
    graph = make_graph(num_nodes=40).with_relations()
    width = 3 * (model in EDGE_MODELS)
    parts = max(comm.size, 2)
    store = write_store(
        comm, comm_tmp_path, graph, method="empty second", parts=parts, edge_width=width
    )
    name = model.partition(" ")[0]
    options = (f"model.name={name}", "train.reproducible=true", "train.epochs=2", *MODELS[model])
    alone = train_alone(comm, make_config(store, comm_tmp_path / "alone", *options))
    run = train(comm, make_config(store, comm_tmp_path / "spread", *options))
    assert_equal_bits([run], alone)


@pytest.mark.quality
@pytest.mark.parametrize(
    "model",
    [
        "sage of edges",
        "gat of edges",
        "gatv2 of edges",
        "gatv2",
        "transformer of edges",
        "hgt",
        "rgat",
    ],
)
def test_learns_as_the_default_does(comm_tmp_path: Path, comm: MPI.Intracomm, model: str) -> None:
    width, graph = 3 * (model in EDGE_MODELS), make_graph(num_nodes=97).with_relations()
    store = write_store(comm, comm_tmp_path, graph, edge_width=width)
    name = model.partition(" ")[0]
    options = (f"model.name={name}", *MODELS[model], "model.dropout=0", "train.epochs=5")
    losses = [
        train(
            comm, make_config(store, comm_tmp_path / word, *options, f"train.reproducible={word}")
        ).column("train_loss")
        for word in ("true", "false")
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_predict_gives_the_same_bits(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(num_nodes=97))
    options = ("model.name=gcn", "train.epochs=2", "train.reproducible=true")
    run = train_alone(comm, make_config(store, comm_tmp_path / "run", *options))
    output = comm_tmp_path / "again.h5"
    predict_with(comm, run, monkeypatch, capsys)(output)
    with h5py.File(output) as file:
        np.testing.assert_array_equal(
            file["probabilities"][...], run.predictions()["probabilities"]
        )
