"""The reader of a damaged file says so in one line, or returns what was written."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.storage import (
    EdgeBuilder,
    EdgeColumns,
    GraphStore,
    SortedRows,
    StoreHeader,
    StoreWriter,
)
from hpcgnn.storage import format as store_format
from tests.support.store_changes import assign, remove, replace

ROOT = Path(__file__).resolve().parents[3]
STEP = 127
"""Distance in bytes between flipped bytes."""


def write_probe_store(path: Path, node_types: tuple[str, ...] = ()) -> None:
    rng = np.random.default_rng(5)
    n = 67
    header = StoreHeader(
        name="probe",
        num_nodes=n,
        num_classes=3,
        class_names=("a", "bb", "c"),
        node_types=node_types,
        provenance={"k": 1},
    )
    with StoreWriter(path, header) as writer:
        for relation, weighted in (("cites", True), ("writes", False)):
            with EdgeBuilder(n, columns=EdgeColumns(weighted)) as builder:
                ends = rng.integers(0, n, (2, 200))
                builder.add(*ends, *([rng.random(200)] if weighted else []))
                builder.write(writer, relation)
        if node_types:
            types = rng.integers(0, len(node_types), n)
            writer.append_types(types)
            for number, name in enumerate(node_types[:-1]):
                rows = int(np.count_nonzero(types == number))
                writer.append_type_features(name, rng.random((rows, 3 + number)))
        else:
            writer.append_features(rng.random((n, 5), dtype=np.float32))
        writer.append_labels(rng.integers(-1, 3, n))
        writer.append_split(rng.integers(0, 4, n))
        writer.set_partition([0, 20, 20, n], "metis", 3, {"edge_cut": 5})


@pytest.mark.parametrize(
    ("chunk_bytes", "first", "mask", "node_types"),
    [
        (64, 0, 255, ()),
        (64, 7, 1, ()),
        (store_format.CHUNK_BYTES, 0, 255, ()),
        (store_format.CHUNK_BYTES, 7, 1, ()),
        (64, 3, 255, ("paper", "author", "field")),
        (store_format.CHUNK_BYTES, 5, 1, ("paper", "author", "field")),
    ],
)
def test_flipped_byte_is_noticed(
    chunk_bytes: int,
    first: int,
    mask: int,
    node_types: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Small chunks exercise all kinds of chunk index in a file of a few kilobytes.
    monkeypatch.setattr(store_format, "CHUNK_BYTES", chunk_bytes)
    store = tmp_path / "probe.h5"
    write_probe_store(store, node_types)
    command = [sys.executable, "-m", "tests.support.flip_probe"]
    command += [str(each) for each in (store, tmp_path / "flipped.h5", first, STEP, mask)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    result = json.loads(done.stdout)
    assert result["faults"] == {}
    assert result["counts"]["refused"] > 0.8 * result["size"] / STEP


@pytest.mark.parametrize("keep", [0, 4, 48, 512, 0.5, 0.9, -1])
def test_truncated_file(keep: float, plain_store: Path) -> None:
    data = plain_store.read_bytes()
    length = int(keep * len(data)) if 0 < keep < 1 else int(keep)
    plain_store.write_bytes(data[:length])
    with pytest.raises(StorageFormatError, match=r"plain\.h5: .*; "):
        GraphStore.open(plain_store)


def test_other_contents(tmp_path: Path) -> None:
    path = tmp_path / "notes.h5"
    path.write_text("not a store at all")
    with pytest.raises(StorageFormatError, match="is not an HDF5 file; name a store made by"):
        GraphStore.open(path)
    with h5py.File(path, "w") as file:
        file["x"] = [1, 2]
    with pytest.raises(StorageFormatError, match="is an HDF5 file but not a store of hpcgnn"):
        GraphStore.open(path)
    with h5py.File(path, "w") as file:
        file.attrs["format"] = "hpcgnn program graphs"
    with pytest.raises(StorageFormatError, match="is a file of hpcgnn program graphs, not of a"):
        GraphStore.open(path)


def test_no_file(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "missing.h5", "No such file"),
        (tmp_path, "is not a regular file"),
        (tmp_path / "missing" / "a.h5", "No such file"),
    ):
        with pytest.raises(InputError, match=reason) as caught:
            GraphStore.open(path)
        assert str(path) in str(caught.value)


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.h5")
    with pytest.raises(InputError, match="is not a regular file"):
        GraphStore.open(tmp_path / "pipe.h5")


def test_no_permission(plain_store: Path, lose_rights: Callable[[], None]) -> None:
    lose_rights()
    with pytest.raises(InputError, match="Permission denied"):
        GraphStore.open(plain_store)


def set_root(name: str, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file.attrs[name] = value

    return change


def link(name: str, target: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = target

    return change


def virtual_labels(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(shape=(5,), dtype="<i4")
    layout[:] = h5py.VirtualSource("elsewhere.h5", "labels", shape=(5,))
    del file["nodes/labels"]
    file.create_virtual_dataset("nodes/labels", layout)


def external_labels(file: h5py.File) -> None:
    del file["nodes/labels"]
    file.create_dataset("nodes/labels", (5,), "<i4", external=[("/etc/hostname", 0, 20)])


def only_said_labels(file: h5py.File) -> None:
    del file["nodes/labels"]
    file.create_dataset("nodes/labels", (5,), "<i4", chunks=(5,), fletcher32=True)


def variable_text_classes(file: h5py.File) -> None:
    del file["classes"]
    file.create_dataset("classes", data=["a", "b", "c"])


INDPTR = np.array([0, 1, 2, 4, 4, 4])

FORGERIES: list[tuple[str, Callable[[h5py.File], None], str]] = [
    (
        "version",
        set_root("format_version", 7),
        "version is 7 and this hpcgnn reads 1, 2, 3, 4, 5, 6",
    ),
    ("typed version", set_root("format_version", 2), "/node_types: is missing"),
    ("not an integer", set_root("num_nodes", "5"), "attribute num_nodes: is a str, not a int"),
    ("no nodes", set_root("num_nodes", 0), "out of range"),
    ("other size", set_root("num_nodes", 6), "/adjacency/indptr: has shape"),
    ("other classes", set_root("num_classes", 4), "/classes: has shape"),
    ("provenance", set_root("provenance", "{"), "attribute provenance: cannot be read"),
    ("provenance list", set_root("provenance", "[1]"), "is not a JSON object"),
    ("no adjacency", remove("adjacency"), "/adjacency: is missing"),
    ("no indptr", remove("adjacency/indptr"), "/adjacency"),
    ("no indices", remove("adjacency/indices"), "/adjacency/indices: is missing"),
    ("no ids", remove("nodes/original_id"), "/nodes/original_id: is missing"),
    ("no labels", remove("nodes/labels"), "does not fit num_classes = 3"),
    ("int32 indptr", replace("adjacency/indptr", INDPTR.astype("<i4")), "has type int32"),
    ("short indptr", replace("adjacency/indptr", INDPTR[:5]), "has shape"),
    ("big endian", replace("adjacency/indptr", INDPTR.astype(">i8")), "has type >i8"),
    ("int64 indices", replace("adjacency/indices", np.arange(4)), "has type int64"),
    ("weights", replace("adjacency/weights", np.ones(3, "<f4")), "/adjacency/weights: has shape"),
    ("flat features", replace("nodes/features", np.ones(5, "<f4")), "/nodes/features: has shape"),
    ("int features", replace("nodes/features", np.ones((5, 3), int)), "has type int64"),
    ("text classes", variable_text_classes, "/classes: is not stored in plain chunks"),
    ("int classes", replace("classes", np.arange(3)), "has type int64, not fixed-length text"),
    ("first offset", assign("adjacency/indptr", 0, 1), "runs from 1 to 4, not from 0 to 4"),
    ("last offset", assign("adjacency/indptr", 5, 9), "runs from 0 to 9, not from 0 to 4"),
    ("falling", assign("adjacency/indptr", 2, 9), "row 2 ends at 4 before it starts at 9"),
    ("negative", assign("adjacency/indptr", 1, -3), "row 0 ends at -3 before it starts at 0"),
    ("column", assign("adjacency/indices", 1, 5), "column 5 is outside 0..4"),
    ("column below", assign("adjacency/indices", 1, -1), "column -1 is outside 0..4"),
    ("order", assign("adjacency/indices", 3, 1), "columns of row 2 are not sorted and unique"),
    ("weight", assign("adjacency/weights", 2, np.nan), "weight nan is not a finite number"),
    ("infinite", assign("nodes/features", (3, 1), np.inf), "node 3 has the value inf in column 1"),
    ("label", assign("nodes/labels", 4, 3), "node 4 has label 3, outside 0..2"),
    ("label below", assign("nodes/labels", 4, -2), "node 4 has label -2, outside 0..2"),
    ("split", assign("nodes/split", 0, 4), "node 0 has the split value 4, outside 0..3"),
    ("contiguous", replace("nodes/split", np.ones(5, "u1"), chunks=None), "not stored in plain"),
    ("no checksum", replace("nodes/split", np.ones(5, "u1"), fletcher32=False), "not stored in"),
    ("zipped", replace("nodes/split", np.ones(5, "u1"), compression="gzip"), "not stored in plain"),
    ("virtual", virtual_labels, "/nodes/labels: is not stored in plain chunks"),
    ("only said", only_said_labels, "/nodes/labels: declares 20 bytes, and holds fewer"),
    ("external storage", external_labels, "/nodes/labels: is not stored in plain chunks"),
    ("soft link", link("nodes/split", h5py.SoftLink("/nodes/labels")), "is a link to elsewhere"),
    ("external link", link("nodes", h5py.ExternalLink("o.h5", "/")), "/nodes: is a link to else"),
    ("group", link("nodes/split", h5py.SoftLink("/nowhere")), "/nodes/split: is a link"),
    ("dataset as group", replace("nodes", np.ones(2)), "/nodes: is not a group"),
]


@pytest.mark.parametrize(
    ("change", "message"), [case[1:] for case in FORGERIES], ids=[case[0] for case in FORGERIES]
)
def test_forged_store(
    change: Callable[[h5py.File], None],
    message: str,
    plain_store: Path,
    forge: Callable[..., None],
    read_all: Callable[[Path], None],
) -> None:
    forge(plain_store, change)
    with pytest.raises(StorageFormatError) as caught:
        read_all(plain_store)
    text = str(caught.value)
    assert message in text
    assert text.startswith(f"{plain_store}: ")
    assert "\n" not in text


@pytest.mark.parametrize("row_starts", [[0, 3, 2, 5], [0, 3], [1, 5], [0, 9, 5], [0]])
def test_forged_parts(row_starts: list[int], plain_store: Path, forge: Callable[..., None]) -> None:
    def change(file: h5py.File) -> None:
        file.create_group("partition").attrs.update(method="m", seed=1, metrics="{}")
        data = np.array(row_starts)
        file.create_dataset("partition/row_starts", data=data, chunks=data.shape, fletcher32=True)

    forge(plain_store, change)
    with pytest.raises(StorageFormatError, match="/partition/row_starts: "):
        GraphStore.open(plain_store)


def test_forged_relations(typed_store: Path, forge: Callable[..., None]) -> None:
    def same_index(file: h5py.File) -> None:
        file["adjacency/cites"].attrs["index"] = 0

    forge(typed_store, same_index)
    with pytest.raises(StorageFormatError, match="/adjacency: has no relations numbered"):
        GraphStore.open(typed_store)


def test_forged_multi_label(
    tmp_path: Path, forge: Callable[..., None], read_all: Callable[[Path], None]
) -> None:
    path = tmp_path / "multi.h5"
    with StoreWriter(
        path, StoreHeader(name="m", num_nodes=2, num_classes=2, multi_label=True)
    ) as w:
        w.append_rows(SortedRows(np.array([0, 0, 0]), np.empty(0, np.int64)))
        w.append_labels([[0, 1], [1, 1]])
    forge(path, assign("nodes/labels", (1, 0), 2))
    with pytest.raises(StorageFormatError, match="node 1 has a value other than 0 and 1"):
        read_all(path)


def test_changed_dataset_breaks_the_fingerprint(plain_store: Path) -> None:
    with h5py.File(plain_store, "r+") as file:
        file["nodes/labels"].attrs["crc32"] = np.uint32(1)
    with pytest.raises(StorageFormatError, match="fingerprint"):
        GraphStore.open(plain_store)


def test_verify_compares_checksums(plain_store: Path) -> None:
    with h5py.File(plain_store, "r+") as file:
        file["nodes/labels"][0] = 1
    with GraphStore.open(plain_store) as store:
        assert store.read_nodes(0, 5).labels is not None
        with pytest.raises(StorageFormatError, match="/nodes/labels: does not match its checksum"):
            store.verify()


def test_file_left_open_by_a_killed_writer(plain_store: Path) -> None:
    code = (
        "import h5py, os, sys; f = h5py.File(sys.argv[1], 'r+', libver=('v110', 'v110'));"
        "f.attrs['name'] = 'x'; f.flush(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(plain_store)], check=True)
    with pytest.raises(StorageFormatError, match=r"plain\.h5: file: cannot be read"):
        GraphStore.open(plain_store)
