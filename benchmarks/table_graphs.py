"""The graphs of the table of peers, made from `table_graphs.toml` as stores and arrays."""

import hashlib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.spmm_graphs import DEBIAN_RELATIONS, SEED, Matrix, load_matrix
from hpcgnn.errors import InputError
from hpcgnn.gallery import debian_packages
from hpcgnn.gallery.communities import dcsbm
from hpcgnn.storage import GraphArrays, Split, store_from_arrays

__all__ = ["RELATIONS", "TableGraph", "make_graph", "names", "open_graph"]

RELATIONS = 4
"""Number of relations for R-GCN, drawn at random for graphs without relations."""
SPARSE_UP_TO = 0.12
"""The density up to which `hpcgnn convert` keeps features sparse."""
_CLOSE, _TRIES = 0.005, 12
_DESCRIPTIONS = Path(__file__).with_name("table_graphs.toml")


@dataclass(frozen=True, eq=False)
class TableGraph:
    """A graph with features and labels.

    `features` are (N, F) float32, as SciPy CSR if few are non-zero; `labels` are (N,) classes or
    (N, C) zeros and ones; `relations` (entries,) uint8 are equal for both directions of an edge;
    `store` is the file that hpcgnn reads.
    """

    matrix: Matrix
    features: Any
    labels: Any
    num_classes: int
    relations: Any
    store: Path

    @property
    def dense(self) -> Any:
        """The features as an array."""
        return self.features.toarray() if sparse.issparse(self.features) else self.features

    @property
    def input_bytes(self) -> int:
        """Bytes of the inputs of an epoch: neighbours in 4 bytes, features, and labels."""
        x = self.features
        kept = (x.data, x.indices, x.indptr) if sparse.issparse(x) else (x,)
        return sum(a.nbytes for a in (self.matrix.indptr, self.matrix.indices, self.labels, *kept))


def names() -> list[str]:
    """Return the graphs of the table."""
    return [name for name, about in _described().items() if "warms_up" not in about]


def _described() -> dict[str, dict[str, Any]]:
    return tomllib.loads(_DESCRIPTIONS.read_text(encoding="utf-8"))


def _folder(name: str, folder: Path) -> Path:
    described = _described()
    if name not in described:
        raise InputError(f"--graphs: no {name!r}; there are {', '.join(described)}")
    text = json.dumps([described[name], SEED, RELATIONS, SPARSE_UP_TO], sort_keys=True)
    return folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def make_graph(name: str, folder: Path) -> None:
    """Write a graph if it does not exist yet."""
    where = _folder(name, folder)
    if (where / "arrays.npz").exists():
        return
    where.mkdir(parents=True, exist_ok=True)
    about = _described()[name]
    rng = np.random.default_rng([SEED, 2])
    matrix, relations = _edges(about, rng)
    features = _features(matrix.num_nodes, about, rng)
    count = about["classes"]
    shape: Any = (matrix.num_nodes, count) if "labels" in about else matrix.num_nodes
    labels = rng.integers(0, 2 if "labels" in about else count, shape)
    labels = labels.astype(np.uint8 if "labels" in about else np.int32)
    _write_store(where / "graph.h5", name, matrix, relations, features, labels, count)
    few = sparse.issparse(features)
    parts = {key: getattr(features, key) for key in ("data", "indices", "indptr")} if few else {}
    np.savez(
        where / "arrays.npz",
        indptr=matrix.indptr,
        indices=matrix.indices,
        relations=relations,
        labels=labels,
        sizes=[count, about["features"]],
        **({f"features_{key}": each for key, each in parts.items()} if few else {"x": features}),
    )


def open_graph(name: str, folder: Path) -> TableGraph:
    """Return a graph written by `make_graph`."""
    where = _folder(name, folder)
    with np.load(where / "arrays.npz") as found:
        parts = {key: found[key] for key in found.files}
    num_nodes, (classes, width) = len(parts["indptr"]) - 1, parts["sizes"].tolist()
    ones = np.ones(len(parts["indices"]), np.float32)
    matrix = Matrix(name, num_nodes, parts["indptr"], parts["indices"], ones)
    features = parts.get("x")
    if features is None:
        kept = tuple(parts[f"features_{key}"] for key in ("data", "indices", "indptr"))
        features = sparse.csr_matrix(kept, shape=(num_nodes, width))
    store = where / "graph.h5"
    return TableGraph(matrix, features, parts["labels"], classes, parts["relations"], store)


