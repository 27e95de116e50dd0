"""The commands of docs/graphs.md run as printed."""

import csv
from pathlib import Path

import pytest

from tests.test_recipes import commands, run


def test_the_tutorial_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = commands("docs/graphs.md")
    assert len(lines) == 6
    monkeypatch.chdir(tmp_path)
    for line in lines:
        run(line)
    planted = {row["graph"]: float(row["target"]) for row in read("numbers.csv")}
    told = {row["graph_id"]: float(row["target"]) for row in read("told.csv")}
    assert planted.keys() == told.keys()
    wrong = sum((planted[graph] - told[graph]) ** 2 for graph in planted) / len(planted)
    assert wrong < 0.2
    assert {row["class"] for row in read("kinds.csv")} == {"kind0", "kind1", "kind2"}


def read(name: str) -> list[dict[str, str]]:
    with Path(name).open() as file:
        return list(csv.DictReader(file))
