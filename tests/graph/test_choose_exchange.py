"""The chosen exchange: ranks count it as the planner does, and a resumed run keeps it."""

import platform
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import pytest

from hpcgnn.comm import Network, ProcessGrid
from hpcgnn.graph.choose_exchange import ExchangeChoice, joins_messages, method_seconds, row_bytes
from hpcgnn.plan.estimates import product_seconds
from hpcgnn.plan.traffic import ALL, Ranks
from hpcgnn.plan.whole_graph import WholeGraph
from hpcgnn.storage import GraphStore
from tests.support.training import StopAfter, make_config, make_graph, train, write_store

NETWORKS = {
    "slow links": Network(1e6, 1e-6, 2, 1e9, 1e-6),
    "slow messages": Network(1e12, 1e-3, 2, 1e12, 1e-5),
    "one kind": Network(1e8, 1e-5, 2),
}


@pytest.mark.parametrize("per_host", [1, 2, 4])
@pytest.mark.parametrize(
    "words", [("model.name=sage",), ("model.name=gat", "model.heads=2", "model.hidden=6")]
)
def test_ranks_and_the_planner_count_alike(
    comm: MPI.Intracomm, comm_tmp_path: Path, words: tuple[str, ...], per_host: int
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(), parts=comm.size)
    config = make_config(store, comm_tmp_path / "run", "exchange.method=auto", *words)
    for replication in (c for c in (1, 2) if comm.size % c == 0):
        config = replace(config, exchange=replace(config.exchange, replication=replication))
        for each in NETWORKS.values():
            network = replace(each, ranks_per_host=per_host)
            with ProcessGrid(comm, replication, host=f"host{comm.rank // per_host}") as grid:
                found = method_seconds(grid, config, network)
            several = per_host > 1 and comm.size > per_host
            assert ("hierarchical" in found) == several
            assert ("hierarchical_joint" in found) == (several and "model.name=gat" not in words)
            if comm.rank == 0:
                assert found == pytest.approx(planned_seconds(config, comm.size, network, found))


def planned_seconds(config, ranks: int, network: Network, names) -> dict[str, float]:
    """Return the planner's estimates of each exchange."""
    known = {}
    plain = replace(config, exchange=replace(config.exchange, method="aware"))
    with GraphStore.open(config.graph.store) as store, ProcessGrid.of_this_process() as alone:
        whole = WholeGraph(alone, plain, store)
        starts = whole.row_starts(ranks // config.exchange.replication)
        for name in names:
            every = Ranks(starts, replace(config.exchange, method=name), network.ranks_per_host)
            size = row_bytes(plain)
            joined = joins_messages(plain)
            traffic = whole.survey(ALL, every).traffic(every)
            known[name] = product_seconds(traffic, every, network, size, joined=joined)
    return known


@pytest.mark.parametrize(
    ("aware", "joint", "push", "taken"),
    [
        (2.0, 1.0, 1.2, "joint"),
        (1.04, 1.0, 1.2, "aware"),
        (1.06, 1.04, 1.0, "joint"),
        (1.06, 1.06, 1.0, "push"),
        (0.0, 0.0, 0.0, "aware"),
    ],
)
def test_the_first_that_is_about_the_cheapest_is_taken(
    aware: float, joint: float, push: float, taken: str
) -> None:
    seconds = {"aware": aware / 1e3, "joint": joint / 1e3, "push": push / 1e3}
    choice = ExchangeChoice.of(seconds, Network())
    assert choice.method == taken
    assert f"{taken} (modelled ms of messages a product: aware {aware:.3g}, " in choice.describe()


def test_a_resumed_run_keeps_it(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "node", lambda: f"host{comm.rank // 2}")
    store = write_store(comm, comm_tmp_path, make_graph(), parts=comm.size)
    words = ("exchange.method=auto", "train.epochs=4", "run.checkpoint_every=0")
    config = make_config(store, comm_tmp_path / "run", *words)
    train(comm, config, StopAfter(2))
    # A new choice would assume links without cost.
    monkeypatch.setattr(Network, "measured", None)
    run = train(comm, config)
    assert run.status == 0
    first, second = run.summary["sessions"]
    assert "exchange_choice" not in second
    made = first["exchange_choice"]
    assert run.summary["exchange"] == made["method"]
    assert made["seconds"][made["method"]] <= 1.05 * min(made["seconds"].values())
    assert f'method = "{made["method"]}"' in (comm_tmp_path / "run" / "config.toml").read_text()
