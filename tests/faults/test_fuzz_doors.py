"""Random damage to files that users write by hand: tables, graph.toml, splits, own modules.

Every case is refused in one line, or read like a separate reader reads it.
"""

import csv
import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.convert import ConvertOptions, convert
from hpcgnn.errors import InputError, one_line
from hpcgnn.split import from_files
from hpcgnn.storage import GraphStore
from hpcgnn.support import load_own
from hpcgnn.train import predict as predict_command
from tests.faults.test_fuzz import SIZES, generators
from tests.support import training
from tests.support.graph_files import contents

WORDS = (
    *(b"", b" ", b"0", b"-1", b"2", b"99999999999999999999", b"1e3", b"1.5", b"nan", b"inf"),
    *(b"u1", b'"', b"'", b"#", b"%", b",", b"\t", b"\n", b"\r\n", b"\x00", b"\xff", b"\xc3\x28"),
    *(b"\xef\xbb\xbf", b"src", b"train", b"[", b"]", b"{", b"}", b"=", b'"x"', b"\x1b[2J", b"0x10"),
    *(b"1_000", b"true", b"../x", b"/dev/null", b".", b"[" * 3000, b"u" * 5000),
)
NODES = b"id,label,a,b,split\nu3,cat,1,2.5,train\nu1,dog,3,4,valid\nu2,,5,6,none\nu4,cat,0,1,test\n"
EDGES = b"source\ttarget\tweight\nu1\tu2\t1\nu2\tu3\t0.5\nu3\tu1\t2\nu4\tu1\t1\n"
TOML = b"""name = "shop"
undirected = false
[nodes.user]
file = "nodes.csv"
id = "id"
label = "label"
split = "split"
features = ["a", "b"]
[edges."user,likes,user"]
files = ["edges.tsv"]
src = "source"
dst = "target"
weight = "weight"
[edges."user,buys,item"]
file = "buys.csv"
"""


def damaged(rng: np.random.Generator, content: bytes) -> bytes:
    """Return the content with bytes, words, fields or lines replaced, cut, swapped or repeated."""
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(len(content) + 1))
        word = WORDS[rng.integers(len(WORDS))]
        lines = content.split(b"\n")
        row = int(rng.integers(len(lines)))
        kind = rng.integers(6)
        if kind == 0:
            content = content[:place] + bytes([rng.integers(256)]) + content[place + 1 :]
        elif kind == 1:
            content = content[:place] + word + content[place:]
        elif kind == 2:
            separator = b"\t" if b"\t" in lines[row] else b","
            fields = lines[row].split(separator)
            fields[rng.integers(len(fields))] = word
            lines[row] = separator.join(fields)
            content = b"\n".join(lines)
        elif kind == 3:
            content = content[:place]
        elif kind == 4:
            content = b"\n".join([*lines[:row], lines[rng.integers(len(lines))], *lines[row:]])
        else:
            content = b"\n".join(lines[:row] + lines[row + 1 :])
    return content


def outcome(call: Callable[[], object]) -> bool:
    """Return whether the call succeeds; False if it is refused in one line."""
    try:
        call()
    except InputError as error:
        # Names of files may contain anything; commands print one line all the same.
        assert one_line(error).isprintable()  # noqa: PT017
        return False
    return True


@pytest.mark.parametrize("count", SIZES)
def test_tables(tmp_path: Path, count: int) -> None:
    """Tables of edges and nodes with any names, and folders of them."""
    out = tmp_path / "out.h5"
    for rng in generators(count):
        folder = tmp_path / "g"
        folder.mkdir(exist_ok=True)
        files = {"nodes.csv": NODES, "edges.tsv": EDGES, "buys.csv": b"u1,i1\nu2,i2\nu4,i1\n"}
        files["typed.csv"] = b"src,dst,relation\n7,9,likes\n9,7,knows\n3,7,likes\n"
        files["graph.toml"] = TOML
        name = list(files)[rng.integers(len(files))]
        files[name] = damaged(rng, files[name])
        for each, content in files.items():
            (folder / each).write_bytes(content)
        options = ConvertOptions(nodes=(str(folder / "nodes.csv"),))
        cases: list[tuple[Path, str, ConvertOptions]] = [(folder, "tables", ConvertOptions())]
        cases.append((folder / "edges.tsv", "edge-list", options))
        cases.append((folder / "typed.csv", "typed-edge-list", ConvertOptions(relabel=True)))
        for path, kind, each in cases:
            out.unlink(missing_ok=True)
            if outcome(partial(convert, path, out, format_name=kind, options=each)):
                contents(out)
            else:
                assert not out.exists()


def plain_edges(content: bytes) -> set[tuple[int, int]] | None:
    """Return the edges of a CSV of integers, None if it is not one."""
    try:
        rows = list(csv.reader(content.decode("utf-8-sig").splitlines()))
        pairs = [(int(row[0]), int(row[1])) for row in rows if row]
    except (ValueError, IndexError, csv.Error):
        return None
    return set(pairs)


