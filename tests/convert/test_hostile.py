"""Small files that claim more than they hold, and damage that would crash native readers."""

import io
import json
import re
import shutil
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.io.matlab
import scipy.sparse

from hpcgnn.convert import ConvertOptions, convert
from hpcgnn.convert.read.mat import MatFile
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore
from tests.support.graph_files import convert_to, write_gz

ENDS = np.array([[0, 1, 2], [1, 2, 0]])


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def write_ogb(path: Path) -> Path:
    write_gz(path / "raw" / "edge.csv.gz", "0,1\n1,2\n2,0\n")
    write_gz(path / "raw" / "num-node-list.csv.gz", "4000000000\n")
    return path


def write_types(path: Path) -> Path:
    names = ",".join(f"t{number}" for number in range(300))
    write_gz(path / "raw" / "num-node-dict.csv.gz", f"{names}\n{','.join(['1'] * 300)}\n")
    write_gz(path / "raw" / "triplet-type-list.csv.gz", "t0,cites,t1\n")
    write_gz(path / "raw" / "relations" / "t0___cites___t1" / "edge.csv.gz", "0,0\n")
    return path


def write_mtx(path: Path) -> Path:
    banner = "%%MatrixMarket matrix coordinate pattern general\n"
    path.write_text(f"{banner}4294967296 4294967296 1\n1 2\n")
    return path


def write_wide_mat(path: Path) -> Path:
    matrix = scipy.sparse.coo_matrix((np.ones(3), ENDS), (10**7, 10**7)).tocsc()
    scipy.io.savemat(path, {"A": matrix}, do_compression=True)
    return path


ASKING: list[tuple[str, str, Callable[[Path], Path], str]] = [
    ("npz", "a.npz", lambda p: npz(p, edge_index=ENDS, node_type=[0, 1, 2**40]), "node types"),
    ("npz", "a.npz", lambda p: npz(p, edge_index=ENDS, etype=[0, 1, 2**20]), "relations"),
    ("npz", "a.npz", lambda p: npz(p, edge_index=ENDS, etype=[0, 1, 2**40]), "relations"),
    ("npz", "a.npz", lambda p: npz(p, edge_index=ENDS, num_nodes=2**32), "--num-nodes 4294967296"),
    ("npz", "a.npz", lambda p: npz(p, edge_index=ENDS, y=[0, 1, 2**31 - 2]), "from 0 to 1048575"),
    ("matrix-market", "a.mtx", write_mtx, "--num-nodes 4294967296"),
    ("ogb", "a", write_ogb, "--num-nodes 4000000000"),
    ("ogb", "a", write_types, "300 node types"),
    ("matlab", "a.mat", write_wide_mat, "--num-nodes 10000000"),
]


@pytest.mark.parametrize(("kind", "name", "write", "message"), ASKING)
def test_one_number_asks_for_everything(
    tmp_path: Path, kind: str, name: str, write: Callable[[Path], Path], message: str
) -> None:
    path = write(tmp_path / name)
    with pytest.raises(InputError, match=message) as caught:
        convert(path, tmp_path / "out.h5", format_name=kind)
    assert "\n" not in str(caught.value)
    assert {each.name for each in tmp_path.iterdir()} == {name}


def test_many_isolated_nodes_are_a_matter_of_asking(tmp_path: Path) -> None:
    path = tmp_path / "g.mtx"
    path.write_text("%%MatrixMarket matrix coordinate pattern general\n50000 50000 1\n1 2\n")
    with pytest.raises(InputError, match=r"says that it has 50000 nodes.* --num-nodes 50000"):
        convert(path, tmp_path / "out.h5", format_name="matrix-market")
    with pytest.raises(InputError, match=r"--num-nodes 7: .* has 50000 nodes"):
        convert_to(tmp_path / "out.h5", path, "matrix-market", num_nodes=7)
    options = ConvertOptions(num_nodes=50000)
    report = convert(path, tmp_path / "out.h5", format_name="matrix-market", options=options)
    assert report.header.num_nodes == 50000
    # In files with data for each node, few edges are not a fault.
    whole = npz(tmp_path / "g.npz", edge_index=ENDS, y=np.zeros(50000, np.int64))
    report = convert(whole, tmp_path / "out.h5", format_name="npz")
    assert report.header.num_nodes == 50000


