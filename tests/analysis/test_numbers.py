"""Seconds, rows and bytes of an epoch are the same in the summary, the trace and the tables."""

import json
import re
from pathlib import Path

from mpi4py import MPI

import pytest

from hpcgnn.analysis import comm_matrix, epoch_breakdown, report
from hpcgnn.analysis.load import open_run
from hpcgnn.analysis.sessions import Trace
from hpcgnn.inspect import inspect_path
from hpcgnn.trace import describe_epochs
from tests.support import training


def test_an_epoch_is_described_one_way(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph(), parts=comm.size)
    settings = ("train.epochs=4", "train.seeds=[1, 2]", "exchange.method=joint")
    more = ("trace.enabled=true", "train.evaluate_every=2", "exchange.keep_products=never")
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *settings, *more))
    if comm.rank > 0:
        return
    summary, rows = run.summary, run.metrics
    trace = Trace(open_run(run.path))
    epochs, traffic = epoch_breakdown.summarise(trace), comm_matrix.summarise(trace)
    assert inspect_path(run.path)["summary"] == summary
    assert summary["epoch_s"]["median"] == sorted(row["epoch_s"] for row in rows[1:])[3]
    assert epochs["epoch_s"] == pytest.approx(summary["epoch_s"]["median"])
    for rank in epochs["per_rank"]:
        assert sum(rank["phases_s"].values()) == pytest.approx(epochs["epoch_s"])
        assert "evaluate" not in rank["phases_s"]
    assert traffic["rows"]["total"] == summary["epoch_rows"]
    assert traffic["bytes"]["total"] + sum(traffic["summed_bytes"]) == summary["epoch_bytes"]
    page = comm_tmp_path / "page.html"
    report.main([str(run.path), "-o", str(page)])
    keys = re.findall(r'data-name="(epoch s|MB an epoch)" data-key="([^"]*)"', page.read_text())
    shown = {name: float(value) for name, value in keys}
    assert shown["epoch s"] == pytest.approx(summary["epoch_s"]["median"])
    assert shown["MB an epoch"] == summary["epoch_bytes"]
    # Every second epoch is evaluated, which sends as much as another forward pass.
    assert [row["evaluate_rows"] > 0 for row in rows] == 4 * [False, comm.size > 1]
    assert [row["evaluate_s"] > 0 for row in rows] == 4 * [False, True]
    assert rows[1]["rows_sent"] == summary["epoch_rows"] + rows[1]["evaluate_rows"]


def test_the_first_epoch_counts_only_where_it_is_alone() -> None:
    rows = [
        {"epoch_s": 9.0, "evaluate_s": 0.0, "rows_sent": 70, "bytes_sent": 700},
        {"epoch_s": 2.0, "evaluate_s": 0.5, "rows_sent": 30, "bytes_sent": 300},
        {"epoch_s": 4.0, "evaluate_s": 0.0, "rows_sent": 20, "bytes_sent": 200},
    ]
    rows[1] |= {"evaluate_rows": 10, "evaluate_bytes": 100}
    for row, share in zip(rows, (0.9, 0.1, 0.3), strict=True):
        row["sample_wait_share"], row["epoch_j"] = share, 10 * share
    assert describe_epochs(rows) == {
        "epoch_s": {"median": 3.0, "min": 2.0, "max": 4.0, "first": 9.0},
        "evaluate_s": {"median": 0.5, "min": 0.5, "max": 0.5},
        "epoch_j": 2.0,
        "epoch_rows": 20,
        "sample_wait_share": 0.2,
        "epoch_bytes": 200,
    }
    assert describe_epochs(rows[:1])["epoch_rows"] == 70
    nothing = describe_epochs([])
    assert json.dumps(nothing["epoch_s"]) == json.dumps(dict.fromkeys(nothing["epoch_s"]))


def test_the_system_is_asked_what_each_rank_had(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph(), parts=comm.size)
    config = training.make_config(store, comm_tmp_path / "run", "train.epochs=3")
    run = training.train(comm, config)
    comm.Barrier()
    for rank in run.summary["ranks_detail"]:
        usage = rank["usage"]
        assert 0 < usage["cpu_s"] <= 1.5 * usage["cores"] * run.summary["sessions"][0]["wall_s"]
        assert usage["major_faults"] >= 0
        assert usage["yielded"] + usage["preempted"] >= 0
        assert usage["queued_s"] is None or usage["queued_s"] >= 0
