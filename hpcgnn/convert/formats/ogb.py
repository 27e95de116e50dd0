"""Folders of OGB node-property graphs: raw text or binary, or text with node types.

docs/formats.md lists the files. For some graphs (ogbn-products, ogbn-proteins), OGB's own loader
adds the reverse of each edge: give --undirected for these.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hpcgnn.convert.nodes import (
    SPLIT_NAMES,
    EdgeType,
    edge_ends,
    join_types,
    labelled,
    relation_names,
    split_from_indices,
)
from hpcgnn.convert.read.arrays import array_features
from hpcgnn.convert.read.edges import EdgeArrays, index_pairs
from hpcgnn.convert.read.files import MOST_GROWTH
from hpcgnn.convert.read.npy import Npz
from hpcgnn.convert.read.tables import TableFile, read_column
from hpcgnn.convert.source import (
    ConvertOptions,
    EdgeChunk,
    EdgeStream,
    Features,
    FeatureStream,
    GraphSource,
    Labels,
    NodeArrays,
    TypeRange,
    check_count,
)
from hpcgnn.errors import InputError
from hpcgnn.storage import MAX_NODE_TYPES, require_file
from hpcgnn.typing import Array

_LABELS = ("node_label", "node-label", "label", "labels")


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the OGB graph in the folder `path`, which contains `raw/`; raises `InputError`."""
    raw = path / "raw"
    if (raw / "relations").exists() or (raw / "triplet-type-list.csv.gz").exists():
        return _read_types(path, options)
    if (raw / "data.npz").exists():
        return _read_binary(path, options)
    return _read_text(path, options)


def _read_text(path: Path, options: ConvertOptions) -> GraphSource:
    raw = path / "raw"
    edges = require_file(raw / "edge.csv.gz", "give the folder that holds raw/edge.csv.gz")
    count_file = raw / "num-node-list.csv.gz"
    num_nodes = _one_graph(read_column(count_file), str(count_file))
    features, labels = raw / "node-feat.csv.gz", raw / "node-label.csv.gz"
    nodes = NodeArrays(
        features=_text_features(features) if features.exists() else None,
        splits=_splits_of(path, num_nodes, options),
        labels=_text_labels(labels) if labels.exists() else None,
    )
    used = {edges, count_file, features, labels, raw / "num-edge-list.csv.gz"}
    return GraphSource(
        path=path,
        edges=partial(_text_edges, edges),
        inputs=(edges, count_file, *(file for file in (features, labels) if file.exists())),
        num_nodes=num_nodes,
        nodes=nodes,
        ignored=tuple(sorted(file.name for file in raw.iterdir() if file not in used)),
    )


def _one_graph(counts: Array, where: str) -> int:
    if counts.size != 1 or counts.dtype.kind not in "iu" or counts.ravel()[0] < 1:
        raise InputError(
            f"{where}: must hold the number of nodes of a single graph; "
            "graph-property collections are not read"
        )
    return int(counts.ravel()[0])


def _read_binary(path: Path, options: ConvertOptions) -> GraphSource:
    npz = Npz(path / "raw" / "data.npz")
    index, features = npz.need("edge_index"), npz.get("node_feat")
    npz.get("num_edges_list")
    if (counts := npz.get("num_nodes_list", "num_nodes")) is not None:
        num_nodes = _one_graph(counts.load(), counts.where)
    elif features is not None and features.shape:
        num_nodes = features.shape[0]
    else:
        raise InputError(f"{npz.path}: the array num_nodes_list is missing; add it")
    label_file, labels = path / "raw" / "node-label.npz", None
    inputs: tuple[Path, ...] = (npz.path,)
    if label_file.exists():
        array = Npz(label_file).get(*_LABELS)
        if array is None:
            raise InputError(
                f"{label_file}: holds no array {_LABELS[0]}; save the labels under that name"
            )
        labels, inputs = labelled(array.load(), array.where), (npz.path, label_file)
    nodes = NodeArrays(
        features=None if features is None else array_features(features, options),
        splits=_splits_of(path, num_nodes, options),
        labels=labels,
    )
    return GraphSource(
        path=path,
        edges=EdgeArrays(npz.path, index.where, index.shape[-1], index_pairs(index)).chunks,
        inputs=inputs,
        num_nodes=num_nodes,
        nodes=nodes,
        ignored=npz.unused(),
    )