def _edges(about: dict[str, Any], rng: np.random.Generator) -> tuple[Matrix, Any]:
    """Return the pattern and the relation of every entry."""
    if "matrix" not in about:
        pattern = _drawn(about)
    elif about["matrix"] == "debian":
        pattern = _debian()
    else:
        known = load_matrix(about["matrix"])
        shape = (known.num_nodes, known.num_nodes)
        pattern = sparse.csr_matrix((known.values, known.indices, known.indptr), shape=shape)
    pattern.sort_indices()
    m = Matrix(
        "",
        pattern.shape[0],
        pattern.indptr.astype(np.int64),
        pattern.indices.astype(np.int32),
        np.ones(pattern.nnz, np.float32),
    )
    if about.get("matrix") == "debian":
        return m, (pattern.data - 1).astype(np.uint8)
    rows = np.repeat(np.arange(m.num_nodes, dtype=np.int64), np.diff(m.indptr))
    columns = m.indices.astype(np.int64)
    pairs = np.minimum(rows, columns) * m.num_nodes + np.maximum(rows, columns)
    _, numbers = np.unique(pairs, return_inverse=True)
    drawn = rng.integers(0, RELATIONS, numbers.max(initial=-1) + 1)
    return m, drawn[numbers].astype(np.uint8)


def _drawn(about: dict[str, Any]) -> Any:
    """Return a symmetric pattern with power-law degrees and about as many entries as published."""
    divide = about.get("divide", 1)
    nodes, wanted = about["nodes"] // divide, about["entries"] // divide
    degree, blocks = wanted / nodes, np.zeros(nodes, np.int32)
    for _ in range(_TRIES):
        graph = dcsbm(
            blocks, SEED, mean_degree=degree, mixing=1.0, exponent=about.get("exponent", 2.5)
        )
        found = graph.src.size
        if abs(found - wanted) <= _CLOSE * wanted:
            break
        # Edges drawn twice count once.
        degree *= wanted / found
    return graph.to_scipy()


def _debian() -> Any:
    """Return a pattern whose values are relation numbers, from 1."""
    graph, total = debian_packages(), None
    for number, relation in enumerate(DEBIAN_RELATIONS, start=1):
        part = graph.to_scipy(relation)
        part = ((part + part.T) != 0).astype(np.int64) * number
        # An edge in several relations belongs to the first of them.
        total = part if total is None else total + part - part.multiply(total != 0)
    total = sparse.csr_matrix(total)
    total.setdiag(0)
    total.eliminate_zeros()
    return total


def _features(num_nodes: int, about: dict[str, Any], rng: np.random.Generator) -> Any:
    width, density = about["features"], about["density"]
    if density > SPARSE_UP_TO:
        x = rng.standard_normal((num_nodes, width), np.float32)
        if density < 1:
            x *= rng.random(x.shape, np.float32) < density
        return x
    x = sparse.random(num_nodes, width, density, "csr", np.float32, rng)
    x.sort_indices()
    return x


def _write_store(
    path: Path, name: str, m: Matrix, relations: Any, features: Any, labels: Any, classes: int
) -> None:
    rows = np.repeat(np.arange(m.num_nodes, dtype=np.int64), np.diff(m.indptr))
    columns = m.indices.astype(np.int64)
    chosen = [(relations == number) & (rows < columns) for number in range(RELATIONS)]
    edges = {f"r{number}": (columns[each], rows[each]) for number, each in enumerate(chosen)}
    split = np.full(m.num_nodes, Split.TRAIN, np.uint8)
    few = sparse.issparse(features)
    store_from_arrays(
        path,
        GraphArrays(
            name=name,
            num_nodes=m.num_nodes,
            edges=edges,
            features=features.toarray() if few else features,
            sparse_features=few,
            labels=labels,
            split=split,
            num_classes=classes,
            undirected=True,
        ),
    )
