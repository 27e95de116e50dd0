"""Training equals a serial dense float64 reference, for any distribution of the graph."""

from pathlib import Path

from mpi4py import MPI

import pytest

from hpcgnn.spmm import EXCHANGES
from tests.support.training import make_config, make_graph, train, write_store
from tests.support.training_oracle import assert_reference

QUIET = ("train.epochs=5", "train.evaluate_every=5", "run.save_predictions=false")

SPREADS = [
    (method, exchange)
    for method in ("random", "block", "metis")
    for exchange in ("aware", "oblivious")
]


def check(comm: MPI.Intracomm, directory: Path, graph: dict[str, bool], *overrides: str) -> None:
    """Train on a graph and compare every loss with the reference."""
    made = make_graph(**graph)
    method = next(each for each in overrides if "=" not in each)
    settings = [each for each in overrides if "=" in each]
    store = write_store(comm, directory, made, method=method)
    config = make_config(store, directory / "run", *QUIET, *settings)
    tolerance = 1e-12 if config.train.dtype == "float64" else 1e-5
    assert_reference(comm, train(comm, config), made, config, tolerance)


@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize(("method", "exchange"), SPREADS)
def test_float64_on_a_directed_weighted_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str, method: str, exchange: str
) -> None:
    graph = {"directed": True, "weighted": True}
    settings = (f"model.name={model}", f"exchange.method={exchange}", "train.dtype=float64")
    check(comm, comm_tmp_path, graph, method, *settings)


@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize("directed", [False, True])
def test_float32(comm: MPI.Intracomm, comm_tmp_path: Path, model: str, directed: bool) -> None:
    check(comm, comm_tmp_path, {"directed": directed}, "metis", f"model.name={model}")


@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize("exchange", ["aware", "oblivious"])
def test_replicated_block_rows(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str, exchange: str
) -> None:
    if comm.size % 2:
        pytest.skip("two replicas need an even number of ranks")
    graph = {"directed": True, "weighted": True}
    settings = (f"model.name={model}", f"exchange.method={exchange}", "exchange.replication=2")
    check(comm, comm_tmp_path, graph, "random", "train.dtype=float64", *settings)


@pytest.mark.parametrize(
    ("exchange", "prefetch"), list(zip(EXCHANGES, (0, 1, 2, 0, 1, 0), strict=True))
)
def test_sequential_schedules(
    comm: MPI.Intracomm, comm_tmp_path: Path, exchange: str, prefetch: int
) -> None:
    graph = {"directed": True, "weighted": True}
    settings = (f"exchange.method={exchange}", f"exchange.prefetch={prefetch}")
    more = ("exchange.schedule=sequential", "train.dtype=float64", "model.num_layers=3")
    check(comm, comm_tmp_path, graph, "random", *settings, *more)


@pytest.mark.parametrize("num_layers", [1, 3])
def test_other_depths(comm: MPI.Intracomm, comm_tmp_path: Path, num_layers: int) -> None:
    settings = (f"model.num_layers={num_layers}", "train.dtype=float64")
    check(comm, comm_tmp_path, {"directed": True}, "random", *settings)


@pytest.mark.parametrize("exchange", ["aware", "oblivious"])
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_a_rank_without_nodes(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str, exchange: str
) -> None:
    made = make_graph(weighted=True)
    store = write_store(comm, comm_tmp_path, made, method="empty second", parts=comm.size)
    settings = (f"model.name={model}", f"exchange.method={exchange}", "train.dtype=float64")
    config = make_config(store, comm_tmp_path / "run", *settings)
    run = train(comm, config)
    assert_reference(comm, run, made, config, 1e-12)
    assert run.predictions()["node_id"].tolist() == list(range(len(made.ids)))
