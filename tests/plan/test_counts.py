"""A plan predicts the rows, bytes and ghosts of the run, rank by rank."""

import platform
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.nn import MODELS
from hpcgnn.partition import read_pattern
from hpcgnn.storage import GraphStore
from hpcgnn.train.optimizer import evaluation_is_due
from tests.support.many_graphs import make_graphs, write_graphs
from tests.support.planned import planned
from tests.support.training import make_config, make_graph, train, write_store

EPOCHS = 2
QUIET = (f"train.epochs={EPOCHS}", f"train.evaluate_every={EPOCHS}", "run.save_predictions=false")

CASES = {
    "sage": ("exchange.method=aware",),
    "sage, whole": ("exchange.method=joint", "exchange.active_sets=false"),
    "sage, stages": ("exchange.method=joint", "exchange.schedule=sequential", "model.num_layers=3"),
    "sage, evaluated": ("train.evaluate_every=1", "exchange.prepare=first_epoch"),
    "sage, push, bfloat16": ("exchange.method=push", "exchange.wire=bfloat16"),
    "sage, labels": ("train.label_augmentation=0.5", "model.norm=batch", "model.dropout=0.3"),
    "sage, degrees": ("graph.structure=degree", "exchange.method=joint"),
    "gcn": ("exchange.method=joint", "train.dtype=float64", "graph.normalize_features=standard"),
    "sage, exact": ("train.reproducible=true", "exchange.method=joint", "model.norm=batch"),
    "gcn, exact and stages": (
        "train.reproducible=true",
        "train.dtype=float64",
        "exchange.schedule=sequential",
        "exchange.prepare=first_epoch",
    ),
    "gin, exact": ("train.reproducible=true",),
    "rgcn, exact": ("train.reproducible=true", "exchange.method=push", "model.norm=graph"),
    "sage, exact and oblivious": ("train.reproducible=true", "exchange.method=oblivious"),
    "gat, exact": ("train.reproducible=true", "exchange.method=joint", "model.norm=batch"),
    "gatv2, exact and stages": (
        "train.reproducible=true",
        "exchange.schedule=sequential",
        "exchange.prepare=first_epoch",
    ),
    "rgat, exact": ("train.reproducible=true", "model.heads=2", "model.hidden=8"),
    "hgt, exact": ("train.reproducible=true", "model.heads=2", "model.hidden=8"),
    "transformer, exact edges": ("train.reproducible=true", "exchange.active_sets=false"),
    "gcn, positions": ("graph.structure=spectral", "graph.structure_columns=5"),
    "gcn, deep": (
        "model.num_layers=40",
        "model.residual=true",
        "train.optimizer=sgd",
        "train.learning_rate=0.01",
    ),
    "gat": ("exchange.method=joint", "model.heads=2", "model.hidden=8", "model.edge_dropout=0.2"),
    "gat, edges": ("exchange.method=joint", "model.heads=2", "model.hidden=8"),
    "gatv2, edges and stages": ("model.hidden=8", "exchange.schedule=sequential"),
    "transformer, edges": ("exchange.method=push", "model.hidden=8"),
    "sage, edges": ("exchange.method=joint",),
    "gat, stages": ("model.heads=2", "model.hidden=8", "exchange.schedule=sequential"),
    "gatv2": ("exchange.method=joint", "model.heads=2", "model.hidden=8"),
    "transformer": ("exchange.method=joint", "model.heads=2", "model.hidden=8"),
    "hgt": ("exchange.method=joint", "model.heads=2", "model.hidden=8"),
    "hgt, types and stages": ("model.hidden=8", "exchange.schedule=sequential"),
    "rgat": ("model.hidden=8", "exchange.schedule=sequential"),
    "mixhop": ("exchange.method=joint",),
    "sage, 16 bits": ("exchange.method=joint", "train.precision=bfloat16"),
    "gat, 16 bits": ("model.heads=2", "model.hidden=8", "train.precision=bfloat16"),
    "appnp": ("model.hops=3",),
    "sign": ("model.hops=2", "exchange.method=joint"),
    "gcnii": ("model.num_layers=3",),
    "sage, oblivious": ("exchange.method=oblivious",),
    "sage, oblivious stages": ("exchange.method=oblivious", "exchange.schedule=sequential"),
    "gcn, oblivious bfloat16": ("exchange.method=oblivious", "exchange.wire=bfloat16"),
    "gcn, oblivious int4": ("exchange.method=oblivious", "exchange.wire=int4/int8"),
    "rgcn, oblivious": ("exchange.method=oblivious", "model.num_bases=2"),
    "sage, int8": ("exchange.method=joint", "exchange.wire=int8"),
    "gcn, int4 and stages": ("exchange.wire=int4/int2", "exchange.schedule=sequential"),
    "rgcn, int8": ("exchange.wire=int8/native", "exchange.method=joint", "model.num_bases=2"),
    "gat, int4": ("exchange.method=joint", "model.hidden=8", "exchange.wire=int4"),
    "gatv2, int8 and stages": ("exchange.wire=int8/int4", "exchange.schedule=sequential"),
    "transformer, int4": ("exchange.method=push", "model.hidden=8", "exchange.wire=int4"),
    "rgat, int4": ("model.hidden=8", "exchange.wire=int4"),
    "hgt, int8": ("exchange.method=joint", "model.hidden=8", "exchange.wire=int8"),
    "gin": ("exchange.method=push", "exchange.schedule=sequential", "exchange.prefetch=1"),
    "rgcn": ("exchange.method=joint", "model.num_bases=2"),
    "rgcn, types": ("exchange.method=joint", "graph.normalize_features=standard"),
    "gcn, types with vectors": ("model.embeddings=true", "train.clip_norm=0.1"),
    "sage, types": ("model.input_width=3", "train.label_augmentation=0.5"),
    "gin, an objective of one's own": (
        "train.task=tests.train.objectives.degree:ON_WHOLE",
        "exchange.active_sets=true",
    ),
    "gat, types and stages": ("model.heads=2", "model.hidden=8", "exchange.schedule=sequential"),
}