def test_arrays_larger_than_their_file(tmp_path: Path) -> None:
    """Headers of .npy files, and the member sizes in a zip archive."""
    path = tmp_path / "a.npz"
    header = b"{'descr': '<U900000000', 'fortran_order': False, 'shape': (4,), }"
    stream = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("src.npy", stream.replace(b"<U900000000", b"<i8").replace(b"(4", b"(1<<"))
        archive.writestr("dst.npy", stream)
    with pytest.raises(InputError):
        convert(path, tmp_path / "out.h5", format_name="npz")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        content = io.BytesIO()
        np.save(content, ENDS)
        archive.writestr("edge_index.npy", content.getvalue())
    with pytest.raises(InputError, match="this kind of zip file is not read"):
        convert(path, tmp_path / "out.h5", format_name="npz")


def test_descriptions_of_many_brackets(tmp_path: Path) -> None:
    texts = {
        "tables": ("graph.toml", "a = " + "[" * 3000),
        # A reader whose time grows with the square of the size.
        "dgl-csv": ("meta.yaml", "[" * 1200),
        "graphstorm": ("g.json", "[" * 300_000),
    }
    for kind, (name, text) in texts.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match="is not valid") as caught:
            convert(tmp_path / name, tmp_path / "out.h5", format_name=kind)
        assert "\n" not in str(caught.value)


