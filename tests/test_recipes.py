"""The commands of the README and of the recipes, run as printed on small files."""

import csv
import json
import random
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from hpcgnn.convert.__main__ import main
from hpcgnn.storage import GraphStore
from tests.convert.formats.test_collections import geom_gcn

ROOT = Path(__file__).parents[1]
TYPES = "## Two node types"


def commands(page: str, after: str = "") -> list[list[str]]:
    """The commands in the code blocks of a page, of the first block below a heading if given."""
    text = (ROOT / page).read_text()
    blocks = text[text.index(after) :].split("```")[1::2]
    plain = [block for block in blocks if block.startswith("\n")]
    lines = "".join(plain[:1] if after else plain).splitlines()
    return [shlex.split(line) for line in lines if line]


def run(command: list[str]) -> None:
    """Run a command as it stands there; what converts starts too often for processes of its own."""
    assert command[:2] == ["python", "-m"]
    if command[2] == "hpcgnn.convert":
        main(command[3:])
        return
    done = subprocess.run(
        [sys.executable, *command[1:]], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def read_answers(path: str) -> dict[str, str]:
    """The class of each node by its name; every node stands there once."""
    with Path(path).open() as file:
        rows = list(csv.DictReader(file))
    answers = {row["name"]: row["class"] for row in rows}
    assert len(answers) == len(rows)
    return answers


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the recipes name; classes go with age."""
    monkeypatch.chdir(tmp_path)
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
    shop = tmp_path / "shop"
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
    return tmp_path


@pytest.mark.usefixtures("tables")
def test_the_readme_goes_from_tables_to_named_predictions() -> None:
    lines = commands("README.md", "## Your own tables")
    assert len(lines) == 4
    for command in lines:
        run(command)
    answers = read_answers("answers.csv")
    assert sorted(answers) == sorted(f"user {i}" for i in range(240))
    right = [answers[f"user {i}"] == ("artist", "baker", "coder")[i % 3] for i in range(240)]
    assert sum(right) > 120


@pytest.mark.usefixtures("tables")
def test_types_and_relations_go_from_tables_to_named_predictions() -> None:
    lines = commands("docs/recipes.md", TYPES)
    assert len(lines) == 4
    for command in lines:
        run(command)
    with GraphStore.open("shop.h5") as store:
        assert [each.name for each in store.node_types] == ["user", "item"]
        assert store.relations == ("buys", "likes", "knows")
    answers = read_answers("shop.csv")
    assert sorted(answers) == sorted([f"u{i}" for i in range(20)] + [f"i{i}" for i in range(9)])


@pytest.mark.usefixtures("tables")
def test_recipes_run_as_printed() -> None:
    found = []
    types = commands("docs/recipes.md", TYPES)
    for command in [each for each in commands("docs/recipes.md") if each not in types]:
        run(command)
        if command[2] != "hpcgnn.convert":
            continue
        with GraphStore.open(command[-1]) as store:
            found.append(store.fingerprint)
            assert store.has_names or store.name == "film"
    assert len(found) == 8
    assert found[0] == found[1]
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
