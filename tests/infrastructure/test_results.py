"""Figures that docs/measured.md quotes are those of the results; results name their origin."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
NUMBER = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?")
LINK = re.compile(r"\(\.\./(benchmarks/results/[^)]+\.md)\)")
QUOTED = re.compile(r"^Quoted: (.+)$", re.MULTILINE)
MONTHS = "January February March April May June July August September October November December"


def table() -> list[tuple[str, Path]]:
    """Return the figures of the table, each with its source."""
    text = (ROOT / "docs" / "measured.md").read_text("utf-8")
    rows = [
        line.split("|")[1:-1]
        for line in text.splitlines()
        if line.startswith("|") and LINK.search(line)
    ]
    return [(figure.strip(), ROOT / LINK.findall(link)[0]) for _, figure, link in rows]


def lacking(figure: str, text: str) -> list[str]:
    """Return quoted figures that are not in a file, and numbers without any measurement."""
    missing = [] if figure in QUOTED.findall(text) else [figure]
    measured = [value(each) for each in NUMBER.findall(QUOTED.sub("", text))]
    return missing + [
        number
        for number in NUMBER.findall(figure)
        if all(abs(value(number) - each) > rounding(number) for each in measured)
    ]


def value(number: str) -> float:
    return float(number.replace(",", ""))


def rounding(number: str) -> float:
    """Return how far a number may be from the one that was rounded to it."""
    return 0.500001 * 10.0 ** -len(number.partition(".")[2])


def test_there_is_a_table() -> None:
    assert len(table()) >= 8
    assert sum(len(NUMBER.findall(figure)) for figure, _ in table()) > 20


@pytest.mark.parametrize(("figure", "source"), table(), ids=lambda each: str(each)[-30:])
def test_figures_are_those_of_the_results(figure: str, source: Path) -> None:
    text = source.read_text("utf-8")
    assert lacking(figure, text) == []
    # This tests the check itself: it accepts no other number.
    for number in NUMBER.findall(figure):
        assert lacking(figure.replace(number, "98765.4321", 1), text) != []


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_name_commit_command_and_date(path: Path) -> None:
    text = path.read_text("utf-8")
    assert re.search(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b", text), "no commit"
    command = r"python -m |bash benchmarks/|hpcgnn (plan|analyse|generate) "
    assert re.search(command, text), "no command"
    assert re.search(rf"20\d\d-\d\d-\d\d|({'|'.join(MONTHS.split())}) 20\d\d", text), "no date"