def _text_edges(path: Path, relation: str = "") -> EdgeStream:
    """Yield the edges of a file of two columns, source and target."""
    for table in TableFile.plain(path, 2, ",").blocks({0: "integer", 1: "integer"}):
        ends = table.integers(0), table.integers(1)
        yield EdgeChunk(*ends, table.locate, relation=relation)


def _text_rows(path: Path, dtype: DTypeLike) -> tuple[int, Callable[[], FeatureStream]]:
    """Return the number of columns of a file of numbers, and a function that streams its rows."""
    file = TableFile.open(path, frozenset(), header=False, separator=",")
    columns = range(len(file.names))

    def blocks() -> FeatureStream:
        for table in file.blocks(dict.fromkeys(columns, "number")):
            yield np.stack([table.numbers(column) for column in columns], axis=1).astype(dtype)

    return len(columns), blocks


def _text_features(path: Path) -> Features:
    columns, blocks = _text_rows(path, np.float32)
    return Features(columns, np.dtype(np.float32), blocks, lambda row: f"{path}: line {row + 1}")


def _text_labels(path: Path) -> Labels:
    columns, blocks = _text_rows(path, np.float64)
    return labelled(np.concatenate([np.zeros((0, columns)), *blocks()]), str(path))


def _splits_of(path: Path, num_nodes: int, options: ConvertOptions) -> dict[str, NDArray[np.uint8]]:
    folders = _split_folders(path, options)
    return {name: _split_in(folder, num_nodes) for name, folder in folders.items()}


def _split_folders(path: Path, options: ConvertOptions) -> dict[str, Path]:
    """Return the folder of each split that the option `split` selects, by name."""
    parent = path / "split"
    if not parent.is_dir():
        return {}
    names = sorted(child.name for child in parent.iterdir() if child.is_dir())
    splits = options.take_split(names, str(parent))
    folders = {name: parent / split_folder for name, split_folder in splits.items()}
    for folder in folders.values():
        if (folder / "split_dict.pt").exists():
            raise InputError(
                f"{folder / 'split_dict.pt'}: is a torch pickle, which is not read because it "
                "could execute code; save its arrays there as train.csv.gz, valid.csv.gz and "
                "test.csv.gz"
            )
    return folders


def _split_in(folder: Path, num_nodes: int) -> NDArray[np.uint8]:
    """Return the split from the node ids in a folder's train, valid and test files."""
    files = {part: folder / f"{part}.csv.gz" for part in SPLIT_NAMES}
    ids = {part: read_column(file) for part, file in files.items()}
    return split_from_indices(ids, num_nodes, {part: str(file) for part, file in files.items()})


def _read_types(path: Path, options: ConvertOptions) -> GraphSource:
    raw = path / "raw"
    counts = _counts(raw / "num-node-dict.csv.gz")
    names = relation_names(_edge_types(raw / "triplet-type-list.csv.gz", counts))
    files = {
        name: require_file(raw / "relations" / "___".join(edge_type) / "edge.csv.gz")
        for edge_type, name in names.items()
    }
    parts, inputs = _parts(path, counts, options)
    return GraphSource(
        path=path,
        edges=partial(_edges, files, edge_ends(names, counts)),
        inputs=(*files.values(), *inputs),
        relations=tuple(files),
        num_nodes=sum(counts.values()),
        nodes=join_types(parts, counts, str(path)),
        ignored=_ignored(raw),
    )


def _edges(files: dict[str, Path], ends: dict[str, tuple[TypeRange, TypeRange]]) -> EdgeStream:
    for relation, file in files.items():
        for chunk in _text_edges(file, relation):
            yield chunk.between(*ends[relation])


def _rows(file: TableFile) -> list[tuple[str, ...]]:
    columns = range(len(file.names))
    rows: list[tuple[str, ...]] = []
    for table in file.blocks(dict.fromkeys(columns, "text")):
        rows += zip(*(table.words(column) for column in columns), strict=True)
    return rows