@pytest.mark.parametrize("count", SIZES)
def test_edges_are_those_of_the_file(tmp_path: Path, count: int) -> None:
    source, out = tmp_path / "e.csv", tmp_path / "out.h5"
    rng = np.random.default_rng(3)
    whole = b"".join(b"%d,%d\n" % tuple(pair) for pair in rng.integers(0, 9, (12, 2)).tolist())
    for each in generators(4 * count):
        content = damaged(each, whole)
        source.write_bytes(content)
        options = ConvertOptions(num_nodes=99)
        if not outcome(partial(convert, source, out, format_name="edge-list", options=options)):
            continue
        expected = plain_edges(content)
        if expected is not None:
            found = {(int(s), int(d)) for d, s in np.argwhere(contents(out).matrix)}
            assert found == expected, content


@pytest.mark.parametrize("count", SIZES)
def test_parquet(tmp_path: Path, count: int) -> None:
    """Damaged bytes, and valid files of unusual types."""
    source, out = tmp_path / "e.parquet", tmp_path / "out.h5"
    edges = tmp_path / "e.csv"
    edges.write_text("0,1\n1,2\n2,0\n")
    columns = (
        *(pa.array([0, 1, 2]), pa.array([1, 2, None]), pa.array(["a", "b", "c"])),
        *(pa.array([1.5, 2, 3]), pa.array([True, False, True]), pa.array([[1], [2], [3, 4]])),
        *(
            pa.array([None, None, None]),
            pa.array([b"\xff", b"", b"x"]),
            pa.array([2**63, 1, 2], pa.uint64()),
        ),
        *(pa.array([{"a": 1}, {"a": 2}, None]), pa.array(["x", "y", "x"]).dictionary_encode()),
        *(pa.array([["a"], ["b"], ["c"]]), pa.array([[1], None, [3]]), pa.array([[1, None]] * 3)),
        *(pa.array([[[1]], [[2]], [[3]]]), pa.array([[1, 2]] * 3, pa.list_(pa.int8(), 2))),
        *(pa.array([0, 1, 2], pa.timestamp("s")), pa.array([], pa.int64()), pa.array([7, 8, 9])),
    )
    for rng in generators(count):
        picked = [columns[i] for i in rng.integers(len(columns), size=rng.integers(1, 4))]
        length = min(map(len, picked))
        nodes = rng.random() < 0.6
        known = ("id", "label", "train_mask", "x") if nodes else ("src", "dst", "weight", "x")
        names = [known[i] for i in rng.permutation(4)[: len(picked)]]
        table = pa.table([each.slice(0, length) for each in picked], names=names)
        pyarrow.parquet.write_table(table, source)
        if rng.random() < 0.4:
            content = bytearray(source.read_bytes())
            for _ in range(rng.integers(1, 6)):
                content[rng.integers(len(content))] = rng.integers(256)
            source.write_bytes(content)
        options = ConvertOptions(nodes=(str(source),) if nodes else ())
        path = edges if nodes else source
        outcome(partial(convert, path, out, format_name="edge-list", options=options))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doors")
    store = training.write_store(MPI.COMM_SELF, folder, training.make_graph(), parts=2)
    config = training.make_config(store, folder / "run", "train.epochs=1")
    training.train(MPI.COMM_SELF, config)
    return folder


@pytest.mark.parametrize("count", SIZES)
def test_files_of_splits(tmp_path: Path, run: Path, count: int) -> None:
    (path,) = run.glob("*2.h5")
    files = [tmp_path / f"{name}.txt" for name in ("train", "valid", "test")]
    with GraphStore.open(path) as store:
        ids = store.read_original_id(0, store.num_nodes)
        for rng in generators(4 * count):
            for number, file in enumerate(files):
                file.write_bytes(damaged(rng, b"%d\n%d\n" % (ids[2 * number], ids[2 * number + 1])))
            text = "s=" + ",".join(map(str, files))
            outcome(partial(from_files, store, text, ids))


def is_class(value: object) -> bool:
    return isinstance(value, type)


@pytest.mark.parametrize("count", SIZES)
def test_own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Modules that do not parse, do not load, or contain something else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    whole = b"from hpcgnn.nn.models import GCN\n\nclass Mine(GCN):\n    own_options = {'a': 1}\n"
    names = ("fuzzed:Mine", "fuzzed:", ":Mine", "fuzzed.x:Mine", "..fuzzed:Mine", "fuzzed:GCN:x")
    for rng in generators(count):
        (tmp_path / "fuzzed.py").write_bytes(damaged(rng, whole))
        importlib.invalidate_caches()
        sys.modules.pop("fuzzed", None)
        name = names[rng.integers(len(names))] if rng.random() < 0.5 else names[0]
        outcome(partial(load_own, "model.name", name, is_class, "class"))


@pytest.mark.parametrize("count", SIZES)
def test_asked_nodes_and_endings(tmp_path: Path, count: int) -> None:
    """Requests on the command line of ``predict``."""
    file = tmp_path / "ids"
    for rng in generators(4 * count):
        file.write_bytes(damaged(rng, b"1\n2\n3\n"))
        words = [damaged(rng, b"1,2,3").decode("utf-8", "replace").replace("\0", ""), str(file)]
        for word in words:
            outcome(partial(predict_command.read_ids, word))
        ending = damaged(rng, b".csv").decode("utf-8", "replace").replace("\0", "")
        options = find_command("predict").parser().parse_args(["run", f"-oout{ending}"])
        outcome(partial(predict_command.format_of, options))
