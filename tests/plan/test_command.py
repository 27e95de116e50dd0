"""The planning command: its output, its choice, its refusals."""

import dataclasses
import json
import mmap
import os
import shlex
import subprocess
import sys
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import ProcessGrid
from hpcgnn.commands.command import find_command
from hpcgnn.config.file import load_config
from hpcgnn.errors import InputError
from hpcgnn.inspect.stores import exchange_volume
from hpcgnn.plan import estimates, forks, rehearsal
from hpcgnn.plan.planned_graph import Share
from hpcgnn.storage import GraphStore, Split
from tests.conftest import MpiRun
from tests.support.training import make_graph, write_store

COMMAND = find_command("plan")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    graph = make_graph()
    # Only one rank has a validation node, and it is not the rehearsed one.
    graph.split[graph.split == Split.VALID] = Split.TRAIN
    graph.split[4] = Split.VALID
    return write_store(MPI.COMM_WORLD, tmp_path, graph, parts=4)


def plan(monkeypatch: pytest.MonkeyPatch, store: Path, *words: str) -> int:
    more = (f"graph.store={store}", "model.hidden=8", "train.epochs=10", "run.threads=1")
    monkeypatch.setattr(sys, "argv", ["hpcgnn plan", *more, *words])
    return COMMAND.call()


