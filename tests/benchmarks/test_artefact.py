"""The artefact covers each published number, runs each command once, and names all differences."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import artefact
from benchmarks.bench_partition import DEFAULT_GRAPHS
from benchmarks.claims import PAPERS, ROOT, UNCLAIMED, Claim, claims


def rows() -> dict[str, str]:
    """The figures of docs/measured.md by the first cell of their rows."""
    text = (ROOT / "docs" / "measured.md").read_text("utf-8")
    cells = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")]
    return {what.strip(): figure for what, figure, _ in cells[1:]}


def test_each_row_and_exhibit_is_claimed_or_named() -> None:
    known = list(claims())
    starts = {claim.row for claim in known} | UNCLAIMED.keys()
    assert [what for what in rows() if not any(what.startswith(each) for each in starts)] == []
    exhibits = re.findall(r"<!-- (\w+-[\w-]+) -->", PAPERS.read_text("utf-8"))
    assert len(exhibits) > 30
    assert set(exhibits) <= starts
    for start in starts - set(exhibits):
        assert any(what.startswith(start) for what in rows()), start


def test_published_numbers_are_those_of_the_page() -> None:
    for claim in claims():
        for what, figure in rows().items():
            if what.startswith(claim.row) and claim.row not in UNCLAIMED:
                found = [float(each.rstrip(".")) for each in re.findall(r"[\d.]+", figure)]
                assert claim.published in found, claim.row


def test_partitions_are_of_all_graphs() -> None:
    (command,) = {each.command for each in claims() if "bench_partition" in each.command}
    graphs = ",".join(re.findall(r"--graphs (\S+)", command)).split(",")
    assert sorted(graphs) == sorted(DEFAULT_GRAPHS)


def claim(command: str, published: float = 2.0, **more: Any) -> Claim:
    return Claim(
        row="it", published=published, command=command, value=lambda cases: cases[0]["a"],
        tolerance=0.1, minutes=0.01, **more,
    )  # fmt: skip


def test_a_command_runs_once_and_is_judged(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    good = claim(f"echo x >>{runs}; echo '{{{{\"a\": 2.1}}}}'")
    for _ in range(2):
        outcome = artefact.judge(good, artefact.Outputs(tmp_path, 1))
        assert (outcome.here, outcome.verdict) == (2.1, "within")
    both = claim(f"{good.command}\necho '{{{{\"b\": 1}}}}'")
    assert artefact.Outputs(tmp_path, 1).of(both)["cases"] == [{"a": 2.1}, {"b": 1}]
    assert runs.read_text() == "x\n"
    assert "| it | 2 | 2.1 | 1.050 | 10% | within |" in outcome.line
    outputs = artefact.Outputs(tmp_path, 1)
    verdicts = {
        "**differs**": claim(good.command, 3.0),
        "status 3: outputs/": claim("exit 3"),
        "not run: needs no_such_module": claim("exit 3", needs=("no_such_module",)),
        "'a'": claim("echo '[{{}}]'"),
    }
    for verdict, each in verdicts.items():
        assert artefact.judge(each, outputs).verdict.startswith(verdict)
    late = artefact.judge(claim("true"), artefact.Outputs(tmp_path, 0))
    assert late.verdict.startswith("not run: 0.01 minutes, ")
    assert late.line.count("|") == len(artefact.COLUMNS) + 1


def test_the_table_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefact, "claims", lambda: [claim("echo '[{{\"a\": 9}}]'")])
    monkeypatch.setattr(sys, "argv", ["artefact", str(tmp_path)])
    with pytest.raises(SystemExit, match="1"):
        artefact.main()
    text = (tmp_path / "artefact.md").read_text()
    assert "**differs**" in text
    assert all(f"- not made: {row}" in text for row in UNCLAIMED)
