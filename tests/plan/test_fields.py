"""A plan of fields predicts the traffic of a run from few of its samples; groups are chosen."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import pytest

from hpcgnn.commands.command import find_command
from tests.support.planned import planned
from tests.support.series import field_config, planted, with_flows, write_series
from tests.support.training import train

COMMAND = find_command("plan")
MESSAGES = ("model.name=meshgraphnet", "model.num_layers=2", "model.hidden=8")
CASES = {
    "one": ("exchange.method=joint",),
    "messages": (*MESSAGES, "fields.unroll=2", "fields.history=2"),
    # 7 samples: batches of 3 and a rest, of 2 and a rest, and of all.
    "rest": (*MESSAGES, "fields.batch=3"),
    "copies": ("exchange.method=joint", "fields.batch=2", "model.num_layers=2"),
    "stages": ("model.name=sage", "fields.batch=7", "exchange.schedule=sequential"),
    "same": ("fields.predict=same", "fields.targets=p", "fields.inputs=u", "fields.batch=4"),
    "relations": ("model.name=rgcn", "fields.batch=2"),
    "attention": ("model.name=gat", "fields.batch=2"),
    "groups": (*MESSAGES, "fields.batch=4", "exchange.groups=2", "fields.unroll=4"),
    # Of 7 samples, groups have 2, 1 and 1 in a batch, and one or none of the rest.
    "groups and rest": (*MESSAGES, "fields.batch=3", "exchange.groups=2"),
    "groups and attention": ("model.name=gat", "fields.batch=5", "exchange.groups=2"),
    "edges": (*MESSAGES, "fields.edge_targets=['w', 'q']", "fields.unroll=2", "fields.batch=3"),
    "noisy edges": (*MESSAGES, "fields.edge_targets=q", "fields.noise=0.1"),
    "4 groups": ("model.name=rgcn", "fields.batch=5", "exchange.groups=4", "fields.history=2"),
}


@pytest.mark.parametrize("case", CASES)
def test_bytes_are_those_of_the_run(comm: MPI.Intracomm, comm_tmp_path: Path, case: str) -> None:
    words = (*CASES[case], "train.epochs=2", "train.evaluate_every=2", "fields.horizons=[]")
    fields = replace(with_flows(planted()), edge_features=MESSAGES[0] in words)
    store = write_series(comm, comm_tmp_path, fields)
    config = field_config(store, comm_tmp_path / "run", *words, "run.save_predictions=false")
    if comm.size % config.exchange.groups:
        pytest.skip("groups of equal size")
    run = train(comm, config)
    if comm.rank == 0:
        found, rank, plan = planned(config, comm.size, None, 2)
        once, epoch, evaluation = (int(each.bytes_out.sum()) for each in plan)
        assert run.column("bytes_sent") == [once + epoch, epoch + evaluation]
        assert found.ghost_bytes == run.summary["ranks_detail"][rank]["ghost_bytes_max"]
        assert found.epoch_s > 0
    comm.Barrier()


@pytest.mark.max_ranks(1)
def test_the_number_of_groups_is_chosen(
    comm: MPI.Intracomm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = write_series(comm, tmp_path, planted(), parts=4)
    given = ("train.task=fields", "fields.targets=u", "fields.batch=4", "model.name=sage")
    words = [*given, f"graph.store={store}", "model.dropout=0", "train.epochs=2"]
    # Messages are so slow that only whole meshes are worthwhile.
    asked = [
        "--ranks",
        "4",
        "--groups",
        "1,2,4",
        "--exchange",
        "aware",
        "--latency",
        "1e6",
        "--epochs",
        "2",
    ]
    monkeypatch.setattr(sys, "argv", ["hpcgnn plan", *words, *asked, "--json"])
    assert COMMAND.call() == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["groups"] for each in found] == [1, 2, 4]
    assert [each["best"] for each in found] == [False, False, True]
    rows = [each["rows_total"] for each in found]
    assert rows[0] > rows[1] > rows[2] == 0
    assert "exchange.groups=4" in found[2]["overrides"]
    assert all(each["bytes_epoch"] > 0 for each in found)
    monkeypatch.setattr(sys, "argv", ["hpcgnn plan", *words, *asked])
    assert COMMAND.call() == 0
    assert "exchange.groups=4" in capsys.readouterr().err
