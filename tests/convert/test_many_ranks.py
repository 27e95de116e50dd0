"""Many ranks convert graphs: the store is the same as that of one process."""

import errno
import gzip
import json
import os
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from mpi4py import MPI

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse as sp

from hpcgnn.commands.command import find_command
from hpcgnn.convert import divide_input, send_edges
from hpcgnn.convert.resume import SavedConversion
from hpcgnn.errors import CollectiveInputError, InputError
from hpcgnn.storage import format as file_format
from tests.support.graph_files import Little

COMMAND = find_command("convert")

NODES = 90


def edges(seed: int, count: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Skewed rows with duplicates and loops, and distinct weights."""
    rng = np.random.default_rng(seed)
    src = rng.integers(0, NODES, count)
    dst = np.minimum(rng.geometric(0.05, count), NODES - 1)
    return src, np.where(rng.random(count) < 0.1, src, dst), rng.integers(-1, 3, count) / 2


def table(path: Path, columns: list[object], header: str = "", end: str = "\n") -> Path:
    """Write columns as comma-separated lines."""
    lines = [header] * bool(header) + [
        ",".join(map(str, row)) for row in zip(*columns, strict=True)
    ]
    path.write_bytes(end.join(lines).encode() + end.encode())
    return path


def one_csv(folder: Path) -> list[str]:
    return [str(table(folder / "e.csv", list(edges(1)), "src,dst,weight"))]


def crlf(folder: Path) -> list[str]:
    return [str(table(folder / "e.csv", list(edges(1)[:2]), end="\r\n"))]


def no_last_newline(folder: Path) -> list[str]:
    path = table(folder / "e.csv", list(edges(2)))
    path.write_bytes(b"# a comment\n\n" + path.read_bytes().rstrip())
    return [str(path)]


def many_files(folder: Path) -> list[str]:
    names = []
    for number in range(5):
        path = table(
            folder / f"e{number}.csv", list(edges(number, 10 + 70 * number)), "src,dst,weight"
        )
        if number % 2:
            packed = folder / f"e{number}.csv.gz"
            packed.write_bytes(gzip.compress(path.read_bytes()))
            path = packed
        names.append(str(path))
    return names


def two_lines(folder: Path) -> list[str]:
    (folder / "e.tsv").write_text("0\t1\n5\t2\n")
    return [str(folder / "e.tsv")]


def parquet(folder: Path) -> list[str]:
    names = []
    for number, rows in enumerate((7, 120, 400)):
        src, dst, weights = edges(number, 400)
        path = folder / f"e{number}.parquet"
        pq.write_table(
            pa.table({"src": src, "dst": dst, "weight": weights}), path, row_group_size=rows
        )
        names.append(str(path))
    return names


def typed(folder: Path) -> list[str]:
    src, dst, weights = edges(4)
    relations = np.array(["likes", "knows", "über"])[np.arange(300) * 7 % 3]
    return [str(table(folder / "t.csv", [src, dst, relations, weights], "src,dst,relation,weight"))]


def triples(folder: Path) -> list[str]:
    for seed, part in enumerate(("train", "valid", "test")):
        src, dst, _ = edges(seed, 40)
        table(folder / f"{part}.txt", [[f"n{i}" for i in src], ["r"] * 40, [f"n{i}" for i in dst]])
    return [str(folder)]


def edge_features(folder: Path) -> list[str]:
    src, dst, weights = edges(5)
    path = table(folder / "e.csv", [src, dst, weights, src * 0.5], "src,dst,f,g")
    return [str(path), "--edge-features", "f,g"]


def vectors_of_edges(folder: Path) -> list[str]:
    path = table(folder / "e.csv", [[0, 5], [1, 2], ["0.1 0.2", "3 4"]], "src,dst,v")
    return [str(path), "--edge-features", "v"]


def named(folder: Path) -> list[str]:
    src, dst, weights = edges(6)
    names = [f"{'long prefix of all names ' * (i % 2)}user {i * 37 % 91}é" for i in range(NODES)]
    columns = [[names[i] for i in src], [names[i] for i in dst], weights]
    return [str(table(folder / "n.csv", columns, "src,dst,weight"))]


def sparse_rows_of_nodes(folder: Path, values: np.ndarray) -> list[str]:
    matrix = sp.random(NODES, 70, 0.04, "csr", np.float32, np.random.default_rng(9))
    matrix.data[:] = values[np.arange(matrix.nnz) % len(values)]
    sp.save_npz(folder / "words.npz", matrix)
    src, dst, _ = edges(9)
    return [str(table(folder / "e.csv", [src, dst])), "--nodes", str(folder / "words.npz")]


def with_sparse_rows_of_nodes(folder: Path) -> list[str]:
    return sparse_rows_of_nodes(folder, np.array([0.5, 2, 0, -1]))


def with_sparse_ones_of_nodes(folder: Path) -> list[str]:
    return sparse_rows_of_nodes(folder, np.ones(1))


def node_table(
    folder: Path, ids: Callable[[int], object], header: str = "id,label,split,a,b"
) -> Path:
    rng = np.random.default_rng(8)
    order = rng.permutation(NODES)
    labels = rng.integers(0, 4, NODES)
    split = np.array(["train", "valid", "test", ""])[rng.integers(0, 4, NODES)]
    columns = [[ids(i) for i in order], labels, split, rng.random(NODES), order]
    return table(folder / "nodes.csv", columns, header)


def with_nodes(folder: Path) -> list[str]:
    nodes = node_table(folder, lambda i: 10 * i - 7)
    src, dst, _ = edges(9)
    return [str(table(folder / "e.csv", [10 * src - 7, 10 * dst - 7])), "--nodes", str(nodes)]


def with_named_nodes(folder: Path) -> list[str]:
    nodes = node_table(folder, lambda i: f"x{i}", "id,ignored,unused,a,b")
    labels = table(
        folder / "labels.csv",
        [[f"x{i}" for i in range(82)], [i % 3 for i in range(82)], ["test", ""] * 41],
        "id,class,set",
    )
    src, dst, _ = edges(9)
    lines = table(folder / "e.csv", [[f"x{i}" for i in src], [f"x{i}" for i in dst]])
    for part, first in (("a", 0), ("b", 30), ("c", 60)):
        (folder / part).write_text("".join(f"x{i}\n" for i in range(first, first + 20)))
    files = ",".join(str(folder / part) for part in "abc")
    words = ["--nodes", str(nodes), "--nodes", str(labels), "--features", "a,b"]
    return [str(lines), *words, "--split-file", f"more={files}"]


def with_rows_of_nodes(folder: Path) -> list[str]:
    rng = np.random.default_rng(8)
    classes = np.array(["cat", "dog", "", "ape"])[rng.integers(0, 4, NODES)]
    masks = [np.arange(NODES) % 3 == part for part in range(2)]
    masks = [mask & (classes != "") for mask in masks]
    columns = [classes, *(mask.astype(int) for mask in masks)]
    nodes = table(folder / "nodes.csv", columns, "label,train_mask,val_mask")
    np.save(folder / "x.npy", rng.random((NODES, 3)))
    words = ["--nodes", str(nodes), "--nodes", str(folder / "x.npy"), "--dtype", "float16"]
    return [*crlf(folder), *words]


def with_lists_of_labels(folder: Path) -> list[str]:
    rng = np.random.default_rng(8)
    lists = ["|".join(rng.permutation(["a", "b", "é"])[: i % 4]) for i in range(NODES)]
    nodes = table(folder / "nodes.csv", [rng.permutation(NODES), lists], "id,label")
    return [*crlf(folder), "--nodes", str(nodes), "--label-separator", "|"]


def npz(folder: Path) -> list[str]:
    return [str(Little().write_npz(folder / "g.npz"))]


def metis(folder: Path) -> list[str]:
    (folder / "g.graph").write_text("4 3 001\n2 5 3 6\n1 5\n1 6 4 7\n3 7\n")
    return [str(folder / "g.graph")]


def node_types(folder: Path) -> list[str]:
    """Types with features, with features of another width, and without; names."""
    rng = np.random.default_rng(4)
    users, items = [f"u{i}" for i in range(70)], [f"item {i}" for i in range(20)]
    numbers = [rng.random(70), rng.random(70), np.arange(70) % 3]
    table(folder / "users.csv", [users, *numbers], "id,a,b,group")
    table(folder / "items.csv", [items], "id")
    table(folder / "buys.csv", [rng.choice(users, 200), rng.choice(items, 200)], "src,dst")
    table(folder / "knows.csv", [rng.choice(users, 90), rng.choice(users, 90)], "src,dst")
    (folder / "graph.toml").write_text(
        '[nodes.user]\nfiles = ["users.csv"]\nlabel = "group"\n'
        '[nodes.item]\nfiles = ["items.csv"]\n'
        '[edges."user,buys,item"]\nfiles = ["buys.csv"]\n'
        '[edges."user,knows,user"]\nfiles = ["knows.csv"]\n'
    )
    return [str(folder)]


def graphs(folder: Path) -> list[str]:
    numbers = np.arange(NODES)
    nodes = table(folder / "nodes.csv", [numbers, numbers // 9, numbers % 4], "id,graph,a")
    given = table(folder / "graphs.csv", [numbers[:10], numbers[:10] % 2], "graph,label")
    path = table(folder / "e.csv", [numbers, numbers // 9 * 9])
    return [str(path), "--nodes", str(nodes), "--graphs", str(given)]


CASES = {
    "csv": (one_csv, ()),
    "csv undirected": (one_csv, ("--undirected", "--self-loops", "add")),
    "csv sums": (one_csv, ("--duplicates", "sum", "--undirected", "--self-loops", "drop")),
    "csv reversed": (one_csv, ("--reverse", "--self-loops", "add", "--memory", "1")),
    "counted": (crlf, ("--duplicates", "sum")),
    "crlf": (crlf, ("--undirected",)),
    "no last newline": (no_last_newline, ("--num-nodes", "101")),
    "many files": (many_files, ()),
    "relabel": (many_files, ("--relabel",)),
    "two lines": (two_lines, ()),
    "two lines relabelled": (two_lines, ("--relabel", "--undirected")),
    "parquet": (parquet, ()),
    "typed": (typed, ("--undirected",)),
    "triples": (triples, ()),
    "edge features": (edge_features, ("--undirected", "--self-loops", "add")),
    "vectors of edges": (vectors_of_edges, ("--undirected",)),
    "names": (named, ("--undirected",)),
    "numbers as names": (crlf, ("--names",)),
    "nodes": (with_nodes, ("--random-split", "50,20,20", "--split-seed", "3")),
    "named nodes": (with_named_nodes, ()),
    "rows of nodes": (with_rows_of_nodes, ()),
    "lists of labels": (with_lists_of_labels, ("--random-split", "50,20,20")),
    "npz": (npz, ("--random-split", "50,20,20")),
    "sparse rows of nodes": (with_sparse_rows_of_nodes, ()),
    "sparse ones of nodes": (with_sparse_ones_of_nodes, ()),
    "sparse rows, written out": (with_sparse_rows_of_nodes, ("--sparse-features", "never")),
    "dense rows, stored sparse": (with_rows_of_nodes, ("--sparse-features", "always")),
    "metis": (metis, ("--undirected",)),
    "node types": (node_types, ()),
    "graphs": (graphs, ("--random-split", "50,30,20")),
}


def content(path: Path) -> dict[str, object]:
    """All datasets of a file by name, as bytes, and the attributes of its root."""
    found: dict[str, object] = {}

    def take(name: str, each: object) -> None:
        if isinstance(each, h5py.Dataset):
            found[name] = (each.dtype, each.shape, each.chunks, each[()].tobytes())

    with h5py.File(path) as file:
        file.visititems(take)
        found["/"] = {name: str(value) for name, value in file.attrs.items()}
    return found


def words_of(comm: MPI.Intracomm, folder: Path, case: str) -> list[str]:
    """Write the files of a case; return the words of its command without the output."""
    write, words = CASES[case]
    if comm.rank == 0:
        folder.mkdir()
    files = comm.bcast(write(folder) if comm.rank == 0 else None)
    return [*files, *words, "--name", "g", "--json", "-o"]


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_store_is_that_of_one_process(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: str,
) -> None:
    monkeypatch.setattr(divide_input, "LEAST_PIECE", 64)
    # So that ranks have their own chunks, and share some.
    monkeypatch.setattr(file_format, "CHUNK_BYTES", 256)
    monkeypatch.setattr(divide_input, "QUIET_BELOW_BYTES", 0)
    given = words_of(comm, comm_tmp_path / "in", case)
    together, alone = comm_tmp_path / "together.h5", comm_tmp_path / "alone.h5"
    monkeypatch.setattr(sys, "argv", ["convert", *given, str(together)])
    assert COMMAND.call(comm=comm) == 0
    printed = capsys.readouterr()
    if comm.rank == 0:
        COMMAND.call([*given, str(alone)])
        expected = json.loads(capsys.readouterr().out)
        assert content(together) == content(alone)
        for summary in (expected, found := json.loads(printed.out)):
            del summary["path"], summary["seconds"]
        assert found == expected
    else:
        assert printed.out == printed.err == ""


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("{} 3", (), "line 301 has 1 fields"),
        ("7,-3", (), "line 301: target id -3 is outside"),
        ("7,x", (), "line 301, column 2 holds 'x'"),
        ("7,", (), "line 301, column 2 is empty"),
        ("7,8\n4,5\n4,5", ("--duplicates", "error"), "edge 4 -> 5 is given more than once"),
    ],
)
def test_a_faulty_line_ends_all_ranks(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr(divide_input, "LEAST_PIECE", 64)
    path = comm_tmp_path / "e.csv"
    if comm.rank == 0:
        lines = [f"{i},{i + 1}" for i in range(10, 310)]
        path.write_text("\n".join([*lines, text, *(f"{i},{i + 3}" for i in range(500, 800))]))
    comm.barrier()
    monkeypatch.setattr(sys, "argv", ["convert", str(path), *words, "-o", str(path) + ".h5"])
    with pytest.raises(CollectiveInputError, match=message):
        COMMAND.call(comm=comm)
    comm.barrier()
    assert [each.name for each in comm_tmp_path.iterdir()] == ["e.csv"]


@pytest.mark.parametrize(
    ("name", "words", "called"),
    [("atom {}", (), "'atom 157'"), ("{}00", ("--relabel",), "15700"), ("{}", (), "57")],
)
def test_a_node_without_a_label_is_called_as_in_the_input(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    words: tuple[str, ...],
    called: str,
) -> None:
    monkeypatch.setattr(divide_input, "LEAST_PIECE", 64)
    numbers = range(0 if called == "57" else 100, 200)
    ids, without = [name.format(i) for i in numbers], called.strip("'")
    files = [str(comm_tmp_path / file) for file in ("e.csv", "n.csv", "s.h5")]
    if comm.rank == 0:
        rows = [f"{i},{'' if i in (without, ids[-1]) else 'a'},train" for i in ids]
        Path(files[1]).write_text("\n".join(["id,label,split", *rows[::-1]]))
        pairs = [f"{a},{b}" for a, b in pairwise(ids)]
        Path(files[0]).write_text("\n".join(["src,dst", *pairs]))
    comm.barrier()
    message = f"node {called} is in the train split but has no label, like 1 more; give it one"
    monkeypatch.setattr(
        sys, "argv", ["convert", files[0], "--nodes", files[1], *words, "-o", files[2]]
    )
    with pytest.raises(CollectiveInputError, match=message):
        COMMAND.call(comm=comm)


def test_a_graph_without_edges_ends_all_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = comm_tmp_path / "e.csv"
    if comm.rank == 0:
        path.write_text("src,dst\n")
    comm.barrier()
    monkeypatch.setattr(sys, "argv", ["convert", str(path), "-o", str(path) + ".h5"])
    with pytest.raises(CollectiveInputError, match="has no edges; check the input"):
        COMMAND.call(comm=comm)


@pytest.mark.parametrize("fault", ["No space left on device", "the feature in column 2 is nan"])
def test_what_one_rank_cannot_write_ends_all(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(file_format, "CHUNK_BYTES", 256)
    if comm.rank == 0:
        table(comm_tmp_path / "e.csv", list(edges(1)[:2]))
        features = np.ones((NODES, 3))
        # The last rank reads it.
        features[-1, 1] = np.nan if "nan" in fault else 1
        np.save(comm_tmp_path / "x.npy", features)
    comm.barrier()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if comm.size == 1 and "space" in fault:
        pytest.skip("what one process writes is HDF5's")
    if comm.rank == comm.size - 1 and "space" in fault:
        monkeypatch.setattr(os, "pwrite", full)
    files = [str(comm_tmp_path / name) for name in ("e.csv", "x.npy", "s.h5")]
    words = ["convert", files[0], "--nodes", files[1], "-o", files[2]]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(CollectiveInputError, match=fault):
        COMMAND.call(comm=comm)
    comm.barrier()
    assert sorted(each.name for each in comm_tmp_path.iterdir()) == ["e.csv", "x.npy"]


def test_a_full_scratch_folder_of_one_rank_ends_all(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.rank == 0:
        table(comm_tmp_path / "e.csv", list(edges(1)[:2]))
        rows = (f"{node},{node}.5\n" for node in reversed(range(NODES)))
        (comm_tmp_path / "n.csv").write_text("id,x\n" + "".join(rows))
    comm.barrier()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(os, "posix_fallocate", full)
    files = [str(comm_tmp_path / name) for name in ("e.csv", "n.csv", "s.h5")]
    monkeypatch.setattr(sys, "argv", ["convert", files[0], "--nodes", files[1], "-o", files[2]])
    with pytest.raises(CollectiveInputError, match=r"has no room for \d+ bytes .*TMPDIR"):
        COMMAND.call(comm=comm)
    comm.barrier()
    assert sorted(each.name for each in comm_tmp_path.iterdir()) == ["e.csv", "n.csv"]


def test_sparse_features_of_too_few_nodes_end_all_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = comm_tmp_path / "g.mat"
    if comm.rank == 0:
        ring = sp.csc_array(np.eye(3)[[1, 2, 0]])
        scipy.io.savemat(path, {"A": ring, "X": sp.csc_array(np.eye(2, 20))})
    comm.barrier()
    monkeypatch.setattr(sys, "argv", ["convert", str(path), "-o", str(path) + ".h5"])
    with pytest.raises(CollectiveInputError, match="only 2 feature rows for 3 nodes"):
        COMMAND.call(comm=comm)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nodes", "none.csv"), r"none\.csv: no such file"),
        (("--nodes", "none.npy"), r"none\.npy: no such file"),
        (("--box", "x"), "--box x: give the period"),
        (("--format", "typed-edge-list", "--columns", "src,dst"), "a column called relation"),
        (("--format", "triples"), "needs three files whose names end with train"),
        (("--split-file", "a,b"), "--split-file a,b: give"),
        (("--split-file", "a,b,c"), "give the number of nodes"),
        (("--nodes", "{}/c", "--nodes", "{}/e"), "has labels, and other node tables do not"),
        (("--nodes", "{}/c", "--nodes", "{}/d"), "has 2 columns of features and .* has 1"),
        (
            ("--names", "--split-file", "{}/a,{}/b,{}/b"),
            "a: line 2: train id 'nobody' is not in the table",
        ),
    ],
)
def test_a_faulty_option_ends_all_ranks(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    path = comm_tmp_path / "e.csv"
    if comm.rank == 0:
        path.write_text("1,2\n2,3\n")
        (comm_tmp_path / "a").write_text("1\nnobody\n")
        (comm_tmp_path / "b").write_text("2\n")
        (comm_tmp_path / "c").write_text("id,x,label\n1,0.5,0\n2,0.5,0\n")
        (comm_tmp_path / "d").write_text("id,x,y,label\n3,0.5,0.5,0\n")
        (comm_tmp_path / "e").write_text("id,x\n3,0.5\n")
    comm.barrier()
    words = tuple(word.replace("{}", str(comm_tmp_path)) for word in words)
    monkeypatch.setattr(sys, "argv", ["convert", str(path), *words, "-o", str(path) + ".h5"])
    with pytest.raises(CollectiveInputError, match=message) as fault:
        COMMAND.call(comm=comm)
    # One rank reads or finds it, and informs the others.
    assert len(set(comm.allgather(str(fault.value)))) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--positions", "x.npy"),
        ("--fields", "u=u.npy"),
        ("--fields", "u=u.npy", "--times", "t.npy"),
    ],
)
def test_an_array_that_one_rank_cannot_see_ends_all(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    monkeypatch.chdir(comm_tmp_path)
    if comm.rank == 0:
        Path("e.csv").write_text("0,1\n1,2\n")
        for name, array in (("x", np.ones((3, 2))), ("u", np.ones((2, 3, 1))), ("t", np.arange(2))):
            np.save(name, array)
    comm.barrier()
    if comm.rank == comm.size - 1:
        *words, last = words
        words = *words, f"{last[:-5]}none.npy"
    monkeypatch.setattr(sys, "argv", ["convert", "e.csv", *words, "-o", "s.h5"])
    with pytest.raises(CollectiveInputError, match=r"none\.npy: no such file"):
        COMMAND.call(comm=comm)


class Killed(BaseException):
    """The end of a process, as far as a test can simulate it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """Make the conversion end at a stage: on saving, before rows are written, after everything."""
    if stage.isdigit():
        left = [int(stage)]
        save = SavedConversion.save

        def dying(self: SavedConversion, state: object) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            save(self, state)

        monkeypatch.setattr(SavedConversion, "save", dying)
        return

    def killed(*_: object, **__: object) -> None:
        raise Killed

    target, name = {"rows": (send_edges.EdgeFeed, "write"), "end": (SavedConversion, "remove")}[
        stage
    ]
    monkeypatch.setattr(target, name, killed)


@pytest.mark.parametrize(
    ("case", "stage"),
    [
        ("typed", "0"),
        ("csv sums", "1"),
        ("nodes", "1"),
        ("nodes", "rows"),
        ("npz", "rows"),
        ("graphs", "rows"),
        ("typed", "end"),
    ],
)
def test_an_ended_conversion_goes_on(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: str,
    stage: str,
) -> None:
    monkeypatch.setattr(divide_input, "LEAST_PIECE", 64)
    monkeypatch.setattr(send_edges, "SAVE_EVERY_S", 0.0)
    given = words_of(comm, comm_tmp_path / "in", case)
    together, alone = comm_tmp_path / "together.h5", comm_tmp_path / "alone.h5"
    monkeypatch.setattr(sys, "argv", ["convert", *given, str(together), "--resume"])
    with monkeypatch.context() as patch:
        kill_at(patch, stage)
        with pytest.raises(Killed):
            COMMAND.call(comm=comm)
    comm.barrier()
    parts = together.with_name("together.h5.parts")
    assert parts.exists()
    monkeypatch.setattr(sys, "argv", ["convert", *given, str(together), "--resume", "--reverse"])
    if (parts / "manifest.json").exists():
        with pytest.raises(CollectiveInputError, match="of a conversion with other options"):
            COMMAND.call(comm=comm)
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["convert", *given, str(together), "--resume"])
    assert COMMAND.call(comm=comm) == 0
    if comm.rank == 0:
        gone_on = re.search(r"resuming after (\d+) edges", capsys.readouterr().err)
        assert (gone_on is not None) == (stage != "0")
        assert gone_on is None or int(gone_on[1]) > 0
        COMMAND.call([*given, str(alone), "--resume"])
        assert content(together) == content(alone)
        left = sorted(each.name for each in comm_tmp_path.iterdir())
        assert left == ["alone.h5", "in", "together.h5"]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def nest(path: Path) -> None:
    path.write_text("[" * 100_000)


