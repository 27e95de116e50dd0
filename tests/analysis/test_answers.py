"""The four sentences of a report name the planted fault, and no fault where there is none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hpcgnn.analysis.answers import Answers, answer
from hpcgnn.analysis.load import open_run
from hpcgnn.analysis.subject import read_subject
from tests.analysis.planted import FALLING, PLANTED, RISING, Plant

SAID = {
    "slow rank": ("ranks", "rank 2 computes 180 ms of an epoch", "the same work takes it longer"),
    "too few epochs": (
        "learning",
        "Not converged: validation accuracy was still rising",
        "65.00 %",
    ),
    "bad parts": (
        "ranks",
        "rank 0 computes 300 ms of an epoch",
        "it has 3 times the nodes, 3 times",
    ),
    "shared cores": ("ranks", "4 ranks with 1 thread each share 2 cores", "the time"),
    "over-fitting": (
        "learning",
        "It over-fits",
        "fell from 82.00 % in epoch 2 to 75.50 % at the end",
    ),
    "small steps": ("time", "60 steps of 1.45 ms", "the work of a step is small"),
    "slow link": ("time", "messages that were not sent late", "slow link"),
    "swap": ("ranks", "rank 1 read 50,000 pages from disk", "memory is short"),
}
CHANGE = {
    "slow rank": "hpcgnn doctor",
    "too few epochs": "train.epochs=16",
    "bad parts": "hpcgnn partition data/g.h5 --parts 4 --method volume -o data/g.volume4.h5 &&",
    "shared cores": "mpiexec -n 2 hpcgnn train",
    "over-fitting": "model.dropout=0.5",
    "small steps": "sampling.budget=32000",
    "slow link": "exchange.method=joint",
    "swap": "exchange.schedule=sequential",
}


SETTLED = (0.2, 0.6, 0.6, 0.6)


def answered(path: Path) -> Answers:
    return answer(read_subject(open_run(path)))


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_named(cause: str, tmp_path: Path) -> None:
    found = answered(PLANTED[cause].write(tmp_path / "run"))
    sentence, *words = SAID[cause]
    for text in words:
        assert text.lower() in getattr(found, sentence).lower()
    assert CHANGE[cause] in found.command
    others = {each.name for each in found.causes} - {cause}
    assert not others


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    found = answered(Plant().write(tmp_path / "run"))
    assert found.causes == []
    assert found.learning.startswith("Converged: validation accuracy has settled")
    assert found.time.startswith("An epoch takes 101 ms (median of 7), most of it dense products")
    assert found.ranks.startswith("No rank is slow: rank 0 computes longest, 100 ms of an epoch")
    assert found.next.startswith("The records suggest no change")
    assert found.command == f"hpcgnn predict {tmp_path / 'run'} -o answers.csv"


def test_what_helps_learning_and_time_is_one_command(tmp_path: Path) -> None:
    run = replace(PLANTED["slow link"], scores=RISING).write(tmp_path / "run")
    assert answered(run).command.split(" \\\n    ") == [
        f"mpiexec -n 4 hpcgnn train {run}/config.toml",
        f"run.dir={run}-next",
        "train.epochs=16",
        "exchange.method=joint",
    ]


def test_steps_of_few_rows_are_small_whatever_fills_them(tmp_path: Path) -> None:
    settings = {"train": {"task": "graphs"}, "graphs": {"batch": 2}}
    plant = Plant((5e-3,) * 4, delay_s=1e-4, steps=20, scores=SETTLED, settings=settings)
    run = plant.write(tmp_path / "run")
    assert answered(run).causes == []
    summary = json.loads((run / "summary.json").read_text())
    for nodes, causes in ((48_000, []), (4_800, ["small steps"])):
        summary |= {"graph": {"num_nodes": nodes, "num_graphs": 20}}
        summary |= {"sampling": {"graphs_per_step": 2}}
        (run / "summary.json").write_text(json.dumps(summary))
        found = answered(run)
        assert [each.name for each in found.causes] == causes
    summary["graph"]["num_nodes"] = 480
    (run / "summary.json").write_text(json.dumps(summary))
    found = answered(run)
    assert "on some 12 rows each" in found.time
    assert "graphs.batch=8" in found.command


def test_steps_of_small_subgraphs_are_small(tmp_path: Path) -> None:
    settings = {"train": {"task": "sampled"}, "sampling": {"budget": 60}}
    plant = Plant((5e-3,) * 4, delay_s=1e-4, steps=20, scores=SETTLED, settings=settings)
    run = plant.write(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    for nodes, causes in ((4_800.0, []), (228.0, ["small steps"])):
        summary |= {"sampling": {"steps_per_epoch": 20, "mean_nodes": nodes}}
        (run / "summary.json").write_text(json.dumps(summary))
        found = answered(run)
        assert [each.name for each in found.causes] == causes
    assert "on some 57 rows each" in found.time
    assert "sampling.budget=240" in found.command


def test_only_what_the_program_takes_is_advised(tmp_path: Path) -> None:
    # PNA pushes nothing, and sends no 16-bit rows.
    pna = {"model": {"name": "pna"}, "graph": {"store": "g.h5"}}
    found = answered(replace(PLANTED["slow link"], settings=pna).write(tmp_path / "run"))
    assert [each.name for each in found.causes] == ["slow link"]
    assert "exchange.method=joint" not in found.command


@pytest.mark.parametrize(
    ("settings", "scores", "text"),
    [
        (
            {"train": {"patience": 3, "epochs": 50}},
            (0.5, 0.8, 0.8, 0.8),
            "Patience ended it after 4",
        ),
        ({}, (0.5,), "1 evaluation in 1 epoch: too few to tell"),
        ({}, (0.5, 0.6), "still rising, from 50.00 % to 60.00 %"),
        ({}, (0.2, 0.2), "2 evaluations in 2 epochs: too few to tell"),
        ({}, SETTLED, "Converged"),
        ({}, FALLING[:3] * 3, "Converged"),
    ],
)
def test_what_became_of_the_learning(tmp_path, settings, scores, text) -> None:
    found = answered(Plant(scores=scores, settings=settings).write(tmp_path / "run"))
    assert text in found.learning


def test_learning_is_told_by_what_models_are_chosen_by(tmp_path: Path) -> None:
    settings = {"train": {"select": "best_loss", "patience": 3, "epochs": 50}}
    found = answered(Plant(scores=(0.5, 0.8, 0.8, 0.8), settings=settings).write(tmp_path / "loss"))
    assert "validation loss had not fallen for 3 evaluations; the best validation" in found.learning
    run = Plant().write(tmp_path / "joint")
    of_one = answered(run).learning
    assert "validation accuracy" in of_one
    rows = (run / "metrics.jsonl").read_text().replace("valid_accuracy", "valid_full_accuracy")
    (run / "metrics.jsonl").write_text(rows)
    summary = json.loads((run / "summary.json").read_text()) | {"metric": "full_accuracy"}
    (run / "summary.json").write_text(json.dumps(summary))
    assert answered(run).learning == of_one.replace("accuracy", "full accuracy")


def test_a_loss_that_rises_over_a_settled_accuracy_is_over_fitting(tmp_path: Path) -> None:
    run = Plant().write(tmp_path / "run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for losses, text in (((9, 3, 2, 2, 2, 2, 2, 2.5), "Converged"), ((9, 3, 2, 2, 2, 2, 2, 3), "")):
        told = [row | {"valid_loss": loss} for row, loss in zip(rows, losses, strict=True)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))
        found = answered(run)
        rose = "over-fits: the validation loss rose from 2 in epoch 2 to 3 at the end, while the"
        assert (text or rose) in found.learning
    assert "model.dropout=0.5" in found.command


def test_a_run_that_diverged_says_so(tmp_path: Path) -> None:
    run = Plant().write(tmp_path / "run")
    (run / "summary.json").unlink()
    fault = "ended by CollectiveInputError: training diverges in epoch 8 of seed 1: losses or"
    (run / "log.txt").write_text(f"2026-01-01T00:00:00.000Z {fault} weights are not finite\n")
    found = answered(run)
    assert found.learning.startswith(
        "The run diverged: its loss was not finite in epoch 8; the last"
    )
    assert "train.learning_rate=0.002" in found.command
    grown = Plant().write(tmp_path / "grown")
    lines = (grown / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {"train_loss": 1e6}
    (grown / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    assert answered(grown).learning.startswith("The loss grew from 2 to 1e+06")


def test_cores_that_others_use_are_told_from_cores_that_ranks_share(tmp_path: Path) -> None:
    queue = {"queued_s": (0.01, 0.01, 0.5, 0.01)}
    one = answered(Plant(work=(0.1, 0.1, 0.2, 0.1), usage=queue).write(tmp_path / "one"))
    assert "it waited for a core" in one.ranks
    queue = {"queued_s": (0.3, 0.3, 0.3, 0.3)}
    every = answered(Plant(usage=queue).write(tmp_path / "every"))
    assert "Other programs use the 4 cores of node1" in every.ranks
    assert every.command == "top -b -n 1"


def test_threads_of_hosts_with_unequal_cores_are_compared_host_by_host(tmp_path: Path) -> None:
    run = Plant(usage={"queued_s": (0.4,) * 4}).write(tmp_path / "run")
    hosts = [
        {"name": name, "ranks": 2, "threads": own, "cores": cores, "processor": "a cpu"}
        for name, own, cores in (("big", 8, 16), ("small", 4, 8))
    ]
    shared = "2 ranks with 5 threads each share 8 cores of small"
    for own, text in ((4, "Other programs use the 16 cores of big"), (5, shared)):
        hosts[1]["threads"] = own
        session = {"hosts": hosts, "threads": 8, "ranks": 4}
        (run / "sessions.json").write_text(json.dumps([session]))
        assert text in answered(run).ranks