def test_words_and_numbers_of_odd_kinds(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--label-separator: is empty"):
        ConvertOptions(label_separator="")
    matrix = scipy.sparse.csr_matrix(np.eye(3))
    parts = {"indptr": matrix.indptr, "indices": matrix.indices, "shape": [3, 3]}
    roles = '{"tr": [0], "va": [1], "te": [2]}'  # codespell:ignore te
    (tmp_path / "role.json").write_text(roles)
    npz(tmp_path / "adj_full.npz", format=np.array(["csr", "csr"]), data=matrix.data, **parts)
    shutil.copy(tmp_path / "adj_full.npz", tmp_path / "a.npz")
    for path, kind in ((tmp_path, "graphsaint"), (tmp_path / "a.npz", "npz")):
        with pytest.raises(InputError, match="format must be one word"):
            convert(path, tmp_path / "out.h5", format_name=kind)
    graph = {"nodes": [{"id": "a"}, {"id": "b"}], "links": [{"source": True, "target": 0}]}
    (tmp_path / "x-G.json").write_text(json.dumps(graph))
    with pytest.raises(InputError, match="has no 'source'"):
        convert(tmp_path, tmp_path / "out.h5", format_name="graphsage")
    node = {"node_type": "a", "files": ["a.csv"], "labels": [{"task_type": "classification"}]}
    (tmp_path / "g.json").write_text(json.dumps({"nodes": [node], "edges": []}))
    with pytest.raises(InputError, match="is no construction file"):
        convert(tmp_path / "g.json", tmp_path / "out.h5", format_name="graphstorm")
    label = {"task_type": "classification", "label_col": "y", "split_pct": [10**400, 1, 1]}
    node = {"node_type": "a", "files": ["a.csv"], "labels": [label]}
    (tmp_path / "g.json").write_text(json.dumps({"nodes": [node], "edges": []}))
    with pytest.raises(InputError, match="is no construction file"):
        convert(tmp_path / "g.json", tmp_path / "out.h5", format_name="graphstorm")


def mat_values() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    matrix = scipy.sparse.random(30, 30, 0.2, format="csc", random_state=1)
    return {
        "doubles": rng.random((4, 3)),
        "small": np.arange(12).reshape(3, 4) / 1,
        "bytes": np.arange(5, dtype=np.uint8),
        "singles": np.ones((2, 2), np.float32),
        "logical": np.array([[True, False]]),
        "sparse": matrix,
        "sparse_logical": matrix > 0,
        "cube": rng.random((2, 3, 4)),
        "empty": np.zeros((0, 0)),
        "long": np.array([[2**60, -1]]),
        "no_entries": scipy.sparse.csc_matrix((5, 5)),
        "text": "words",
        "cells": np.array([1, "x", [1]], object),
    }


def dense(value: Any) -> Any:
    return value.toarray() if scipy.sparse.issparse(value) else value


@pytest.mark.parametrize("packed", [False, True])
def test_matlab_matrices_against_scipy(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, mat_values(), do_compression=packed)
    file, expected = MatFile(path), scipy.io.loadmat(path)
    assert list(file) == list(mat_values())
    for name in file:
        if name in ("text", "cells"):
            with pytest.raises(InputError, match=f"{name} is .*; save numbers"):
                file.load(name)
            continue
        found = file.load(name)
        assert scipy.sparse.issparse(found) == scipy.sparse.issparse(expected[name])
        np.testing.assert_array_equal(dense(found), dense(expected[name]))


def test_matlab_files_that_matlab_wrote() -> None:
    """SciPy's own test files: both byte orders, versions 5 to 7.2, logical and complex."""
    compared = 0
    for path in sorted((Path(scipy.io.matlab.__file__).parent / "tests" / "data").glob("*.mat")):
        try:
            file, expected = MatFile(path), scipy.io.loadmat(path)
        except (InputError, ValueError, zlib.error):
            continue
        for name in file:
            try:
                found = file.load(name)
            except InputError:
                assert dense(expected[name]).dtype.kind not in "biuf", (path.name, name)
                continue
            np.testing.assert_array_equal(dense(found), dense(expected[name]), str(path))
            compared += 1
    if not compared:
        pytest.skip("this SciPy brings no files of MATLAB")
    assert compared > 30


def big_endian(matrix: Any) -> bytes:
    """Return a .mat file of a sparse matrix `A` in big-endian byte order."""

    def element(kind: int, content: bytes) -> bytes:
        return struct.pack(">II", kind, len(content)) + content + bytes(-len(content) % 8)

    flags = element(6, struct.pack(">II", 5, matrix.nnz))
    sides = element(5, struct.pack(">ii", *matrix.shape))
    indices = element(5, matrix.indices.astype(">i4").tobytes())
    parts = indices + element(5, matrix.indptr.astype(">i4").tobytes())
    body = (
        flags + sides + element(1, b"A") + parts + element(9, matrix.data.astype(">f8").tobytes())
    )
    return b"MATLAB 5.0".ljust(124) + b"\x01\x00MI" + element(14, body)


def test_damaged_sparse_matrices_are_refused(tmp_path: Path) -> None:
    """Offsets and indices that SciPy's native code would follow beyond the arrays."""
    path = tmp_path / "a.mat"
    matrix = scipy.sparse.csc_matrix(np.triu(np.ones((4, 4))))
    path.write_bytes(big_endian(matrix))
    found = convert_to(tmp_path / "out.h5", path, "matlab")
    np.testing.assert_array_equal(found.matrix, matrix.toarray().T)
    for part, place, value in (
        ("indptr", 2, 1000),
        ("indptr", 2, -1),
        ("indptr", 0, 3),
        ("indptr", 4, 2**31 - 1),
        ("indptr", 4, -5),
        ("indices", 3, 4),
        ("indices", 3, -1),
        ("indices", 3, 2**31 - 1),
    ):
        damaged = matrix.copy()
        getattr(damaged, part)[place] = value
        content = big_endian(matrix)
        old, new = (getattr(each, part).astype(">i4").tobytes() for each in (matrix, damaged))
        assert old in content
        path.write_bytes(content.replace(old, new))
        with pytest.raises(InputError, match=r"is (no valid CSR|damaged)"):
            convert(path, tmp_path / "out.h5", format_name="matlab")


def test_a_description_is_no_large_file(tmp_path: Path) -> None:
    for name, format_name in (("meta.yaml", "dgl-csv"), ("graph.toml", "tables")):
        folder = tmp_path / format_name
        folder.mkdir()
        (folder / name).write_text("# nothing\n" * 200_000)
        with pytest.raises(InputError, match="larger than 1024 KiB"):
            convert_to(tmp_path / "out.h5", folder, format_name)
    file = tmp_path / "shop.json"
    file.write_text('{"nodes": [], "edges": []' + " " * (2 << 20) + "}")
    with pytest.raises(InputError, match="larger than 1024 KiB"):
        convert_to(tmp_path / "out.h5", file, "graphstorm")


@pytest.mark.parametrize("name", ["y", "node_type", "train_mask", "split"])
def test_packed_zeros_are_not_taken_for_nodes(tmp_path: Path, name: str) -> None:
    path, count = tmp_path / "g.npz", 4 << 20
    np.savez_compressed(path, edge_index=ENDS, **{name: np.zeros(count, np.int64)})
    assert path.stat().st_size < 64 << 10
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=f"{count} nodes, with 3 edges.*--num-nodes {count}"):
            convert(path, tmp_path / "out.h5", format_name="npz")
        # The 32 MiB were never allocated.
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "out.h5").exists()