def check(
    comm: MPI.Intracomm, directory: Path, name: str, *settings: str, per_host: int | None = None
) -> None:
    """Train, and compare the traffic with the plan, which the first rank makes alone."""
    model, _, options = name.partition(",")
    graph = make_graph(weighted="stages" in options and "edges" not in options and model != "gine")
    if model in ("rgcn", "rgat", "hgt"):
        graph = graph.with_relations()
    if "types" in options:
        graph = graph.with_types()
    # The second rank may own no rows.
    method = "empty second" if "whole" in options and comm.size > 2 else "random"
    width = 3 * (model == "gine" or "edges" in options)
    if "edges" in options:
        settings = *settings, "model.edge_features=true"
    store = write_store(comm, directory, graph, method=method, parts=comm.size, edge_width=width)
    config = make_config(store, directory / "run", f"model.name={model}", *QUIET, *settings)
    run = train(comm, config)
    made = planned(config, comm.size, per_host, EPOCHS) if comm.rank == 0 else None
    found, rank, (once, epoch, evaluation) = comm.bcast(made)
    evaluated = [evaluation_is_due(config.train, number + 1) for number in range(EPOCHS)]
    first = config.exchange.prepare == "first_epoch"
    for column, get in (
        ("rows_sent", lambda sent: int(sent.rows.sum())),
        ("bytes_sent", lambda sent: int(sent.bytes_out.sum())),
    ):
        expected = [get(epoch) + due * get(evaluation) for due in evaluated]
        expected[0] += first * get(once)
        assert run.column(column) == expected
    details = run.summary["ranks_detail"]
    counted = any(kind.attends for kind in MODELS[model].aggregations)
    if not (counted or "positions" in options or "exact" in options):
        # Before training, attention requests the ids of ghosts, positions are products of the
        # graph, and exact products count the entries of rows; all of this counts here.
        by_rank = once.bytes_out + EPOCHS * epoch.bytes_out + sum(evaluated) * evaluation.bytes_out
        assert [each["bytes_sent"] for each in details] == by_rank.tolist()
    assert epoch.bytes_in.sum() == epoch.bytes_out.sum()
    of_positions = bytes_of_positions(store, rank, 5) if "positions" in options else 0
    assert max(found.ghost_bytes, of_positions) == details[rank]["ghost_bytes_max"]


