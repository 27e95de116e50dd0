"""Random damage to other formats: .mat, meta.yaml, GraphStorm, graph.toml, Parquet, splits.

Every case is refused in one line, or stored and compared with another reader's graph if there is
one. `python -m tests.faults.test_fuzz_formats DOOR FIRST LAST FOLDER` counts cases, each in a
separate process with limits of memory and time.
"""

import collections
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.io
import scipy.sparse

from hpcgnn.convert import ConvertOptions, convert
from hpcgnn.errors import InputError, one_line
from hpcgnn.storage import GraphStore
from tests.faults.test_fuzz import SIZES, change_json
from tests.faults.test_fuzz_doors import EDGES, NODES, TOML, damaged
from tests.support.graph_files import contents

NUM_NODES = 12
ENDS = np.stack([np.arange(NUM_NODES), (5 * np.arange(NUM_NODES) + 1) % NUM_NODES])
YAML = b"""dataset_name: shop
separator: ","
node_data:
- file_name: nodes.csv
  ntype: user
  node_id_field: id
edge_data:
- file_name: buys.csv
  etype: [user, buys, item]
  src_id_field: src
  dst_id_field: dst
"""
STORM: dict[str, Any] = {
    "version": "gconstruct-v0.1",
    "nodes": [
        {
            "node_type": "user",
            "node_id_col": "id",
            "format": {"name": "csv"},
            "files": ["nodes.csv"],
            "features": [{"feature_col": ["a", "b"], "transform": {"name": "noop"}}],
            "labels": [
                {"label_col": "label", "task_type": "classification", "split_pct": [0.8, 0.1, 0.1]}
            ],
        }
    ],
    "edges": [
        {
            "relation": ["user", "buys", "item"],
            "format": {"name": "csv"},
            "source_id_col": "src",
            "dest_id_col": "dst",
            "files": ["buys.csv"],
        }
    ],
}
WORDS_32 = (0, 1, 5, 127, 255, 65536, 2**31 - 1, 2**31, 2**32 - 1)

Generator = np.random.Generator
Case = tuple[Path, str, ConvertOptions]


def scattered(rng: Generator, content: bytes) -> bytes:
    """Return bytes of which some are replaced, removed or inserted."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 6)):
        place, kind = int(rng.integers(len(data))), rng.random()
        if kind < 0.6:
            data[place] = int(rng.integers(256))
        elif kind < 0.8:
            data[place : place + 4] = int(rng.choice(WORDS_32)).to_bytes(4, "little")
        elif kind < 0.9:
            del data[place : place + int(rng.integers(1, 9))]
        else:
            data[place:place] = rng.integers(0, 256, 4, dtype=np.uint8).tobytes()
    return bytes(data)


def write_mat(rng: Generator, folder: Path) -> Case:
    matrix = scipy.sparse.coo_matrix((np.ones(NUM_NODES), ENDS), (NUM_NODES,) * 2).tocsc()
    classes = np.arange(NUM_NODES) % 3
    values: tuple[dict[str, Any], ...] = (
        {"network": matrix, "group": scipy.sparse.csc_matrix(np.eye(3)[classes])},
        {"A": matrix, "X": np.arange(36.0).reshape(NUM_NODES, 3), "y": classes[:, None] + 1},
        {"Problem": {"A": matrix, "name": "x", "cells": np.array([1, "a"], object)}},
        {"W": matrix.toarray(), "note": "text", "label": classes[:, None] + 1},
    )
    stream = io.BytesIO()
    packed = rng.random() < 0.5
    scipy.io.savemat(stream, values[rng.integers(4)], do_compression=packed)
    path = folder / "g.mat"
    path.write_bytes(scattered(rng, stream.getvalue()))
    return path, "matlab", ConvertOptions()


def write_tables(folder: Path) -> None:
    (folder / "nodes.csv").write_bytes(NODES)
    (folder / "edges.tsv").write_bytes(EDGES)
    (folder / "buys.csv").write_bytes(b"src,dst\nu1,i1\nu2,i2\nu4,i1\n")


def write_yaml(rng: Generator, folder: Path) -> Case:
    write_tables(folder)
    (folder / "meta.yaml").write_bytes(damaged(rng, YAML))
    return folder, "dgl-csv", ConvertOptions()


def write_toml(rng: Generator, folder: Path) -> Case:
    write_tables(folder)
    (folder / "graph.toml").write_bytes(damaged(rng, TOML))
    return folder, "tables", ConvertOptions()


def write_storm(rng: Generator, folder: Path) -> Case:
    write_tables(folder)
    description = STORM
    for _ in range(rng.integers(1, 3)):
        description = change_json(rng, description)
    content = json.dumps(description).encode()
    (folder / "g.json").write_bytes(damaged(rng, content) if rng.random() < 0.4 else content)
    return folder / "g.json", "graphstorm", ConvertOptions()


def write_parquet(rng: Generator, folder: Path) -> Case:
    names = [f"u{i}" for i in range(NUM_NODES)]
    table = pa.table({"src": [names[i] for i in ENDS[0]], "dst": [names[i] for i in ENDS[1]]})
    kinds = ("none", "snappy", "zstd", "gzip")
    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream, compression=kinds[rng.integers(4)])
    path = folder / "e.parquet"
    path.write_bytes(scattered(rng, stream.getvalue()))
    return path, "edge-list", ConvertOptions()


def write_splits(rng: Generator, folder: Path) -> Case:
    """Files of Geom-GCN's splits, and lists of ids for an edge list."""
    lines = "".join(f"{a}\t{b}\n" for a, b in ENDS.T)
    if rng.random() < 0.5:
        files = []
        for number, part in enumerate(("train", "valid", "test")):
            content = b"".join(b"%d\n" % i for i in range(4 * number, 4 * number + 4))
            files.append(folder / f"{part}.txt")
            files[-1].write_bytes(damaged(rng, content) if rng.random() < 0.6 else content)
        (folder / "e.tsv").write_text(lines)
        text = ",".join(map(str, files))
        options = ConvertOptions(num_nodes=NUM_NODES, split_files=(text,))
        return folder / "e.tsv", "edge-list", options
    (folder / "out1_graph_edges.txt").write_text(f"node_id\tnode_id\n{lines}")
    nodes = "".join(f"{i}\t{i % 2},{i % 3},1\t{i % 3}\n" for i in range(NUM_NODES))
    (folder / "out1_node_feature_label.txt").write_text(f"node_id\tfeature\tlabel\n{nodes}")
    stream = io.BytesIO()
    parts = np.arange(NUM_NODES) // 4
    masks = {f"{name}_mask": parts == i for i, name in enumerate(("train", "val", "test"))}
    (np.savez_compressed if rng.random() < 0.5 else np.savez)(stream, **masks)
    (folder / "g_split_0.npz").write_bytes(scattered(rng, stream.getvalue()))
    return folder, "geom-gcn", ConvertOptions()


