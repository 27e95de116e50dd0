"""Training on a GPU, or its emulator, equals training on the CPU."""

from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from tests.support.emulated_gpu import some_gpu
from tests.support.training import (
    TIMES,
    Run,
    StopAfter,
    make_config,
    make_graph,
    train,
    write_store,
)

GRAPH = make_graph(4, num_nodes=29).with_relations()
SETTINGS = (
    "train.dtype=float64",
    "train.epochs=3",
    "model.dropout=0.3",
    "run.checkpoint_every=2",
)
STEPS = ("correct_and_smooth.correct_steps=2", "correct_and_smooth.smooth_steps=2")
SEQUENTIAL = ("exchange.schedule=sequential", "exchange.prefetch=1")
DROPOUTS = ("model.attention_dropout=0.2", "model.edge_dropout=0.1")
MODELS = (
    ("gcn", ("exchange.prepare=first_epoch",)),
    ("sage", ("model.norm=batch", "train.optimizer=adamw", "model.activation=elu")),
    ("gin", ("exchange.active_sets=false", "model.norm=layer", "exchange.method=oblivious")),
    ("appnp", ("model.hops=2", "exchange.method=push", *SEQUENTIAL)),
    ("mixhop", ("model.hops=2", "exchange.method=hierarchical")),
    ("sage", ("train.label_augmentation=0.5", "correct_and_smooth.enabled=true", *STEPS)),
    ("gat", ("model.heads=2", "model.hidden=6", *DROPOUTS)),
    ("gat", ("model.heads=2", "model.hidden=6", "exchange.method=joint", *SEQUENTIAL)),
    ("gatv2", ("model.heads=2", "model.hidden=6", *DROPOUTS, "exchange.method=push")),
    ("rgcn", ("model.num_bases=2", "exchange.method=joint")),
)


@pytest.fixture
def store(comm: MPI.Intracomm, comm_tmp_path: Path) -> Path:
    return write_store(comm, comm_tmp_path, GRAPH)


def assert_alike(run: Run, other: Run) -> None:
    """Require equal losses, results and moved rows, up to rounding."""
    assert len(run.metrics) == len(other.metrics)
    for mine, theirs in zip(run.metrics, other.metrics, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine.keys() - set(TIMES):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-9), name
    assert run.summary.get("exchange_rows") == other.summary.get("exchange_rows")
    mine, theirs = run.predictions(), other.predictions()
    for name, value in mine.items():
        if value.dtype.kind != "S":
            np.testing.assert_allclose(value, theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "options"), MODELS, ids=[f"{name}-{len(options)}" for name, options in MODELS]
)
def test_equals_the_cpu(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, model: str, options: tuple[str, ...]
) -> None:
    # Two replicas of a block row, if there are enough ranks.
    copies = 2 if comm.size > 3 else 1
    grid = f"exchange.replication={copies}"
    settings = (*SETTINGS, f"model.name={model}", grid, *options)
    host = train(comm, make_config(store, comm_tmp_path / "host", *settings))
    with some_gpu():
        config = make_config(store, comm_tmp_path / "device", *settings, "train.device=cuda")
        device = train(comm, config)
    assert_alike(device, host)
    # Ghosts of a hierarchical exchange are both on the host and on the device.
    if "exchange.method=hierarchical" not in options:
        assert device.summary["ghost_bytes_max"] == host.summary["ghost_bytes_max"]


EDGE_MODELS = (
    pytest.param("gine", ("exchange.method=oblivious",), marks=pytest.mark.slow),
    pytest.param("nnconv", ("model.options={inner=5}",), marks=pytest.mark.slow),
    ("pna", ("model.edge_features=false", *SEQUENTIAL)),
    pytest.param("gatedgcn", ("exchange.method=hierarchical",), marks=pytest.mark.slow),
    ("meshgraphnet", ("model.activation=gelu", "exchange.keep_states=never")),
)


@pytest.mark.parametrize(("model", "options"), EDGE_MODELS)
def test_messages_equal_those_of_the_cpu(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str, options: tuple[str, ...]
) -> None:
    stored = write_store(comm, comm_tmp_path, make_graph(4, num_nodes=29), edge_width=3)
    settings = (*SETTINGS, f"model.name={model}", *options)
    host = train(comm, make_config(stored, comm_tmp_path / "host", *settings))
    with some_gpu():
        config = make_config(stored, comm_tmp_path / "device", *settings, "train.device=cuda")
        assert_alike(train(comm, config), host)


def test_a_checkpoint_goes_on_anywhere(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path
) -> None:
    """Two epochs on one device, the third on the other; and everything on the CPU."""
    settings = (*SETTINGS, "model.name=gcn")
    host = train(comm, make_config(store, comm_tmp_path / "host", *settings))
    there, back = comm_tmp_path / "there", comm_tmp_path / "back"
    on_gpu = "train.device=cuda"
    train(comm, make_config(store, there, *settings), StopAfter(2))
    with some_gpu():
        train(comm, make_config(store, back, *settings, on_gpu), StopAfter(2))
        changed = train(comm, make_config(store, there, *settings, on_gpu))
    assert_alike(changed, host)
    assert_alike(train(comm, make_config(store, back, *settings)), host)


NARROW = (
    ("gcn", ("model.dropout=0.3", "exchange.prepare=first_epoch")),
    ("sage", ("model.norm=batch", "train.optimizer=adamw", "model.activation=elu")),
    ("gin", ("model.norm=layer", "exchange.method=oblivious")),
    ("appnp", ("model.hops=2", "exchange.method=push", *SEQUENTIAL)),
    ("mixhop", ("model.hops=2", "exchange.method=hierarchical")),
    ("gat", ("model.heads=2", "model.hidden=6", "exchange.method=joint", *SEQUENTIAL, *DROPOUTS)),
    ("gatv2", ("model.heads=2", "model.hidden=6")),
    ("gcnii", ("model.num_layers=3",)),
    ("sign", ("model.hops=2",)),
    ("rgcn", ("model.num_bases=2", "exchange.method=joint")),
)


@pytest.mark.parametrize(
    ("model", "options"), NARROW, ids=[f"{name}-{len(options)}" for name, options in NARROW]
)
def test_narrow_rows_equal_those_of_the_cpu(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, model: str, options: tuple[str, ...]
) -> None:
    """bfloat16 on a GPU differs from the CPU's by rounding, and moves the same rows."""
    settings = ("train.epochs=2", f"model.name={model}", "train.precision=bfloat16", *options)
    host = train(comm, make_config(store, comm_tmp_path / "host", *settings))
    with some_gpu():
        config = make_config(store, comm_tmp_path / "device", *settings, "train.device=cuda")
        device = train(comm, config)
    for mine, theirs in zip(device.metrics, host.metrics, strict=True):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=0.01)
    if comm.size > 1:
        assert device.summary["exchange_rows"] == host.summary["exchange_rows"]
