"""Training moves as many rows as the partition's metric counts."""

import json
from pathlib import Path
from typing import Any

from mpi4py import MPI

import pytest

from tests.support import training

# Exchanges of only the rows that training nodes need move fewer rows than the metric counts.
WHOLE = ("exchange.active_sets=false",)


def spans(run: Path, name: str) -> list[list[dict[str, Any]]]:
    """Return the records of a span of every rank, in rank order."""
    found = []
    for file in sorted((run / "trace").glob("rank*.jsonl")):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        found.append([record for record in records if record.get("name") == name])
    return found


@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize("method", ["random", "block", "metis"])
def test_rows_of_trace_and_summary_equal_the_metric(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str, method: str
) -> None:
    store = training.write_store(
        comm, comm_tmp_path, training.make_graph(), method=method, parts=comm.size
    )
    settings = (f"model.name={model}", "train.epochs=2", "trace.enabled=true")
    run = training.train(
        comm, training.make_config(store, comm_tmp_path / "run", *settings, *WHOLE)
    )
    metric = training.expected_volume(store)

    by_rank = spans(run.path, "exchange.forward")
    assert len(by_rank) == comm.size
    assert all(len(records) == len(by_rank[0]) for records in by_rank)
    for records in zip(*by_rank, strict=True):
        sent = [record["rows"] for record in records]
        received = [0] * comm.size
        pairs = [rows for record in records for _, rows, _ in record.get("peers") or ()]
        for record in records:
            for peer, rows, _ in record.get("peers") or ():
                received[peer] += rows
        assert sum(sent) == metric.total_rows
        assert max(sent) == metric.max_send_rows
        assert max(received) == metric.max_recv_rows
        assert max(pairs, default=0) == metric.max_pair_rows

    assert run.summary["exchange_rows"] == {
        "total": metric.total_rows,
        "max_send": metric.max_send_rows,
        "max_recv": metric.max_recv_rows,
        "max_pair": metric.max_pair_rows,
    }
    moved = sum(
        record["rows"]
        for name in ("exchange.forward", "exchange.reverse")
        for records in spans(run.path, name)
        for record in records
        if record["epoch"] is not None
    )
    assert sum(run.column("rows_sent")) == moved


@pytest.mark.parametrize("prepare", ["before", "first_epoch"])
def test_cached_products_move_once(comm: MPI.Intracomm, comm_tmp_path: Path, prepare: str) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph(), parts=comm.size)
    quiet = ("train.epochs=3", "run.save_predictions=false", *WHOLE)
    settings = (*quiet, "trace.enabled=true", f"exchange.prepare={prepare}")
    kept = training.train(comm, training.make_config(store, comm_tmp_path / "kept", *settings))
    never = "exchange.keep_products=never"
    fresh = training.train(
        comm, training.make_config(store, comm_tmp_path / "never", *settings, never)
    )
    # Both directions of a directed graph; training and evaluation read the same rows.
    once = 2 * training.expected_volume(store).total_rows
    first, *later = kept.column("rows_sent")
    assert later == [first - (once if prepare == "first_epoch" else 0)] * 2
    before = [
        record["rows"]
        for name in ("exchange.forward", "exchange.reverse")
        for records in spans(kept.path, name)
        for record in records
        if record["epoch"] is None
    ]
    assert sum(before) == (once if prepare == "before" else 0)
    # An epoch both trains and evaluates.
    assert fresh.column("rows_sent") == [later[0] + 2 * once] * 3


def test_replicas_share_the_rows_of_their_block(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    if comm.size % 2:
        pytest.skip("two replicas need an even number of ranks")
    store = training.write_store(comm, comm_tmp_path, training.make_graph(), parts=comm.size // 2)
    settings = ("exchange.replication=2", "train.epochs=1", *WHOLE)
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *settings))
    assert run.summary["exchange_rows"]["total"] == training.expected_volume(store).total_rows


@pytest.mark.parametrize(("exchange", "prefetch"), [("aware", 1), ("joint", 0), ("oblivious", 0)])
def test_sequential_ghosts_are_few(
    comm: MPI.Intracomm, comm_tmp_path: Path, exchange: str, prefetch: int
) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph(), parts=comm.size)
    settings = (f"exchange.method={exchange}", f"exchange.prefetch={prefetch}")
    more = ("exchange.schedule=sequential", "trace.enabled=true", "train.epochs=2")
    config = training.make_config(store, comm_tmp_path / "run", *settings, *more)
    run = training.train(comm, config)
    # The widest rows that travel are hidden ones or features, in float32.
    widest = 4 * max(config.model.hidden, training.NUM_FEATURES)
    largest = max(rank["local_nodes"] for rank in run.summary["ranks_detail"])
    assert run.summary["ghost_bytes_max"] <= (1 + prefetch) * largest * widest
    recorded = [
        record["ghost_bytes"]
        for name in ("exchange.forward", "exchange.reverse")
        for records in spans(run.path, name)
        for record in records
    ]
    assert max(recorded, default=0) <= run.summary["ghost_bytes_max"]


def test_oblivious_moves_whole_blocks(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    graph = training.make_graph()
    store = training.write_store(comm, comm_tmp_path, graph, parts=comm.size)
    settings = ("exchange.method=oblivious", "train.epochs=1", *WHOLE)
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *settings))
    assert run.summary["exchange_rows"]["total"] == len(graph.ids) * (comm.size - 1)


@pytest.mark.parametrize("task", ["sampled", "links"])
def test_spans_bear_the_step_that_they_are_of(
    comm: MPI.Intracomm, comm_tmp_path: Path, task: str
) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    words = (f"train.task={task}", "links.sampled=true", "train.epochs=2", "graph.undirected=true")
    more = ("sampling.sampler=neighbour", "sampling.fan_outs=[2, 2]", "sampling.steps=3")
    config = training.make_config(store, comm_tmp_path / "run", *words, *more)
    run = training.train(comm, config)
    for name, after in (("wait.input", 1), ("dense.backward", 0), ("optimiser", 0)):
        # The last wait finds that there are no further steps.
        expected = [(epoch, step) for epoch in range(2) for step in range(3 + after)]
        for records in spans(run.path, name):
            assert [(each["epoch"], each["step"]) for each in records] == expected
    for records in spans(run.path, "evaluate"):
        assert [each["step"] for each in records] == [3, 3]