def test_lengths_that_differ_are_seen_before_arrays_are_read(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    np.savez_compressed(
        path, edge_index=ENDS, x=np.zeros((3, 1)), y=np.zeros(4 << 20, np.int64), num_nodes=3
    )
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"y implies 4194304 nodes and .*x implies 3"):
            convert(
                path,
                tmp_path / "out.h5",
                format_name="npz",
                options=ConvertOptions(num_nodes=4 << 20),
            )
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_many_nodes_of_few_edges_are_there_when_they_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    np.savez_compressed(path, edge_index=ENDS, y=np.zeros(20_000, np.int64))
    options = ConvertOptions(num_nodes=20_000)
    report = convert(path, tmp_path / "out.h5", format_name="npz", options=options)
    assert report.header.num_nodes == 20_000


def test_parquet_says_no_more_than_it_holds(tmp_path: Path) -> None:
    def repeated(text: str) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(256, np.int32)), [text])

    text, names = "x" * (1 << 20), ["a"] * 256
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(3 << 21, np.float32)), 1 << 21)
    plain = tmp_path / "plain.csv"
    plain.write_text("src,dst\na,b\nb,c\n")
    for table, due in (
        ({"src": repeated(text), "dst": names}, "a name has 1048576 bytes, 'xxxxxxxxxxxxxxxxxxxx'"),
        ({"src": repeated(3 * text), "dst": names}, "row 1: has 3145729 bytes of text"),
        ({"src": ["x" * (1 << 25)], "dst": ["a"]}, "the column 'src' has"),
        ({"id": ["a", "b", "c"], "x": wide}, "has 2097152 numbers a row"),
    ):
        path = tmp_path / "small.parquet"
        # Without Arrow's own schema, readers return the column as full texts.
        pq.write_table(pa.table(table), path, compression="zstd", store_schema=False)
        assert path.stat().st_size < 100_000
        source, options = (plain, {"nodes": (str(path),)}) if "id" in table else (path, {})
        with pytest.raises(InputError, match=re.escape(due)):
            convert_to(tmp_path / "out.h5", source, "edge-list", **options)
        assert not (tmp_path / "out.h5").exists()


def test_texts_of_small_parquet_files_are_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"node{number}" * 50 for number in range(300)]
    edges = pa.table({"src": names, "dst": names[1:] + names[:1]})
    pq.write_table(edges, tmp_path / "edges.parquet", compression="zstd")
    stored = []
    for bytes_at_once in (1 << 26, 3000):
        monkeypatch.setattr("hpcgnn.convert.read.tables._BATCH_BYTES", bytes_at_once)
        out = tmp_path / f"{bytes_at_once}.h5"
        convert_to(out, tmp_path / "edges.parquet", "edge-list")
        with GraphStore.open(out) as store:
            stored.append((store.num_nodes, store.num_edges(), store.fingerprint))
    assert stored[0] == stored[1]
    assert stored[0][:2] == (300, 300)
