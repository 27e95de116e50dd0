"""A small graph, written in every format, and the contents of a store, read as a whole."""

import gzip
import json
import pickle
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from hpcgnn.convert import ConvertOptions, convert
from hpcgnn.storage import GraphStore

__all__ = ["Contents", "Little", "contents", "convert_to", "python2_pickle", "write_gz"]


@dataclass
class Contents:
    """The contents of a store: adjacency [dst, src] dense by relation, node arrays or None.

    `report` is that of the conversion, if there was one.
    """

    store: GraphStore
    adjacency: dict[str, Any]
    nodes: Any
    report: Any = None

    @property
    def matrix(self) -> Any:
        return self.adjacency[""]


def contents(path: Path) -> Contents:
    with GraphStore.open(path) as store:
        store.verify()
        n = store.num_nodes
        adjacency = {
            relation: store.read_adjacency(0, n, relation).to_scipy(n).toarray()
            for relation in store.relations
        }
        return Contents(store, adjacency, store.read_nodes(0, n))


def convert_to(out: Path, source: Path, format_name: str, **options: Any) -> Contents:
    report = convert(source, out, format_name=format_name, options=ConvertOptions(**options))
    return replace(contents(out), report=report)


def write_gz(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))
    return path


def table(rows: Any) -> str:
    return "".join(",".join(str(v) for v in np.atleast_1d(row).tolist()) + "\n" for row in rows)


def csr_files(matrix: Any) -> dict[str, Any]:
    return {
        "indptr": matrix.indptr,
        "indices": matrix.indices,
        "data": matrix.data,
        "shape": np.array(matrix.shape),
        "format": np.array(b"csr"),
    }


@dataclass
class Little:
    """Twelve nodes in a ring with chords, 5 features, 3 classes; node 10 is isolated.

    Nodes 0 to 2 train, 3 to 7 validate, 8 to 11 test: the shape that Planetoid files can express.
    """

    num_nodes: int = 12
    pairs: list[tuple[int, int]] = field(
        default_factory=lambda: [(i, (i + 1) % 10) for i in range(10)] + [(0, 5), (2, 11), (11, 7)]
    )

    @property
    def matrix(self) -> Any:
        src, dst = np.array(self.pairs).T
        ones = np.ones(2 * len(src), np.float32)
        ends = (np.concatenate([src, dst]), np.concatenate([dst, src]))
        return scipy.sparse.coo_matrix((ones, ends), shape=(12, 12)).tocsr()

    @property
    def features(self) -> Any:
        return np.random.default_rng(83).integers(0, 3, (12, 5)).astype(np.float32)

    labels = np.array([0, 1, 2, 1, 1, 0, 2, 2, 0, 1, 2, 0])
    split = np.array([1] * 3 + [2] * 5 + [3] * 4)
    parts = (("train", 1), ("valid", 2), ("test", 3))

    def nodes_of(self, code: int) -> Any:
        return np.flatnonzero(self.split == code)

    def write_planetoid(self, folder: Path, dump: Any = pickle.dumps, name: str = "lit") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        test = np.array([10, 8, 11, 9])
        x, one_hot = scipy.sparse.csr_matrix(self.features), np.eye(3, dtype=np.int32)[self.labels]
        neighbours = {i: self.matrix[[i]].indices.tolist() for i in range(12)}
        # Real files list neighbours twice, and some edges at one end only.
        neighbours[0] = [*neighbours[0], 1, 1]
        neighbours[5].remove(0)
        files = {"x": x[:3], "y": one_hot[:3], "allx": x[:8], "ally": one_hot[:8]}
        files |= {"tx": x[test], "ty": one_hot[test], "graph": neighbours}
        for suffix, value in files.items():
            (folder / f"ind.{name}.{suffix}").write_bytes(dump(value))
        (folder / f"ind.{name}.test.index").write_text(table(test))
        return folder

    def write_graphsaint(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "adj_full.npz", **csr_files(self.matrix))
        inside = scipy.sparse.diags_array((self.split == 1).astype(np.float32))
        train = scipy.sparse.csr_matrix(inside @ self.matrix @ inside)
        train.eliminate_zeros()
        np.savez(folder / "adj_train.npz", **csr_files(train))
        np.save(folder / "feats.npy", self.features)
        classes = {str(i): int(label) for i, label in enumerate(self.labels)}
        (folder / "class_map.json").write_text(json.dumps(classes))
        short = {"train": "tr", "valid": "va", "test": "te"}  # codespell:ignore te
        roles = {short[name]: self.nodes_of(code).tolist() for name, code in self.parts}
        (folder / "role.json").write_text(json.dumps(roles))
        return folder

    def write_ogb(self, folder: Path) -> Path:
        edges = np.stack(self.matrix.nonzero(), axis=1)
        write_gz(folder / "raw" / "edge.csv.gz", table(edges))
        write_gz(folder / "raw" / "num-node-list.csv.gz", "12\n")
        write_gz(folder / "raw" / "num-edge-list.csv.gz", f"{len(edges)}\n")
        write_gz(folder / "raw" / "node-feat.csv.gz", table(self.features))
        write_gz(folder / "raw" / "node-label.csv.gz", table(self.labels))
        return self.write_ogb_split(folder)

    def write_ogb_split(self, folder: Path, name: str = "time") -> Path:
        for part, code in self.parts:
            write_gz(folder / "split" / name / f"{part}.csv.gz", table(self.nodes_of(code)))
        return folder

    def write_ogb_binary(self, folder: Path) -> Path:
        (folder / "raw").mkdir(parents=True)
        np.savez_compressed(
            folder / "raw" / "data.npz",
            edge_index=np.stack(self.matrix.nonzero()),
            node_feat=self.features,
            num_nodes_list=np.array([12]),
            num_edges_list=np.array([self.matrix.nnz]),
            node_year=np.arange(12),
        )
        np.savez(folder / "raw" / "node-label.npz", node_label=self.labels[:, None].astype(float))
        return self.write_ogb_split(folder)

    def write_npz(self, path: Path) -> Path:
        masks = {f"{name}_mask": self.split == code for name, code in self.parts}
        src, dst = self.matrix.nonzero()
        np.savez(path, src=src, dst=dst, x=self.features, y=self.labels, **masks)
        return path

    def write_matrix_market(self, path: Path) -> Path:
        lines = [f"{max(i, j) + 1} {min(i, j) + 1}\n" for i, j in self.pairs]
        head = "%%MatrixMarket matrix coordinate pattern symmetric\n% a comment\n"
        path.write_text(f"{head}12 12 {len(lines)}\n" + "".join(lines))
        return path

    def write_metis(self, path: Path) -> Path:
        rows = [" ".join(str(j + 1) for j in self.matrix[[i]].indices) for i in range(12)]
        path.write_text(f"% a comment\n12 {len(self.pairs)}\n" + "".join(f"{r}\n" for r in rows))
        return path


class _Python2Pickler(pickle._Pickler):
    """Write bytes and text as Python 2 wrote its single string type."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

    def save_string(self, value: bytes | str) -> None:
        raw = value if isinstance(value, bytes) else value.encode("latin1")
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
        self.memoize(value)

    dispatch[bytes] = save_string
    dispatch[str] = save_string


def python2_pickle(value: Any) -> bytes:
    """Return the pickle that Python 2 with its NumPy and SciPy would have written."""
    import io

    stream = io.BytesIO()
    _Python2Pickler(stream, protocol=2).dump(value)
    return (
        stream.getvalue()
        .replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        .replace(b"scipy.sparse._csr", b"scipy.sparse.csr")
    )