def bytes_of_positions(store: Path, rank: int, columns: int) -> int:
    """Return the bytes of ghosts in the search for spectral positions, which plans do not count.

    It happens before training, over edges in both directions, in float64 with 8 more columns.
    """
    with GraphStore.open(store) as opened:
        pattern = read_pattern(opened, undirected=True)
        start, stop = opened.row_starts[rank : rank + 2]
    ends = np.unique(pattern.indices[pattern.indptr[start] : pattern.indptr[stop]])
    return int(((ends < start) | (ends >= stop)).sum()) * 8 * (columns + 8)


@pytest.mark.parametrize("name", CASES)
def test_bytes_of_every_model(comm: MPI.Intracomm, comm_tmp_path: Path, name: str) -> None:
    if comm.size == 2:
        pytest.skip("3 and 4 ranks say more")
    check(comm, comm_tmp_path, name, *CASES[name])


LINKS = {
    "sage": ("exchange.method=joint", "links.num_negatives=3"),
    "rgcn": ("links.scorer=distmult", "links.negatives=batch", "exchange.schedule=sequential"),
    # There are fewer tested edges than ranks.
    "gcn": ("links.valid=0.01", "links.test=0.01", "links.split_seed=4"),
    "gat": ("model.heads=2", "model.hidden=8", "links.negatives=degree", "graph.undirected=true"),
}


@pytest.mark.parametrize("name", LINKS)
def test_bytes_of_links(comm: MPI.Intracomm, comm_tmp_path: Path, name: str) -> None:
    if comm.size == 2:
        pytest.skip("3 and 4 ranks say more")
    graph = make_graph().with_relations()
    graph = graph.with_types() if name == "gat" else graph
    method = "empty second" if name == "sage" and comm.size > 2 else "random"
    store = write_store(comm, comm_tmp_path, graph, method=method, parts=comm.size)
    words = ("train.epochs=1", "run.save_predictions=false", "train.task=links", *LINKS[name])
    config = make_config(store, comm_tmp_path / "run", f"model.name={name}", *words)
    run = train(comm, config)
    made = planned(config, comm.size, None, EPOCHS) if comm.rank == 0 else None
    found, rank, (once, epoch, evaluation) = comm.bcast(made)
    sent = run.column("rows_sent")[0], run.column("bytes_sent")[0]
    # Later epochs have other pairs.
    first = config.exchange.prepare == "first_epoch"
    counts = [*([once] if first else []), epoch, evaluation]
    assert sent == tuple(
        int(sum(getattr(each, field).sum() for each in counts)) for field in ("rows", "bytes_out")
    )
    assert found.ghost_bytes == run.summary["ranks_detail"][rank]["ghost_bytes_max"]