def _by_type(path: Path) -> dict[str, str]:
    """Map the type names in the first line of a file to the values in its second."""
    rows = _rows(TableFile.open(path, frozenset(), header=False, separator=","))
    if len(rows) != 2 or len(set(rows[0])) != len(rows[0]):
        raise InputError(
            f"{path}: has {len(rows)} lines; a line of distinct type names and a line of their "
            "values are expected (collections of graphs are not read)"
        )
    return dict(zip(*rows, strict=True))


def _counts(path: Path) -> dict[str, int]:
    require_file(path, "give the folder that holds raw/num-node-dict.csv.gz")
    counts = {}
    values = _by_type(path)
    check_count(len(values), MAX_NODE_TYPES, "node types", str(path))
    for name, text in values.items():
        if not text.isdecimal():
            raise InputError(f"{path}: the number of nodes of {name!r} is {text!r}; correct it")
        # 19 digits already exceed the bound below, and Python refuses to parse very long numbers.
        counts[name] = int(text[:19])
    num_bytes = sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file())
    if sum(counts.values()) > num_bytes * MOST_GROWTH:
        raise InputError(
            f"{path}: says that there are {sum(counts.values())} nodes, but all files beside it "
            f"have {num_bytes} bytes; correct it"
        )
    return counts


def _edge_types(path: Path, counts: dict[str, int]) -> list[EdgeType]:
    types = [(row[0], row[1], row[2]) for row in _rows(TableFile.plain(path, 3, ","))]
    for source, relation, target in types:
        for name in (source, target):
            if name not in counts:
                raise InputError(
                    f"{path}: the edge type {source},{relation},{target} has nodes of the type "
                    f"{name!r}; num-node-dict.csv.gz has only {', '.join(counts)}"
                )
    if not types or len(set(types)) != len(types):
        raise InputError(f"{path}: must name distinct edge types, one on each line")
    return types


def _parts(
    path: Path, counts: dict[str, int], options: ConvertOptions
) -> tuple[dict[str, NodeArrays], list[Path]]:
    raw, folders = path / "raw", _split_folders(path, options)
    feature_files, label_files = _files(raw, "feat", counts), _files(raw, "label", counts)
    split_types = {
        split: _named(folder / "nodetype-has-split.csv.gz", counts)
        | {name for name in counts if (folder / name).is_dir()}
        for split, folder in folders.items()
    }
    parts = {}
    for name, count in counts.items():
        features, labels = feature_files.get(name), label_files.get(name)
        parts[name] = NodeArrays(
            features=None if features is None else _text_features(features),
            splits={
                split: _split_in(folder / name, count)
                for split, folder in folders.items()
                if name in split_types[split]
            },
            labels=None if labels is None else _text_labels(labels),
        )
    return parts, [*feature_files.values(), *label_files.values()]


def _files(raw: Path, kind: str, counts: dict[str, int]) -> dict[str, Path]:
    """Return the feature or label file of each type that has one; raise if a listed one is gone."""
    flags = raw / f"nodetype-has-{kind}.csv.gz"
    named = _named(flags, counts)
    files = {name: raw / f"node-{kind}" / name / f"node-{kind}.csv.gz" for name in counts}
    return {
        name: require_file(file, f"{flags.name} says that there is one")
        for name, file in files.items()
        if name in named or file.exists()
    }


def _named(flags: Path, counts: dict[str, int]) -> set[str]:
    if not flags.exists():
        return set()
    named = {name for name, flag in _by_type(flags).items() if flag == "True"}
    if unknown := named - set(counts):
        raise InputError(f"{flags}: names the type {unknown.pop()!r}, which has no nodes")
    return named


def _ignored(raw: Path) -> tuple[str, ...]:
    """Return the files with node and edge data that a store has no place for."""
    stems = {"edge", "num-edge-list", "node-feat", "node-label"}
    files = [
        file.relative_to(raw).as_posix()
        for folder in ("relations", "node-feat", "node-label")
        for file in (raw / folder).glob("*/*")
        if file.name.removesuffix(".csv.gz") not in stems
    ]
    return tuple(sorted(files))