def test_says_what_each_choice_needs(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--ranks", "4", "--schedule", "resident", "--epochs", "2", "--bandwidth", "0.001")
    growing = ("--json", "train.evaluate_growth=2", "train.patience=3", "run.watts_per_core=4")
    assert plan(monkeypatch, store, *words, *growing) == 0
    shown = capsys.readouterr()
    assert ("each rank is planned with cores" in shown.err) == (len(os.sched_getaffinity(0)) < 4)
    aware, joint = json.loads(shown.out)
    assert (aware["exchange"], joint["exchange"]) == ("aware", "joint")
    assert joint["rows_total"] <= aware["rows_total"]
    assert [each["fits"] for each in (aware, joint)] == [True, True]
    assert sum(each["best"] for each in (aware, joint)) == 1
    for each in (aware, joint):
        assert 0 < each["idle_bytes"] < each["peak_bytes"]
        assert each["exchange_s"] >= each["bytes_max_send"] / 1e6
        # One host has all ranks, and copies between them cannot be hidden.
        assert each["hidden_s"] == 0
        assert each["epoch_s"] == each["compute_s"] + each["exchange_s"]
        # Evaluations follow epochs 1, 3, 7 and the last.
        expected = 10 * each["epoch_s"] + 4 * each["evaluate_s"]
        assert each["train_s"] == pytest.approx(expected)
        assert f"exchange.method={each['exchange']}" in each["overrides"]
        assert each["epoch_j"] == 4 * each["cpu_s"]
        assert each["cpu_s"] >= each["computing_s"] * each["threads"] > 0


@pytest.mark.parametrize("method", ["aware", "push", "joint"])
def test_the_busiest_ranks_are_those_of_the_exchange(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    words = ("--ranks", "4", "--schedule", "resident", "--epochs", "2", "--exchange", method)
    assert plan(monkeypatch, store, *words, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    counted: dict[str, float] = dict(exchange_volume(store, exchange=method))
    if method != "joint":
        with GraphStore.open(store) as opened:
            starts, ids = opened.row_starts, opened.read_original_id(0, opened.num_nodes)
        part = np.empty(len(ids), np.int64)
        part[ids] = np.repeat(np.arange(4), np.diff(starts))
        rows, columns = make_graph().adjacency.nonzero()
        # A fetched row is sent by the owner of the column, and so is a pushed sum of a row.
        key = columns if method == "aware" else rows
        sent = set(zip(part[columns].tolist(), part[rows].tolist(), key.tolist(), strict=True))
        pairs = np.array([(q, p) for q, p, _ in sent if p != q])
        by_end = [np.bincount(ends).max() for ends in pairs.T]
        counted = dict(zip(("rows_max_send", "rows_max_recv"), by_end, strict=True))
    for name in ("rows_max_send", "rows_max_recv"):
        assert found[name] == counted[name]


def test_joules_are_those_of_a_power_that_is_given(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--ranks", "1", "--schedule", "resident", "--exchange", "aware", "--epochs", "2")
    for power in ((), ("--watts-per-core", "5")):
        assert plan(monkeypatch, store, *words, *power) == 0
        assert ("J an epoch" in capsys.readouterr().out) == bool(power)


def test_messages_between_hosts_pass_while_ranks_compute(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--ranks", "4", "--epochs", "2", "--bandwidth", "0.01", "--ranks-per-host", "2")
    both = ("--exchange", "aware,joint", "--schedule", "resident,sequential", "--json")
    assert plan(monkeypatch, store, *words, *both, "--cores-per-host", "1") == 0
    for each in json.loads(capsys.readouterr().out):
        assert 0 < each["hidden_s"] < each["exchange_s"]
        # Two ranks share a core; the second one has at most as much work.
        assert 1 <= each["crowding"] <= 2
        alone_s = each["compute_s"] + each["exchange_s"] - each["hidden_s"]
        crowded_s = estimates.crowded_s(each["compute_s"], each["crowding"], each["turns"])
        assert each["epoch_s"] == max(alone_s, crowded_s)


def test_what_runs_alike_is_rehearsed_once(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rehearsed = []

    def here(share: Share, epochs: int, _beside: int) -> rehearsal.Rehearsal:
        rehearsed.append((share.position.num_blocks, share.config.exchange.method))
        with ProcessGrid.of_this_process() as alone:
            return rehearsal.rehearse(alone, share, epochs)

    monkeypatch.setattr(estimates, "in_fresh_process", here)
    both = ("--schedule", "resident,sequential")
    assert plan(monkeypatch, store, "--ranks", "1", "--epochs", "2", "--json", *both) == 0
    found = json.loads(capsys.readouterr().out)
    assert rehearsed == [(1, "aware")]
    assert [each["compute_s"] for each in found] == [found[0]["compute_s"]] * 4
    assert [each["spread_s"] for each in found] == [0] * 4
    named = [(each["exchange"], each["schedule"]) for each in found]
    assert named == [(x, s) for x in ("aware", "joint") for s in ("resident", "sequential")]
    rehearsed.clear()
    words = ("--ranks", "2", "--epochs", "2", "--exchange", "aware,auto,joint", "--json")
    assert plan(monkeypatch, store, *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert len({method for _, method in rehearsed}) == 2
    assert found[1]["is_auto"]
    assert found[1]["compute_s"] == next(
        each["compute_s"] for each in found[::2] if each["exchange"] == found[1]["exchange"]
    )


def test_plans_the_exchange_of_the_configuration_and_those_that_work_beside_it(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--ranks", "4", "--schedule", "resident", "--epochs", "2", "--json")
    chosen = ("exchange.method=oblivious", "model.name=pna")
    assert plan(monkeypatch, store, *words, *chosen) == 0
    # `joint` cannot send its messages, so it is left out, and refused on request.
    planned = json.loads(capsys.readouterr().out)
    assert [candidate["exchange"] for candidate in planned] == ["oblivious", "aware"]
    for asked in (("exchange.method=joint",), ("--exchange", "aware,joint")):
        with pytest.raises(InputError, match=r"exchange\.method = 'joint'.*'pna'"):
            plan(monkeypatch, store, *words, "model.name=pna", *asked)


def test_stages_are_rehearsed_where_memory_is_short(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def here(share: Share, epochs: int, _beside: int) -> rehearsal.Rehearsal:
        with ProcessGrid.of_this_process() as alone:
            found = rehearsal.rehearse(alone, share, epochs)
        resident = share.config.exchange.schedule == "resident"
        return dataclasses.replace(found, peak_bytes=(3 << 30) if resident else (1 << 30))

    monkeypatch.setattr(estimates, "in_fresh_process", here)
    words = ("--ranks", "1,4", "--exchange", "aware", "--epochs", "2", "--json", "--prefetch", "2")
    assert plan(monkeypatch, store, *words, "--memory", "4GiB") == 0
    schedules = [each["schedule"] for each in json.loads(capsys.readouterr().out)]
    assert schedules == ["resident", "resident"]
    assert plan(monkeypatch, store, *words, "--memory", "2GiB") == 0
    *_, staged = json.loads(capsys.readouterr().out)
    named = [staged[key] for key in ("ranks", "schedule", "prefetch", "fits", "best")]
    assert named == [4, "sequential", 2, True, True]


def test_pages_of_a_file_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "library"
    path.write_bytes(bytes(1 << 22))
    table = np.memmap(path, np.uint8, "r")
    pages = [each for each in forks.mapped_files() if _holds(each, table.ctypes.data)]
    before = forks.resident(pages)
    assert len(before) == (1 << 22) // mmap.PAGESIZE
    assert not before.any()
    assert table[:: mmap.PAGESIZE].sum() == 0
    assert forks.resident(pages).all()
    assert not forks.resident(pages, "/proc/none/pagemap").any()


def _holds(pages: tuple[int, int], address: int) -> bool:
    return pages[0] <= address // mmap.PAGESIZE < pages[1]


def test_ends_with_the_command_that_trains(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--ranks", "2", "--exchange", "push", "--schedule", "sequential", "--epochs", "2")
    given = ("exchange.method=aware", "graph.relations=[]")
    assert plan(monkeypatch, store, *words, *given) == 0
    *_, last = capsys.readouterr().err.splitlines()
    start, _, rest = last.partition(" hpcgnn train ")
    assert start == "next: mpiexec -n 2"
    overrides = shlex.split(rest)
    assert overrides[-3:] == [
        "exchange.method=push",
        "exchange.schedule=sequential",
        "exchange.replication=1",
    ]
    assert "exchange.method=aware" not in overrides
    made = load_config(None, overrides)
    assert (made.graph.store, made.model.hidden, made.run.dir) == (str(store), 8, "run")
    assert plan(monkeypatch, store, *words, "run.dir=mine") == 0
    assert "run.dir=mine" in capsys.readouterr().err.splitlines()[-1]


def die(_path: Path, _epochs: int) -> None:
    os._exit(9)


def test_a_killed_rehearsal_is_one_line(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_rehearse_file", die)
    with pytest.raises(InputError, match="was killed"):
        plan(monkeypatch, store, "--ranks", "2", "--exchange", "aware")


def test_the_second_time_only_what_took_longest(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = []

    def here(share: Share, _epochs: int, _beside: int) -> rehearsal.Rehearsal:
        blocks.append(share.position.block)
        seconds = 1.0 + 0.1 * share.position.block
        return rehearsal.Rehearsal(1, 2, 0, seconds, 0.1, ((),), ((),), ((),))

    monkeypatch.setattr(estimates, "in_fresh_process", here)
    monkeypatch.setattr(estimates, "_largest", lambda *_: [1, 3])
    assert plan(monkeypatch, store, "--ranks", "4", "--json") == 0
    assert blocks == [1, 3, 1, 3, 3, 3]
    found = json.loads(capsys.readouterr().out)
    assert [each["rehearsed_rank"] for each in found] == [3, 3]
    assert "block" not in found[0]


@pytest.mark.slow
def test_copies_rehearse_at_once(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--ranks", "2", "--exchange", "aware", "--schedule", "resident", "--epochs", "2")
    assert plan(monkeypatch, store, *words, "--beside", "2", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["compute_s"] > 0
    monkeypatch.setattr(rehearsal, "_rehearse_file", die)
    with pytest.raises(InputError, match=r"was killed.*, or without --beside"):
        plan(monkeypatch, store, *words, "--beside", "2")


def test_refuses_a_graph_without_training_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = make_graph()
    graph.split[:] = Split.TEST
    store = write_store(MPI.COMM_WORLD, tmp_path, graph, parts=2)
    with pytest.raises(InputError, match="no labelled node is in the training split"):
        plan(monkeypatch, store, "--ranks", "2", "--exchange", "aware")


def test_says_that_nothing_fits(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--ranks", "2", "--exchange", "aware", "--schedule", "sequential", "--epochs", "2")
    assert plan(monkeypatch, store, *words, "--memory", "1MiB") == 1
    printed = capsys.readouterr()
    assert "too much" in printed.out
    assert "nothing fits" in printed.err


TWICE = "exchange.replication=2"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--ranks", "5"), "4 part"),
        (("--ranks", "2", "train.task=sampled", "sampling.topology=partitioned"), "topology"),
        (("--ranks", "2", "graph.relations=['typo']"), r"graph\.relations.* no relation 'typo'"),
        (("--ranks", "2", "correct_and_smooth.enabled=true"), r"correct_and_smooth\.enabled"),
        (("--ranks", "2", "train.device=cuda"), "train.device"),
        (("--ranks", "4", "train.reproducible=true", "model.name=gat", TWICE), "in one copy"),
        (("--ranks", "3", "--replication", "2"), "replication times groups divides none"),
        (("--ranks", "3", "exchange.replication=2"), "replication times groups divides none"),
        (("--ranks", "2", "--bandwidth", "0"), "--bandwidth"),
        (("--ranks", "2", "--ranks-per-host", "1", "--bandwidth", "0"), "--bandwidth"),
        (("--ranks", "2", "--ranks-per-host", "0"), "--ranks-per-host"),
        (("--ranks", "2", "a.toml", "b.toml"), "more than one"),
    ],
)
def test_refuses(
    store: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], fault: str
) -> None:
    with pytest.raises(InputError, match=fault):
        plan(monkeypatch, store, *words)


def test_refuses_before_it_rehearses(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "in_fresh_process", lambda *_: pytest.fail("rehearsed"))
    with pytest.raises(InputError, match="the store has 4 parts, too few for 5 ranks"):
        plan(monkeypatch, store, "--ranks", "1,5")


@pytest.mark.parametrize(
    "words",
    [
        ("--ranks", "0"),
        ("--ranks", "2", "--memory", "much"),
        ("--ranks", "2", "--exchange", "unknown"),
        ("--ranks", "2", "--epochs", "1"),
        ("--ranks", "2", "--beside", "0"),
        ("--ranks", "2", "--prefetch", "-1"),
        ("--ranks", "2", "--shape", "a.toml", "--write-shape", "b.toml"),
        (),
    ],
)
def test_wrong_options_are_usage_errors(
    store: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        plan(monkeypatch, store, *words)
    assert ended.value.code == 2


@pytest.mark.slow
@pytest.mark.skipif(MPI.COMM_WORLD.size > 1, reason="one process")
def test_needs_no_mpi_library(store: Path) -> None:
    words = [sys.executable, "-m", "hpcgnn", "plan", f"graph.store={store}"]
    words += ["model.hidden=8", "run.threads=1", "--exchange=aware", "--schedule=resident"]
    counted = []
    for library in ("", "/nowhere/libmpi.so"):
        environment = {**os.environ, "MPI4PY_LIBMPI": library} if library else os.environ
        done = subprocess.run(
            [*words, "--ranks", "4", "--json"], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        planned = json.loads(done.stdout)
        counted.append(
            [(each["ranks"], each["rows_total"], each["bytes_epoch"]) for each in planned]
        )
    assert counted[0] == counted[1]
    assert counted[0][-1][1] > 0


def test_a_launcher_that_starts_one_process_is_not_waited_for(store: Path, mpi_run: MpiRun) -> None:
    words = ("plan", f"graph.store={store}", "model.hidden=8", "--schedule=resident")
    done = mpi_run(1, "-m", "hpcgnn", *words, "--ranks=4", "--exchange=aware", timeout=120)
    assert done.returncode == 0, done.stderr
    assert "next: mpiexec -n 4" in done.stderr + done.stdout
