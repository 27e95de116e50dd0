"""Every block of commands and of Python in README.md and docs/, run as printed on small files.

A block marked ``bash`` or ``python`` runs, one marked ``text`` or ``toml`` does not. Those of a
page run in their order, in one folder, after what `FILES` makes: the files that the page speaks of.
"""

import csv
import importlib.util
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from hpcgnn.commands.convert import COMMAND
from hpcgnn.partition import metis, read_pattern
from hpcgnn.storage import GraphArrays, GraphStore, store_from_arrays
from tests.convert.formats.test_collections import geom_gcn
from tests.support.partitioned import write_partitioned
from tests.support.processes import run_group

ROOT = Path(__file__).parents[1]

NOT_HERE = {
    "README.md: Two commands": "tests/wheel.sh runs the quickstart; the other one runs this test",
    "docs/contributing.md": "how the tests are run",
    "docs/slurm.md": "tests/slurm/test_page.py",
    "docs/gpu.md": "the test that needs a card",
}

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_INDENTED = re.compile(r"\n\n    (python|hpcgnn|mpiexec|mpi_run|bash|sbatch|srun|pip) ")
_CONVERTS = re.compile(r"python -m hpcgnn\.convert [^$\\#]*")
_OTHER_LIBRARIES = {
    "from_torch_geometric(data": "torch_geometric",
    "pyg": "torch_geometric",
    "from_dgl(graph": "dgl",
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    heading: str
    language: str
    text: str

    @property
    def elsewhere(self) -> bool:
        """Whether something else than this file runs it."""
        return not {self.page, f"{self.page}: {self.heading}"}.isdisjoint(NOT_HERE)

    @property
    def library(self) -> str | None:
        """The library that it needs, of those that tests can do without."""
        return next((of for word, of in _OTHER_LIBRARIES.items() if word in self.text), None)


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page that run, in order."""
    text = (ROOT / page).read_text()
    found = []
    for match in _FENCED.finditer(text):
        heading = _HEADING.findall(_FENCED.sub("", text[: match.start()]))[-1]
        found.append(Block(page, heading, match[1], match[2]))
    return [each for each in found if each.language in {"bash", "python"}]


PAGES = ["README.md", *sorted(f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md"))]


def run(block: Block, timeout_s: float = 600) -> None:
    """Run a block in this folder: its Python in one process, its commands in one shell.

    What converts at its head starts too often for processes of its own.
    """
    lines = block.text.splitlines()
    while lines and _CONVERTS.fullmatch(lines[0]):
        COMMAND.call(shlex.split(lines.pop(0))[3:])
    if not lines:
        return
    if block.language == "python":
        command = [sys.executable, "-c", PREAMBLES.get(block.page, "") + block.text]
    else:
        command = ["bash", "-c", "\n".join([SHELL, *lines])]
    path = f"{sys.prefix}/bin:{os.environ['PATH']}"
    done = run_group(command, timeout_s, HPCGNN_SITE="no-site.env", PATH=path)
    assert done.returncode == 0, f"{block.page}: {block.text}\n{done.stdout}\n{done.stderr}"


# Launchers differ from site to site; jobs/env.sh knows the one of this environment.
SHELL = f"""set -euo pipefail
. "{ROOT}/jobs/env.sh"
mpiexec() {{
    [[ $1 == -n ]] && mpi_run "${{@:2}}"
}}
"""

PREAMBLES = {
    "docs/export.md": """
import sys
import torch
sys.path.insert(0, "exported")
x, edge_index = torch.rand(9, 16), torch.randint(9, (2, 40))
""",
    "docs/formats.md": """
from scipy import sparse
import numpy as np
from hpcgnn.convert import ConvertOptions, from_dgl, from_scipy, from_torch_geometric
matrix = sparse.random(30, 30, 0.2, format="csr", random_state=1)
X, y, split = np.ones((30, 2), np.float32), np.arange(30) % 3, np.arange(30) % 3 + 1
def other_libraries():
    global data, graph
    try:
        from torch_geometric.datasets import FakeDataset
        data = FakeDataset(num_graphs=1, task="node")[0]
    except ImportError:
        pass
    try:
        import dgl, torch
        graph = dgl.graph((torch.arange(9), torch.arange(9).roll(1)))
        graph.edata["w"] = torch.ones(9)
    except ImportError:
        pass
other_libraries()
""",
    "docs/models.md": """
import numpy as np
import torch
from hpcgnn.storage import GraphStore
import hpcgnn
graph = hpcgnn.open_graph(None, "types.4.h5", model={"name": "sage"}).__enter__()
graph_view, rows = graph.view, graph.features
items, users, tags, types = *rows.parts, rows.types
""",
    "docs/partitioner.md": """
from scipy import sparse
from hpcgnn.partition import read_pattern
from hpcgnn.storage import GraphStore
matrix = sparse.random(500, 500, 0.02, format="csr", random_state=1)
graph = read_pattern(GraphStore.open("mine.h5"))
""",
    "docs/trace.md": """
import types
run_directory, rank, size = "run", 0, 1
start_sending = lambda: types.SimpleNamespace(wait=lambda: None)
multiply_interior_rows = lambda: None
import os; os.makedirs("run/trace")
""",
}


def call(words: str) -> None:
    subprocess.run([sys.executable, "-m", "hpcgnn", *words.split()], check=True)


def planted() -> None:
    """A graph of 600 nodes in files of several names, and targets for its nodes."""
    draw = np.random.default_rng(5)
    labels = draw.integers(0, 4, 600)
    near = draw.integers(0, 600, (2, 6000))
    edges = near[:, (labels[near[0]] == labels[near[1]]) | (draw.random(6000) < 0.2)]
    features = draw.normal(size=(600, 16)).astype(np.float32)
    features[np.arange(600), labels] += 1
    split = (np.arange(600) % 3 + 1).astype(np.uint8)
    store_from_arrays(
        "mine.h5",
        GraphArrays(
            name="mine",
            num_nodes=600,
            edges={"": tuple(edges)},
            features=features,
            labels=labels,
            split=split,
        ),
    )
    with GraphStore.open("mine.h5") as store:
        parts = metis(seed=1)(read_pattern(store), 4)
        out = Path("mine.4.h5")
        write_partitioned(store, out, parts, method="metis", seed=1, metrics={}, provenance={})
    lines = [f"{node},{features[node].sum():.3f}\n" for node in range(600)]
    Path("prices.csv").write_text("node,price\n" + "".join(lines))
    np.save("start.npy", draw.integers(0, 64, 600).astype(np.int32))


def for_a_tour() -> None:
    import gzip

    with gzip.open("graph.tsv.gz", "wt") as file:
        file.writelines(f"{a}\t{a * a % 50}\n" for a in range(50))


def for_sampling() -> None:
    Path("data").mkdir()
    call("generate debian-packages -o data/debian.h5")
    call("partition data/debian.h5 --parts 4 --method metis -o data/debian.4.h5")


def for_planning() -> None:
    planted()
    Path("data").mkdir()
    call("partition mine.h5 --parts 64 --method block -o data/mine.64.h5")
    Path("my.toml").write_text('[model]\nname = "gcn"\n')


def for_links() -> None:
    Path("pairs.csv").write_text("source,target\n1,5\n70,2\n")
    Path("packages.txt").write_text("3\n9\n")


def for_an_export() -> None:
    planted()
    call("train graph.store=mine.h5 run.dir=runs/one train.epochs=2 model.name=sage")


def for_a_model() -> None:
    planted()
    [text] = [each.text for each in blocks_of("docs/library.md") if "own_model.py" in each.text]
    Path("own_model.py").write_text(text)


def for_models() -> None:
    planted()
    call("generate planted-types --nodes 600 --features 8 --classes 16 --seed 5 -o types.h5")
    call("partition types.h5 --parts 4 --method metis -o types.4.h5")


def for_formats() -> None:
    people()
    lines = Path("links.tsv").read_text().replace("\t", ",").splitlines(keepends=True)
    for number in range(3):
        Path(f"part-{number}.csv").write_text("".join(lines[number::3]))
    pyarrow.parquet.write_table(pyarrow.csv.read_csv("people.csv"), "people.parquet")


FILES: Mapping[str, Callable[[], None]] = {
    "docs/exchanges.md": planted,
    "docs/export.md": for_an_export,
    "docs/formats.md": for_formats,
    "docs/library.md": for_a_model,
    "docs/links.md": for_links,
    "docs/models.md": for_models,
    "docs/partitioner.md": planted,
    "docs/planning.md": for_planning,
    "docs/programs.md": lambda: None,
    "docs/sampling.md": for_sampling,
    "docs/tour.md": for_a_tour,
    "docs/trace.md": lambda: None,
}
QUICK = ("docs/trace.md", "docs/exchanges.md")
WITH_CHECKS = ("README.md", "docs/recipes.md", "docs/graphs.md")


@pytest.mark.parametrize("page", PAGES)
def test_blocks_say_what_they_are_and_run_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    languages = {match[1] for match in _FENCED.finditer(text)}
    assert languages <= {"bash", "python", "toml", "text"}
    assert text.count("\n```") == 2 * len(_FENCED.findall(text))
    assert _INDENTED.search(text) is None, "commands stand in fenced blocks"
    if not all(block.elsewhere for block in blocks_of(page)):
        assert page in FILES or page in WITH_CHECKS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with what `hpcgnn init --jobs` writes, in which the test runs."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs", ignore=shutil.ignore_patterns("site.env"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, marks=() if page in QUICK else (pytest.mark.slow, pytest.mark.timeout(1200))
        )
        for page in FILES
    ],
)
def test_blocks_run_as_printed(page: str) -> None:
    FILES[page]()
    blocks = [block for block in blocks_of(page) if block.library is None]
    assert blocks
    for block in blocks:
        run(block)


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
    planted()
    for block in blocks_of("docs/gpu.md"):
        run(block)


def read_answers(path: str) -> dict[str, str]:
    """The class of each node by its name; every node stands there once."""
    rows = read_table(path)
    answers = {row["name"]: row["class"] for row in rows}
    assert len(answers) == len(rows)
    return answers


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that the recipes name; classes go with age."""
    monkeypatch.chdir(tmp_path)
    write_tables()


def write_tables() -> None:
    draw = random.Random(7)
    pairs = [(a, (a + draw.choice([3, 6, 9])) % 240) for a in range(240) for _ in range(3)]
    Path("links.tsv").write_text("".join(f"user {a}\tuser {b}\n" for a, b in pairs))
    kinds = ("artist", "baker", "coder")
    rows = [f"user {i},{kinds[i % 3]},{20 + i % 3 * 10 + draw.random()},{i}\n" for i in range(240)]
    Path("people.csv").write_text("id,label,age,visits\n" + "".join(rows))
    for name, first in (("train", 0), ("valid", 100), ("test", 170)):
        Path(f"{name}.ids").write_text("".join(f"user {i}\n" for i in range(first, first + 70)))
        triples = [f"/m/{first + i}\tis part of/has\t/m/{i % 7}\n" for i in range(60)]
        Path("FB15k").mkdir(exist_ok=True)
        Path(f"FB15k/{name}.txt").write_text("".join(triples) + f"/m/1\thas\t/m/{first}\n")
    paid = [f"user {a},user {b},{a}.5,{b}\n" for a, b in pairs]
    Path("paid.csv").write_text("from,to,amount,day\n" + "".join(paid))
    geom_gcn(Path("film"))
    people = pyarrow.csv.read_csv("people.csv")
    pyarrow.parquet.write_table(people, "people.parquet")
    named = pyarrow.csv.ReadOptions(column_names=["src", "dst"])
    tabs = pyarrow.csv.ParseOptions(delimiter="\t")
    pyarrow.parquet.write_table(pyarrow.csv.read_csv("links.tsv", named, tabs), "links.parquet")
    shop = Path("shop")
    shop.mkdir()
    page = (ROOT / "docs/recipes.md").read_text()
    (shop / "graph.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    users = [f"u{i},x{i % 2},{i}\n" for i in range(20)]
    (shop / "users.csv").write_text("id,label,age\n" + "".join(users))
    (shop / "items.csv").write_text("id,price\n" + "".join(f"i{i},{i}.5\n" for i in range(9)))
    for name in ("buys", "likes", "knows"):
        target = "u" if name == "knows" else "i"
        edges = [f"u{draw.randrange(20)},{target}{draw.randrange(9)}\n" for _ in range(40)]
        (shop / f"{name}.csv").write_text("src,dst\n" + "".join(edges))


def people() -> None:
    write_tables()
    COMMAND.call(["links.tsv", "--nodes", "people.csv", "-o", "people.h5"])


@pytest.mark.usefixtures("tables")
def test_the_readme_goes_from_tables_to_named_predictions() -> None:
    [block] = [each for each in blocks_of("README.md") if not each.elsewhere]
    run(block)
    answers = read_answers("answers.csv")
    assert sorted(answers) == sorted(f"user {i}" for i in range(240))
    right = [answers[f"user {i}"] == ("artist", "baker", "coder")[i % 3] for i in range(240)]
    assert sum(right) > 120


@pytest.mark.usefixtures("tables")
def test_recipes_run_as_printed() -> None:
    found = {}
    for block in [each for each in blocks_of("docs/recipes.md") if each.library is None]:
        run(block)
        with GraphStore.open(block.text.splitlines()[0].split()[-1]) as store:
            found[block.heading] = store.fingerprint
            assert store.has_names or store.name == "film"
    assert found["A list of edges and a table of nodes"] == found["The same from Parquet"]
    with GraphStore.open("shop.h5") as store:
        assert [each.name for each in store.node_types] == ["user", "item"]
        assert store.relations == ("buys", "likes", "knows")
    answers = read_answers("shop.csv")
    assert sorted(answers) == sorted([f"u{i}" for i in range(20)] + [f"i{i}" for i in range(9)])
    with GraphStore.open("triples.h5") as store:
        assert store.relations == ("has", "is part of/has")
        assert all(store.has_edge_split(each) for each in store.relations)
        assert store.find_names(["/m/170"]) >= 0
    with GraphStore.open("paid.h5") as store:
        assert store.edge_features() == (2, np.dtype(np.float32))
    film = json.loads(Path("runs/film/summary.json").read_text())
    assert [each["name"] for each in film["splits"]] == list("0123456789")
    summary = json.loads(Path("runs/triples/summary.json").read_text())
    assert summary["links"]["test"] == 61


@pytest.mark.usefixtures("folder")
def test_whole_graphs_run_as_printed() -> None:
    [block] = blocks_of("docs/graphs.md")
    run(block)
    planted = {row["graph"]: float(row["target"]) for row in read_table("numbers.csv")}
    told = {row["graph_id"]: float(row["target"]) for row in read_table("told.csv")}
    assert planted.keys() == told.keys()
    wrong = sum((planted[graph] - told[graph]) ** 2 for graph in planted) / len(planted)
    assert wrong < 0.2
    assert {row["class"] for row in read_table("kinds.csv")} == {"kind0", "kind1", "kind2"}


def read_table(name: str) -> list[dict[str, str]]:
    with Path(name).open() as file:
        return list(csv.DictReader(file))
