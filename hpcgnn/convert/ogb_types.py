"""Folders of OGB graphs with node types, as ogbn-mag is published.

In `raw/`: `num-node-dict.csv.gz` has a line of type names and a line of their numbers of nodes;
`triplet-type-list.csv.gz` a line `source,relation,target` for each edge type, whose edges are in
`relations/SOURCE___RELATION___TARGET/edge.csv.gz`; features and labels are in
`node-feat/TYPE/node-feat.csv.gz` and `node-label/TYPE/node-label.csv.gz`. The split is
`split/NAME/TYPE/{train,valid,test}.csv.gz`. Where a file `nodetype-has-{feat,label,split}.csv.gz`
names a type, the type's own file must be there.
"""

from functools import partial
from pathlib import Path

from hpcgnn.convert.files import require_file
from hpcgnn.convert.node_types import (
    EdgeType,
    TypeRange,
    join_types,
    relation_names,
    type_ranges,
    with_all_nodes,
)
from hpcgnn.convert.nodes import labelled
from hpcgnn.convert.npy import decode_texts
from hpcgnn.convert.ogb_text import (
    split_folder,
    split_in,
    text_edges,
    text_features,
    text_labels,
)
from hpcgnn.convert.source import ConvertOptions, EdgeStream, GraphSource, Nodes
from hpcgnn.convert.text_reader import read_tables
from hpcgnn.errors import InputError

__all__ = ["read_types"]


def read_types(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the OGB graph with node types in the folder `path`; raises `InputError`."""
    raw = path / "raw"
    counts = _counts(raw / "num-node-dict.csv.gz")
    names = relation_names(_edge_types(raw / "triplet-type-list.csv.gz", counts))
    ranges = type_ranges(counts)
    files = {
        name: (
            require_file(raw / "relations" / "___".join(each) / "edge.csv.gz"),
            ranges[each[0]],
            ranges[each[2]],
        )
        for each, name in names.items()
    }
    parts, inputs = _parts(path, counts, options)
    edge_files = tuple(file for file, _, _ in files.values())
    return GraphSource(
        path=path,
        edges=partial(_edges, files),
        inputs=(*edge_files, *inputs),
        relations=tuple(files),
        num_nodes=sum(counts.values()),
        nodes=join_types(parts, counts, str(path)),
        ignored=_ignored(raw),
    )


def _edges(files: dict[str, tuple[Path, TypeRange, TypeRange]]) -> EdgeStream:
    for relation, (file, source, target) in files.items():
        for chunk in text_edges(file, relation):
            yield with_all_nodes(chunk, source, target)


def _rows(path: Path, columns: int | None = None) -> list[list[str]]:
    rows: list[list[str]] = []
    for table in read_tables(path, columns):
        width = range(table.starts.shape[1])
        fields = [decode_texts(table.texts(column), str(path)) for column in width]
        rows += [list(row) for row in zip(*fields, strict=True)]
    return rows


def _by_type(path: Path) -> dict[str, str]:
    """Return the values of the one line below the line of type names."""
    rows = _rows(path)
    if len(rows) != 2 or len(set(rows[0])) != len(rows[0]):
        raise InputError(
            f"{path}: has {len(rows)} lines; a line of different type names and one of their "
            "values are due (collections of graphs are not read)"
        )
    return dict(zip(*rows, strict=True))


def _counts(path: Path) -> dict[str, int]:
    require_file(path, "give the folder that holds raw/num-node-dict.csv.gz")
    counts = {}
    for name, text in _by_type(path).items():
        if not text.isdecimal():
            raise InputError(f"{path}: the number of nodes of {name!r} is {text!r}; correct it")
        counts[name] = int(text)
    return counts


def _edge_types(path: Path, counts: dict[str, int]) -> list[EdgeType]:
    types = [(source, relation, target) for source, relation, target in _rows(path, 3)]
    for each in types:
        for name in (each[0], each[2]):
            if name not in counts:
                raise InputError(
                    f"{path}: the edge type {','.join(each)} has nodes of the type {name!r}, which "
                    f"num-node-dict.csv.gz does not name: {', '.join(counts)}"
                )
    if not types or len(set(types)) != len(types):
        raise InputError(f"{path}: must name different edge types, one on each line")
    return types


def _parts(
    path: Path, counts: dict[str, int], options: ConvertOptions
) -> tuple[dict[str, Nodes], list[Path]]:
    raw, split = path / "raw", split_folder(path, options)
    feature_files = _files(raw / "nodetype-has-feat.csv.gz", counts, raw, "node-feat")
    label_files = _files(raw / "nodetype-has-label.csv.gz", counts, raw, "node-label")
    split_types = set()
    if split is not None:
        split_types = _named(split / "nodetype-has-split.csv.gz", counts)
        split_types |= {name for name in counts if (split / name).is_dir()}
    parts = {}
    for name, count in counts.items():
        features, labels = feature_files.get(name), label_files.get(name)
        parts[name] = Nodes(
            features=None if features is None else text_features(features),
            split=split_in(split / name, count) if split and name in split_types else None,
            **({} if labels is None else labelled(text_labels(labels), str(labels))),
        )
    return parts, [*feature_files.values(), *label_files.values()]


def _files(flags: Path, counts: dict[str, int], raw: Path, kind: str) -> dict[str, Path]:
    """Return the file `raw/KIND/TYPE/KIND.csv.gz` of each type that has one or should have one."""
    named = _named(flags, counts)
    files = {name: raw / kind / name / f"{kind}.csv.gz" for name in counts}
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
    """Return the files that hold more of nodes and edges than a store has a place for."""
    known = {"edge", "num-edge-list", "node-feat", "node-label"}
    found = [
        file.relative_to(raw).as_posix()
        for folder in ("relations", "node-feat", "node-label")
        for file in (raw / folder).glob("*/*")
        if file.name.removesuffix(".csv.gz") not in known
    ]
    return tuple(sorted(found))
