"""Training with bfloat16 rows: close to float64, with the same guarantees as in float32."""

from pathlib import Path

from mpi4py import MPI

import h5py
import numpy as np
import pytest

from hpcgnn.comm import ProcessGrid
from hpcgnn.config.file import load_config
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.graph.load import load_graph
from hpcgnn.spmm import EXCHANGES
from hpcgnn.storage import Split
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.tasks import check_run
from tests.support import training

NARROW, QUIET = "train.precision=bfloat16", ("train.evaluate_every=3", "run.save_predictions=false")
TOLERANCE = 0.02
"""Relative error of a loss: a row keeps 8 bits of each number, an error of at most 2^-8, which
layers, gradients and two steps magnify several times."""
MODELS = [
    ("sage", "num_layers=3"),
    ("sage", "norm=graph", "jumping=max"),
    ("gcn", "norm=batch", "residual=true", "num_layers=3"),
    ("gat", "hidden=6", "heads=2"),
    ("gat", "hidden=40", "heads=4", "attention_dropout=0.3", "edge_dropout=0.2"),
    ("gatv2", "hidden=6", "heads=2"),
    ("mixhop", "norm=layer", "activation=elu"),
    # Not over normalised columns: one in this graph has almost no variance, and even in float64 a
    # change of the features by 2^-9 changes the third loss by 1 %.
    ("gin",),
    ("appnp", "hops=3", "teleport=0.2"),
    ("gcnii", "num_layers=3", "teleport=0.2"),
    ("sign", "hops=2"),
    ("rgcn", "num_bases=2", "norm=batch"),
    ("transformer", "hidden=6", "heads=2", "edge_dropout=0.2"),
    ("hgt", "hidden=6", "heads=2"),
    ("rgat", "hidden=6", "heads=2", "edge_dropout=0.2"),
]
WAYS = [(f"exchange.method={each}",) for each in EXCHANGES] + [
    ("exchange.method=joint", "exchange.schedule=sequential"),
    ("exchange.method=aware", "exchange.active_sets=false"),
]


def losses(comm: MPI.Intracomm, store: Path, run: Path, *words: str) -> list[float]:
    config = training.make_config(store, run, *QUIET, "train.epochs=3", *words)
    return training.train(comm, config).column("train_loss")


@pytest.mark.parametrize("setting", MODELS, ids="-".join)
def test_every_model_is_close_to_float64(
    comm: MPI.Intracomm, comm_tmp_path: Path, setting: tuple[str, ...]
) -> None:
    name, *options = setting
    graph = training.make_graph(weighted=True)
    if name in ("rgcn", "rgat", "hgt"):
        graph = graph.with_relations()
    store = training.write_store(comm, comm_tmp_path, graph)
    model = [f"model.{each}" for each in (f"name={name}", "dropout=0.4", *options)]
    # Adam's first steps have the same length for any gradient: if that is nearly zero, rounding
    # would determine their direction.
    words = [*model, "train.optimizer=sgd", "train.learning_rate=0.05"]
    method = "aware" if name == "rgat" else "joint"
    found = losses(comm, store, comm_tmp_path / "run", *words, f"exchange.method={method}", NARROW)
    expected = losses(comm, store, comm_tmp_path / "exact", *words, "train.dtype=float64")
    np.testing.assert_allclose(found, expected, rtol=2**-7)
    assert found != expected


@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("name", ["sage", "gat"])
def test_every_way_of_rows_is_close_to_float64(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str, way: tuple[str, ...]
) -> None:
    if name == "gat" and "exchange.method=hierarchical_joint" in way:
        pytest.skip("attention pushes states")
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    replicas = 2 if comm.size == 4 and way[0].endswith("joint") else 1
    words = (f"model.name={name}", f"exchange.replication={replicas}", *way)
    found = losses(comm, store, comm_tmp_path / "run", *words, NARROW)
    expected = losses(comm, store, comm_tmp_path / "exact", *words, "train.dtype=float64")
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE)


@pytest.mark.parametrize("name", ["sage", "gat", "gatv2", "transformer"])
@pytest.mark.parametrize(
    "narrow", [NARROW, "exchange.wire=float16", "exchange.wire=bfloat16", "exchange.wire=int8"]
)
def test_rows_beside_features_of_edges_are_close_to_float64(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str, narrow: str
) -> None:
    graph = training.make_graph().with_relations()
    store = training.write_store(comm, comm_tmp_path, graph, edge_width=3)
    options = () if name == "sage" else ("model.heads=2", "model.edge_dropout=0.2")
    words = (f"model.name={name}", "model.edge_features=true", "model.hidden=6", *options)
    # As in the test of every model.
    words = (*words, "train.optimizer=sgd", "train.learning_rate=0.05", "exchange.method=joint")
    found = losses(comm, store, comm_tmp_path / "run", *words, narrow)
    expected = losses(comm, store, comm_tmp_path / "exact", *words, "train.dtype=float64")
    np.testing.assert_allclose(found, expected, rtol=2**-7)
    assert found != expected


