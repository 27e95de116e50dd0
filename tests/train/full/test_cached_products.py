"""Keeping products of the features changes only the moved rows."""

from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from tests.support.training import NUM_FEATURES, make_config, make_graph, train, write_store

EPOCHS = ("train.epochs=3", "train.dtype=float64", "model.num_layers=2")
ALWAYS = "exchange.keep_products=always"
CASES = {
    "gcn": ("exchange.method=joint",),
    "sage": (),
    "sage, whole": ("exchange.active_sets=false", "exchange.schedule=sequential"),
    "gin": ("exchange.replication=2", "model.dropout=0.2"),
    "mixhop": ("exchange.prepare=first_epoch",),
    "sign": ("model.hops=2", "exchange.method=joint"),
    "gcnii": (),
    "rgcn": (),
    "rgcn, auto": ("exchange.active_sets=false",),
    "rgcn, bases": ("model.num_bases=2",),
    "appnp": (),
    "gat": (),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_same(comm: MPI.Intracomm, comm_tmp_path: Path, name: str) -> None:
    if "exchange.replication=2" in CASES[name] and comm.size % 2:
        pytest.skip("two replicas need an even number of ranks")
    graph = make_graph()
    model = name.partition(",")[0]
    if model == "rgcn":
        graph = graph.with_relations()
    store = write_store(comm, comm_tmp_path, graph, parts=comm.size)
    settings = (f"model.name={model}", *EPOCHS, *CASES[name])
    runs = [
        train(
            comm,
            make_config(store, comm_tmp_path / keep, *settings, f"exchange.keep_products={keep}"),
        )
        for keep in ("never", "auto" if "auto" in name else "always")
    ]
    for column in ("train_loss", "valid_loss", "test_loss"):
        never, always = (np.array(each.column(column), float) for each in runs)
        np.testing.assert_allclose(always, never, rtol=1e-12)
    assert kept_bytes(runs[0]) == 0
    # Bases are mapped before they are aggregated; attention and propagation read no features.
    assert (kept_bytes(runs[1]) > 0) == (name not in {"rgcn, bases", "appnp", "gat", "gcnii"})


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ((), 2),
        (("exchange.schedule=sequential",), 0),
        (("exchange.schedule=sequential", ALWAYS), 2),
        (("model.input_dropout=0.3",), 2),
        (("model.input_dropout=0.3", "train.evaluate_every=3"), 0),
    ],
)
def test_what_is_kept(
    comm: MPI.Intracomm, comm_tmp_path: Path, settings: tuple[str, ...], factor: int
) -> None:
    graph = make_graph()
    store = write_store(comm, comm_tmp_path, graph, parts=comm.size)
    more = ("exchange.active_sets=false", "train.epochs=3", *settings)
    run = train(comm, make_config(store, comm_tmp_path / "run", "model.name=sage", *more))
    # Two directions, whose products training and evaluation share.
    assert kept_bytes(run) == factor * len(graph.ids) * NUM_FEATURES * 4


def kept_bytes(run) -> int:
    return sum(each["kept_bytes"] for each in run.summary["ranks_detail"])


@pytest.mark.parametrize("active", ["true", "false"])
def test_sign_moves_nothing_after_its_products(
    comm: MPI.Intracomm, comm_tmp_path: Path, active: str
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(), parts=comm.size)
    more = ("model.name=sign", ALWAYS, f"exchange.active_sets={active}", "train.epochs=3")
    run = train(comm, make_config(store, comm_tmp_path / "run", *more))
    assert run.column("rows_sent") == [0, 0, 0]