WRITERS: dict[str, Callable[[Generator, Path], Case]] = {
    "mat": write_mat,
    "yaml": write_yaml,
    "toml": write_toml,
    "graphstorm": write_storm,
    "parquet": write_parquet,
    "splits": write_splits,
}


def names_by_arrow(path: Path) -> set[tuple[str, str]] | None:
    """Return the edges of a Parquet file as Arrow itself reads them, None for other columns."""
    table = pyarrow.parquet.read_table(path)
    if table.column_names != ["src", "dst"]:
        return None
    words = (
        # A damaged schema may declare texts as bytes.
        [word.decode() if isinstance(word, bytes) else str(word) for word in column.to_pylist()]
        for column in table.columns
    )
    texts = [[word.strip() for word in column] for column in words]
    return set(zip(*texts, strict=True))


def check_stored(path: Path, out: Path) -> None:
    """Compare the stored graph with that of another reader, if there is one."""
    found = contents(out)
    if path.suffix == ".parquet" and (expected := names_by_arrow(path)) is not None:
        names = names_in(out)
        assert {(names[s], names[d]) for d, s in np.argwhere(found.matrix)} == expected
    elif path.is_dir() and (path / "out1_graph_edges.txt").exists():
        assert {(s, d) for d, s in np.argwhere(found.matrix)} == set(map(tuple, ENDS.T.tolist()))
    elif path.name == "e.tsv":
        assert {(s, d) for d, s in np.argwhere(found.matrix)} == set(map(tuple, ENDS.T.tolist()))
        split = found.nodes.split
        for code, part in enumerate(("train", "valid", "test"), 1):
            text = (path.parent / f"{part}.txt").read_text("utf-8-sig")
            lines = [line.strip().strip('"\ufeff') for line in text.splitlines()]
            ids = {int(line) for line in lines if line and line[0] not in "#%"}
            assert ids == set(np.flatnonzero(split == code).tolist())


def names_in(out: Path) -> list[str]:
    with GraphStore.open(out) as store:
        return list(store.names(np.arange(store.num_nodes)))


def run_case(door: str, seed: int, folder: Path) -> bool:
    """Return whether a case is stored; False if it is refused in one line."""
    folder.mkdir(exist_ok=True, parents=True)
    out = folder.parent / "out.h5"
    out.unlink(missing_ok=True)
    path, kind, options = WRITERS[door](np.random.default_rng([20261123, seed]), folder)
    try:
        convert(path, out, format_name=kind, options=options)
    except InputError as error:
        assert one_line(error).isprintable()  # noqa: PT017
        assert not out.exists()
        return False
    check_stored(path, out)
    return True


@pytest.mark.parametrize("door", WRITERS)
@pytest.mark.parametrize("count", SIZES)
def test_formats_of_others(tmp_path: Path, door: str, count: int) -> None:
    stored = sum(run_case(door, seed, tmp_path / "g") for seed in range(count))
    # Both outcomes occur: damage is refused, and harmless damage is not.
    assert 0 < stored < count


def count_cases(
    door: str, seeds: range, folder: Path, run: Callable[[str, int, Path], bool] = run_case
) -> None:
    """Print the outcomes of cases, in processes that end at 6 GiB or after 20 s."""
    counts: collections.Counter[str] = collections.Counter()
    ends = {0: "refused", 1: "ok", 2: "traceback", 3: "silent"}
    for seed in seeds:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
            try:
                status = int(run(door, seed, folder / "g"))
            except AssertionError as error:
                status = 3
                print(door, seed, "silent", str(error)[:300], file=sys.stderr)
            except BaseException as error:
                status = 2
                print(door, seed, type(error).__name__, str(error)[:300], file=sys.stderr)
            os._exit(status)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            end = "hang" if os.WTERMSIG(status) == signal.SIGALRM else "crash"
            print(door, seed, end, os.WTERMSIG(status), file=sys.stderr)
        else:
            end = ends[os.WEXITSTATUS(status)]
        counts[end] += 1
    print(door, len(seeds), dict(counts))


if __name__ == "__main__":
    count_cases(sys.argv[1], range(int(sys.argv[2]), int(sys.argv[3])), Path(sys.argv[4]))