@pytest.mark.parametrize("topology", ["shared", "partitioned"])
def test_sampled_training_is_close_to_float64(
    comm: MPI.Intracomm, comm_tmp_path: Path, topology: str
) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    words = ("train.task=sampled", "sampling.budget=20", f"sampling.topology={topology}")
    found = losses(comm, store, comm_tmp_path / "run", *words, NARROW)
    expected = losses(comm, store, comm_tmp_path / "exact", *words, "train.dtype=float64")
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE)


def test_links_are_close_to_float64(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    words = ("train.task=links", "links.width=6", "links.scorer=mlp")
    found = losses(comm, store, comm_tmp_path / "run", *words, NARROW)
    expected = losses(comm, store, comm_tmp_path / "exact", *words, "train.dtype=float64")
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE)


@pytest.mark.parametrize("name", ["sage", "gat"])
def test_a_resumed_run_has_equal_bits_and_float32_weights(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str
) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    words = (f"model.name={name}", "train.epochs=4", "run.checkpoint_every=1", NARROW)
    words = (*words, "model.dropout=0.3")
    whole = training.train(comm, training.make_config(store, comm_tmp_path / "whole", *words))
    config = training.make_config(store, comm_tmp_path / "parts", *words)
    training.train(comm, config, training.StopAfter(2))
    parts = training.train(comm, config)
    training.assert_same(whole, parts)
    assert {value.dtype.name for value in parts.tensors().values()} == {"float32"}


@pytest.mark.parametrize("name", ["sage", "gcn"])
def test_half_the_bytes_travel(comm: MPI.Intracomm, comm_tmp_path: Path, name: str) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    words = (f"model.name={name}", "train.epochs=1", "exchange.method=joint", *QUIET)
    sent = []
    for precision in ("float32", "bfloat16"):
        given = (*words, f"train.precision={precision}")
        run = training.train(comm, training.make_config(store, comm_tmp_path / precision, *given))
        comm.Barrier()
        moved = [each["exchanges"] for each in run.summary["ranks_detail"]]
        # Gradients stay in float32.
        gradients = sum(each["reduce.gradients"]["bytes"] for each in moved)
        (row,) = run.metrics
        sent.append((row["rows_sent"], row["bytes_sent"] - gradients, gradients))
    (wide_rows, wide, wide_gradients), (rows, narrow, gradients) = sent
    assert rows == wide_rows
    assert narrow * 2 == wide
    assert gradients == wide_gradients
    assert (narrow > 0) == (gradients > 0) == (comm.size > 1)


def test_features_are_kept_in_16_bits(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    config = training.make_config(store, comm_tmp_path / "run", NARROW)
    with ProcessGrid(comm) as grid:
        graph = load_graph(Context.open(grid, config, TraceRecorder.off()))
        assert graph.features.dtype.itemsize == 2
        parameters = graph.make_model(config, 1).parameters()
        assert {each.dtype.itemsize for each in parameters} == {4}


@pytest.mark.parametrize(
    "word",
    [
        "train.dtype=float64",
        "train.task=programs",
        "exchange.wire=float16",
        "train.reproducible=true",
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, word: str) -> None:
    words = (f"graph.store={tmp_path / 'x.h5'}", f"run.dir={tmp_path / 'run'}", NARROW, word)
    with pytest.raises(InputError, match=r"does not work with .*; .*set ") as refused:
        check_run(load_config(None, words))
    key, _, value = word.partition("=")
    assert f"{key} = " in str(refused.value)
    assert value in str(refused.value)
    assert "train.precision" in str(refused.value)


def test_the_old_key_names_the_new_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^train\.activations is no longer .*train\.precision"):
        training.make_config(tmp_path / "x.h5", tmp_path / "run", "train.activations=bfloat16")


@pytest.mark.parametrize(
    ("name", "wire"), [("gcn", "int2"), ("gat", "int4"), ("transformer", "int4")]
)
@pytest.mark.parametrize("keep", ["always", "never"])
def test_few_bits_round_what_trains_and_no_result(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    name: str,
    wire: str,
    keep: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    graph = training.make_graph()
    store = training.write_store(comm, comm_tmp_path, graph)
    words = ("exchange.method=joint", f"exchange.keep_products={keep}", "train.epochs=2")
    words = (*words, "train.select=last", f"model.name={name}")
    plain = training.train(comm, training.make_config(store, comm_tmp_path / "plain", *words))
    config = training.make_config(store, comm_tmp_path / "run", f"exchange.wire={wire}", *words)
    run = training.train(comm, config)
    rounded = run.column("train_loss") != plain.column("train_loss")
    assert rounded == (comm.size > 1)
    if comm.rank == 0:
        # In one process, no rows travel.
        training.predict_with(MPI.COMM_SELF, run, monkeypatch, capsys)(comm_tmp_path / "one.h5")
        with h5py.File(comm_tmp_path / "one.h5") as file:
            expected, ids = file["probabilities"][...], file["node_id"][...]
        found = run.predictions()
        np.testing.assert_array_equal(found["node_id"], ids)
        np.testing.assert_allclose(found["probabilities"], expected, rtol=1e-4, atol=1e-6)
        labels, judged = graph.labels[ids], graph.split[ids] == Split.VALID
        judged &= labels >= 0
        loss = -np.log(expected[judged, labels[judged]]).mean()
        assert run.column("valid_loss")[-1] == pytest.approx(loss, rel=1e-5)
    comm.Barrier()
