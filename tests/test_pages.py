"""Every block of commands and of Python in README.md and docs/ runs as printed in an empty folder.

Readers come from README: they stand where `jobs` is, after `. jobs/env.sh && use_environment`.

A block marked ``bash`` or ``python`` runs, one marked ``text`` or ``toml`` does not. Those of a
page run in their order, after no others: a page makes the files that it uses. A Python block that
begins with ``# NAME.py`` becomes that file. A ``text`` block right behind one that runs shows what
it prints: the words of each line stand in this order in a line of the output, numbers aside.
"""

import csv
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.config.file import describe_keys
from hpcgnn.convert.formats.registry import FORMATS
from hpcgnn.kernels.cuda import GpuUnavailableError, require_gpu
from hpcgnn.nn.models.registry import MODELS
from hpcgnn.storage import GraphStore
from tests.support.processes import run_group

ROOT = Path(__file__).parents[1]

NOT_HERE = {
    "README.md: Install": "tests/wheel.sh runs the quickstart",
    "docs/contributing.md": "how the tests are run",
    "docs/slurm.md": "tests/slurm/test_page.py",
    "docs/gpu.md": "the test that needs a card",
}

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_INDENTED = re.compile(r"\n\n    (python|hpcgnn|mpiexec|mpi_run|bash|sbatch|srun|pip) ")
_FILE = re.compile(r"# (\w+\.py)\n")
_NUMBER = re.compile(r"\d[\d.,e+-]*")
_OTHER_LIBRARIES = {
    "torch_geometric": "torch_geometric",
    "from_torch_geometric(": "torch_geometric",
    "pyg.h5": "torch_geometric",
    "import dgl": "dgl",
}
_INSTALLS = re.compile(r"pip install ([\w=. -]+)\n")
_RUN_DIRECTORY = re.compile(r"\brun\.dir=(\S+)")
_MARKS = {"bash", "python", "toml", "text"}
_ENDINGS = {"csv", "md", "py", "safetensors", "sbatch", "tsv", "toml", "txt"}
SPANS = {"exchange.forward", "exchange.pairs"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the lines that the page shows as its output."""

    page: str
    heading: str
    language: str
    text: str
    shown: tuple[str, ...]

    @property
    def elsewhere(self) -> bool:
        """Whether another program than this file runs it."""
        return not {self.page, f"{self.page}: {self.heading}"}.isdisjoint(NOT_HERE)

    @property
    def installs(self) -> list[str]:
        """Packages that readers install for it, without versions; tests install nothing."""
        found = _INSTALLS.fullmatch(self.text)
        return [] if found is None else [name.partition("==")[0] for name in found[1].split()]

    @property
    def library(self) -> str | None:
        """The library that it needs, if tests can do without it."""
        return next((of for word, of in _OTHER_LIBRARIES.items() if word in self.text), None)


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page that run, in order."""
    text = (ROOT / page).read_text()
    matches = list(_FENCED.finditer(text))
    found = []
    for number, match in enumerate(matches):
        heading = _HEADING.findall(_FENCED.sub("", text[: match.start()]))[-1]
        shown: tuple[str, ...] = ()
        for after in matches[number + 1 : number + 2]:
            if after[1] == "text" and not text[match.end() : after.start()].strip():
                shown = tuple(after[2].splitlines())
        if match[1] in {"bash", "python"}:
            found.append(Block(page, heading, match[1], match[2], shown))
    return found


PAGES = ["README.md", *sorted(f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md"))]


def run(block: Block, timeout_s: float = 900) -> None:
    """Run a block in this folder: its Python in one process, its commands in one shell."""
    file = _FILE.match(block.text)
    if block.language == "python" and file is not None:
        Path(file[1]).write_text(block.text)
        return
    if block.installs:
        return
    command = [sys.executable, "-c", block.text]
    if block.language == "bash":
        command = ["bash", "-c", SHELL + block.text]
    path = f"{sys.prefix}/bin:{os.environ['PATH']}"
    done = run_group(command, timeout_s, HPCGNN_SITE="no-site.env", PATH=path, COLUMNS="80")
    assert done.returncode == 0, f"{block.page}: {block.text}\n{done.stdout}\n{done.stderr}"
    printed = [words_of(line) for line in f"{done.stdout}\n{done.stderr}".splitlines()]
    for line in block.shown:
        assert any(stand_in(words_of(line), each) for each in printed), (
            f"{block.page} shows {line!r}, but {block.text}printed\n{done.stdout}\n{done.stderr}"
        )


def words_of(line: str) -> list[str]:
    return _NUMBER.sub("0", line).split()


def stand_in(words: list[str], printed: list[str]) -> bool:
    """Whether words stand in a printed line, in their order."""
    rest = iter(printed)
    return all(word in rest for word in words)


# The first steps of readers. The folder is not a checkout, so nothing is installed.
SHELL = """set -euo pipefail
. jobs/env.sh && use_environment
"""


def after_the_readme() -> None:
    answers = read_answers("answers.csv")
    told = {row["id"]: row["label"] for row in read_table("tables/people.csv")}
    assert answers.keys() == told.keys()
    known = [name for name, job in told.items() if job]
    assert sum(answers[name] == told[name] for name in known) > 0.9 * len(known)


def after_the_recipes() -> None:
    with GraphStore.open("people.h5") as store, GraphStore.open("people-too.h5") as other:
        assert store.has_names
        assert store.fingerprint == other.fingerprint
    with GraphStore.open("shop.h5") as store:
        assert [each.name for each in store.node_types] == ["user", "item"]
        assert store.relations == ("buys", "likes", "knows")
    assert len(read_answers("shop.csv")) == 360
    with GraphStore.open("places.h5") as store:
        assert store.relations == ("borders", "lies in")
        assert all(store.has_edge_split(each) for each in store.relations)
        assert store.find_names(["village 170"]) >= 0
    with GraphStore.open("paid.h5") as store:
        assert store.edge_features() == (2, np.dtype(np.float32))
    film = json.loads(Path("runs/film/summary.json").read_text())
    assert [each["name"] for each in film["splits"]] == list("0123456789")
    summary = json.loads(Path("runs/places/summary.json").read_text())
    tested = Path("tables/places/test.txt").read_text().splitlines()
    assert summary["links"]["test"] == len(set(tested))


def after_whole_graphs() -> None:
    planted = {row["graph"]: float(row["target"]) for row in read_table("numbers.csv")}
    told = {row["graph_id"]: float(row["target"]) for row in read_table("predicted.csv")}
    assert planted.keys() == told.keys()
    wrong = sum((planted[graph] - told[graph]) ** 2 for graph in planted) / len(planted)
    assert wrong < 0.2
    assert {row["class"] for row in read_table("kinds.csv")} == {"kind0", "kind1", "kind2"}


CHECKS: Mapping[str, Callable[[], None]] = {
    "README.md": after_the_readme,
    "docs/recipes.md": after_the_recipes,
    "docs/graphs.md": after_whole_graphs,
}
QUICK = ("docs/trace_file.md", "docs/exchanges.md")


def read_answers(path: str) -> dict[str, str]:
    """The class of each node by its name; the file has every node once."""
    rows = read_table(path)
    answers = {row["name"]: row["class"] for row in rows}
    assert len(answers) == len(rows)
    return answers


def read_table(name: str) -> list[dict[str, str]]:
    with Path(name).open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("page", PAGES)
def test_blocks_say_what_they_are(page: str) -> None:
    text = (ROOT / page).read_text()
    assert {match[1] for match in _FENCED.finditer(text)} <= _MARKS
    assert text.count("\n```") == 2 * len(_FENCED.findall(text))
    assert _INDENTED.search(text) is None, "commands stand in fenced blocks"
    assert "python -m hpcgnn" not in text, "commands are spelled `hpcgnn X`"


def test_pages_do_not_share_runs() -> None:
    """Readers follow page after page in one folder; a run with another store would be refused."""
    pages = [{*_RUN_DIRECTORY.findall(block.text)} for page in PAGES for block in blocks_of(page)]
    runs = [name for of_block in pages for name in of_block]
    assert len(runs) > 20
    assert sorted(runs) == sorted(set(runs))


def test_libraries_are_installed_before_they_are_used() -> None:
    packages = {"torch_geometric": "torch-geometric", "dgl": "dgl"}
    for page in PAGES:
        installed: set[str] = set()
        for block in blocks_of(page):
            installed |= set(block.installs)
            if block.library is not None:
                assert packages[block.library] in installed, block.text


def test_tables_name_all_formats_and_models() -> None:
    formats = (ROOT / "docs/formats.md").read_text().partition("## For every format")[0]
    assert set(re.findall(r"^\| `([a-z][a-z-]+)` \|", formats, re.MULTILINE)) == set(FORMATS)
    models = (ROOT / "docs/models.md").read_text().partition("## Options")[0]
    assert {name for name in MODELS if f"`{name}`" not in models} == set()


def test_pages_name_keys_that_exist() -> None:
    keys = {key for key, _, _ in describe_keys()}
    sections = {key.partition(".")[0] for key in keys}
    named = {
        key
        for page in PAGES
        for key in re.findall(r"`([a-z_]+\.[a-z_]+)(?: ?=[^`]*)?`", (ROOT / page).read_text())
        if key.partition(".")[0] in sections and key.rpartition(".")[2] not in _ENDINGS
    }
    assert len(named) > 50
    assert named - keys - SPANS == set()


def test_shown_lines_are_compared() -> None:
    printed = words_of("sage  1 of 30 epochs  loss 0.61  train 0.3  valid 0.2")
    assert stand_in(words_of("1 of 3 epochs loss 9.5 valid 1"), printed)
    assert not stand_in(words_of("1 of 3 epochs valid 1 loss 9.5"), printed)
    assert not stand_in(words_of("accuracy 0.3"), printed)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the files of `hpcgnn init --jobs`, in which the test runs."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs", ignore=shutil.ignore_patterns("site.env"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, marks=() if page in QUICK else (pytest.mark.slow, pytest.mark.timeout(1800))
        )
        for page in PAGES
        if any(not block.elsewhere for block in blocks_of(page))
    ],
)
def test_blocks_run_as_printed(page: str) -> None:
    for block in blocks_of(page):
        if block.library is None and not block.elsewhere:
            run(block)
    if page in CHECKS:
        CHECKS[page]()


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("library", sorted(set(_OTHER_LIBRARIES.values())))
def test_blocks_for_other_libraries(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"no {library} here")
    for block in [each for page in PAGES for each in blocks_of(page) if each.library == library]:
        run(block)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_blocks_for_a_card() -> None:
    try:
        require_gpu()
    except GpuUnavailableError as error:
        pytest.skip(str(error))
    for block in blocks_of("docs/gpu.md"):
        run(block)