def link_folder(path: Path) -> None:
    folder = path.parent
    other = folder.with_name("other")
    folder.rename(other)
    folder.symlink_to(other)


DAMAGES = {
    "a flipped bit": ("0-0.runs", flip, "does not match its checksum; remove its folder"),
    "runs cut": ("0-0.runs", cut, "does not have .* bytes; remove its folder"),
    "runs gone": ("0-0.runs", Path.unlink, "does not have .* bytes; remove its folder"),
    "runs linked": ("0-0.runs", link, "no scratch file can be made there"),
    "a pipe": ("0-0.runs", pipe, "does not have .* bytes; remove its folder"),
    "a flipped state": ("0.*.json", flip, "cannot be read .*to begin anew"),
    "a nested state": ("0.*.json", nest, "cannot be read .*to begin anew"),
    "a nested manifest": ("manifest.json", nest, "cannot be used .*remove it to begin anew"),
    "a linked folder": ("manifest.json", link_folder, "cannot be used .it is a link.; remove it"),
}


@pytest.mark.max_ranks(3)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_runs_are_refused(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(divide_input, "LEAST_PIECE", 64)
    monkeypatch.setattr(send_edges, "SAVE_EVERY_S", 0.0)
    given = words_of(comm, comm_tmp_path / "in", "csv sums")
    output = comm_tmp_path / "out.h5"
    monkeypatch.setattr(sys, "argv", ["convert", *given, str(output), "--resume"])
    with monkeypatch.context() as patch:
        kill_at(patch, "rows")
        with pytest.raises(Killed):
            COMMAND.call(comm=comm)
    comm.barrier()
    pattern, harm, message = DAMAGES[damage]
    if comm.rank == 0:
        (path,) = output.with_name("out.h5.parts").glob(pattern)
        harm(path)
    comm.barrier()
    with pytest.raises(CollectiveInputError, match=message):
        COMMAND.call(comm=comm)
    assert not output.exists()
    if comm.rank == 0 and comm.size == 1:
        with pytest.raises(InputError, match=message):
            COMMAND.call([*given, str(output), "--resume"])