GRAPHS = {
    "sage": ("graphs.readout=max", "exchange.method=joint", "model.norm=batch"),
    "rgcn": ("graphs.readout=attention", "exchange.schedule=sequential", "graphs.width=3"),
    # Some ranks with nodes of training graphs own no such graph.
    "gcn": ("exchange.method=joint",),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_bytes_of_graphs(comm: MPI.Intracomm, comm_tmp_path: Path, name: str) -> None:
    if comm.size == 2:
        pytest.skip("3 and 4 ranks say more")
    store = write_graphs(comm, comm_tmp_path, make_graphs(3, 1) if name == "gcn" else make_graphs())
    words = ("train.epochs=2", "run.save_predictions=false", "train.task=graphs", "graphs.batch=0")
    config = make_config(store, comm_tmp_path / "run", f"model.name={name}", *words, *GRAPHS[name])
    run = train(comm, config)
    made = planned(config, comm.size, None, EPOCHS) if comm.rank == 0 else None
    found, rank, (_, epoch, evaluation) = comm.bcast(made)
    # The first epoch may contain preparation.
    sent = run.column("rows_sent")[1], run.column("bytes_sent")[1]
    assert sent == tuple(
        int(sum(getattr(each, field).sum() for each in (epoch, evaluation)))
        for field in ("rows", "bytes_out")
    )
    assert found.ghost_bytes == run.summary["ranks_detail"][rank]["ghost_bytes_max"]


DRAWN = {
    "sage": ("model.norm=batch", "sampling.budget=12", "exchange.prepare=first_epoch"),
    "rgcn, types": ("sampling.sampler=neighbour", "sampling.fan_outs=[3, 2]"),
    "gat, coverage": ("sampling.sampler=node", "sampling.coverage=8", "model.norm=graph"),
}


def test_rows_of_a_deep_reproducible_plan_do_not_grow(tmp_path: Path) -> None:
    # Sixty sums of six rows overflow float32 if nothing divides them.
    store = write_store(MPI.COMM_SELF, tmp_path, make_graph())
    words = ("model.name=appnp", "model.hops=60", "train.reproducible=true")
    found, *_ = planned(make_config(store, tmp_path / "run", *words), 1, None, EPOCHS)
    assert found.evaluate_s > 0


@pytest.mark.parametrize("name", DRAWN)
def test_bytes_of_drawn_steps(comm: MPI.Intracomm, comm_tmp_path: Path, name: str) -> None:
    if comm.size == 2:
        pytest.skip("3 and 4 ranks say more")
    model, _, options = name.partition(",")
    graph = make_graph().with_relations()
    graph = graph.with_types() if "types" in options else graph
    store = write_store(comm, comm_tmp_path, graph, method="empty second", parts=comm.size)
    words = ("train.epochs=2", "run.save_predictions=false", "train.task=sampled", *DRAWN[name])
    config = make_config(store, comm_tmp_path / "run", f"model.name={model}", *words)
    run = train(comm, config)
    made = planned(config, comm.size, None, EPOCHS) if comm.rank == 0 else None
    _, _, (_, epoch, evaluation) = comm.bcast(made)
    # Steps only move gradients and statistics.
    assert epoch.rows.sum() == 0
    sent = run.column("rows_sent")[1], run.column("bytes_sent")[1]
    assert sent == tuple(
        int(sum(getattr(each, field).sum() for each in (epoch, evaluation)))
        for field in ("rows", "bytes_out")
    )


HIERARCHIES = {
    "sage": (),
    "sage, joint": ("exchange.method=hierarchical_joint", "exchange.wire=int8"),
    "gcn, joint and stages": (
        "exchange.method=hierarchical_joint",
        "exchange.schedule=sequential",
        "model.num_layers=3",
    ),
    "rgcn, joint": ("exchange.method=hierarchical_joint", "model.num_bases=2"),
    "sage, stages": ("exchange.schedule=sequential", "exchange.prefetch=1"),
    "gcn, bfloat16": ("exchange.wire=bfloat16", "exchange.active_sets=false"),
    "rgcn": ("model.num_bases=2", "exchange.schedule=sequential"),
    "sage, int8": ("exchange.wire=native/int8",),
    "gat, int4": ("exchange.wire=int4", "model.hidden=8"),
}


@pytest.mark.parametrize("per_host", [1, 2, 3])
@pytest.mark.parametrize("name", HIERARCHIES)
def test_bytes_between_hosts(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    per_host: int,
) -> None:
    monkeypatch.setattr(platform, "node", lambda: f"host{comm.rank // per_host}")
    settings = ("exchange.method=hierarchical", *HIERARCHIES[name])
    check(comm, comm_tmp_path, name, *settings, per_host=per_host)


@pytest.mark.parametrize(
    ("name", "exchange", "per_host"),
    [
        *(("sage", each, None) for each in ("aware", "joint", "oblivious", "hierarchical")),
        # Each replica computes whole messages.
        ("gine", "aware", 2),
        ("gine, stages", "oblivious", 2),
        # Hosts of three ranks have different numbers of each replica.
        ("gine", "hierarchical", 3),
        ("gine", "hierarchical", None),
    ],
)
def test_bytes_of_replicated_grids(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    exchange: str,
    per_host: int | None,
) -> None:
    if comm.size % 2:
        pytest.skip("two replicas need an even number of ranks")
    if per_host is not None:
        monkeypatch.setattr(platform, "node", lambda: f"host{comm.rank // per_host}")
    schedule = "exchange.schedule=" + ("sequential" if "stages" in name else "resident")
    settings = (f"exchange.method={exchange}", "exchange.replication=2", "model.num_layers=3")
    check(comm, comm_tmp_path, name, *settings, schedule, per_host=per_host or comm.size)
