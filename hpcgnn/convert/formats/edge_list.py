"""Edge lists in tables, with or without relations, and node tables for any format.

Columns are identified by the names in a header, by the option `columns`, or by how many there are.
Ids are integers or arbitrary names. Names, and with `relabel` also integers, are numbered in sorted
order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from hpcgnn.comm import RankGroup
from hpcgnn.console import report
from hpcgnn.convert.divide_input import OneReaderError, SharedFiles
from hpcgnn.convert.nodes import (
    SPLIT_NAMES,
    SPLIT_PREFIXES,
    check_ids,
    check_nodes,
    split_from_indices,
)
from hpcgnn.convert.read.tables import TableFile
from hpcgnn.convert.source import ConvertOptions, EdgeStream, GraphSource, NodeArrays
from hpcgnn.convert.tables.edges import (
    USUAL,
    USUAL_TYPED,
    EdgeColumnNames,
    EdgeFiles,
    edge_chunks,
    find_classes,
    find_relations,
    first_line,
    names_relation,
    open_edges,
    open_file,
)
from hpcgnn.convert.tables.ids import Ids, Index, find_index, id_rows, place_ids
from hpcgnn.convert.tables.node_data import count_rows, read_nodes
from hpcgnn.convert.tables.nodes import node_tables
from hpcgnn.errors import InputError
from hpcgnn.typing import GlobalIndices

_TRIPLE_ENDINGS = tuple(
    f"{end}{gz}" for end in (".txt", ".tsv", ".csv", ".parquet") for gz in ("", ".gz")
)
_TRIPLES = {3: ("src", "relation", "dst")}


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read an edge list without relations; raises `InputError`."""
    table = _open(path, options, USUAL)
    with options.ranks.agree():
        if any("relation" in file.columns for file in table.files):
            raise InputError(
                "--columns: an edge list has no relation; use --format typed-edge-list"
            )
    return _read_plain(path, table, options)


def read_typed(path: Path, options: ConvertOptions) -> GraphSource:
    """Read a typed edge list in two passes, the first to find relations; raises `InputError`."""
    table = _open(path, options, USUAL_TYPED)
    _check_typed(table, options.ranks)
    return _read_plain(path, table, options)


def triple_files(folder: Path) -> dict[str, Path]:
    """Return the training, validation and test files of triples by set name; {} unless all exist.

    Their names end with that of the set, as in `train.txt`, `freebase-valid.tsv`, `test.txt.gz`.
    """
    parts: dict[str, Path] = {}
    for part, names in SPLIT_PREFIXES.items():
        endings = tuple(f"{name}{end}" for name in names for end in _TRIPLE_ENDINGS)
        files = sorted(file for file in folder.glob("*") if file.name.lower().endswith(endings))
        if len(files) == 1:
            parts[part] = files[0]
    return parts if len(parts) == len(SPLIT_PREFIXES) else {}


def read_triples(path: Path, options: ConvertOptions) -> GraphSource:
    """Read a folder with triples in three files; raises `InputError`."""
    files = options.ranks.from_first(lambda: _three_files(path))
    columns = options.take("columns")
    table = options.ranks.from_first(
        lambda: open_edges(("", "", ""), tuple(files.values()), columns, _TRIPLES)
    )
    _check_typed(table, options.ranks)
    parts = zip(table.files, files, strict=True)
    roles = tuple(replace(file, part=SPLIT_NAMES[part]) for file, part in parts)
    source = _read_plain(path, replace(table, files=roles), options)
    ignored = options.ranks.from_first(
        lambda: sorted(file.name for file in path.iterdir() if file not in files.values())
    )
    return replace(source, ignored=(*source.ignored, *ignored))


def _three_files(folder: Path) -> dict[str, Path]:
    if not (files := triple_files(folder)):
        raise InputError(
            f"{folder}: needs three files whose names end with train, valid and test, each "
            f"followed by one of {', '.join(_TRIPLE_ENDINGS)}; name others with --format "
            "typed-edge-list"
        )
    return files


def first_line_says(path: Path) -> tuple[str, str]:
    """Return the format name of an edge list, plain or typed, and the reason."""
    file = open_file(path)
    if names_relation(file):
        return "typed-edge-list", "its header names a relation"
    fields, line = file.head[0], file.header_line or first_line(file)
    if not file.header_line and len(fields) > 2 and file.numeric[0] and not file.numeric[2]:
        return "typed-edge-list", f"line {line} has a word in it"
    return "edge-list", f"line {line} has {len(fields)} fields"


def _open(path: Path, options: ConvertOptions, usual: Mapping[int, tuple[str, ...]]) -> EdgeFiles:
    paths = (path, *map(Path, options.take("more_inputs")))
    columns = options.take("columns")
    names = EdgeColumnNames(
        options.take("edge_features") or (),
        options.take("edge_labels") or (),
        options.take("edge_targets") or (),
        options.take("edge_split"),
    )
    return options.ranks.from_first(lambda: open_edges(("", "", ""), paths, columns, usual, names))


def _check_typed(table: EdgeFiles, ranks: RankGroup) -> None:
    with ranks.agree():
        if any("relation" not in file.columns for file in table.files):
            raise InputError(
                "--columns: a typed edge list needs a column called relation; name it, or give "
                "--format edge-list"
            )


def _read_plain(path: Path, edges: EdgeFiles, options: ConvertOptions) -> GraphSource:
    ranks = options.ranks
    nodes = node_tables(options)
    if ranks.moves_rows and any(table.graph >= 0 for table in nodes.tables):
        raise OneReaderError("its nodes are of many graphs")
    index = find_index(
        nodes.ids,
        edges.ends("src", "dst"),
        options,
        relabel=options.take("relabel"),
        without_ids=nodes.lack_of_ids,
    )
    named = index is not None and index.named
    nodes, edges = nodes.with_ids(named=named), edges.with_ids(named=named)
    relations: tuple[str, ...] = ("",)
    if "relation" in edges.files[0].columns:
        relations = find_relations(edges, path, ranks)
    node_data = NodeArrays()
    if nodes:
        node_data = read_nodes(nodes, index, options)
    elif index is not None:
        node_data = index.nodes()
        if ranks.rank == 0:
            _report_possible_headers(edges)
    num_nodes = options.take("num_nodes") if index is None else len(index)
    if index is None and nodes:
        num_nodes = count_rows(node_data, nodes, ranks)
    node_data = _with_split_files(node_data, index, num_nodes, options)
    edges = find_classes(edges, path, ranks)
    columns = ranks.from_first(lambda: edges.columns)

    def stream(after: int = 0, *, sample: bool = False) -> EdgeStream:
        return edge_chunks(
            edges, index, index, ranks, relations=relations, sample=sample, after=after
        )

    return GraphSource(
        path=path,
        edges=stream,
        inputs=(*(file.table.path for file in edges.files), *nodes.paths),
        relations=relations,
        num_nodes=num_nodes,
        counted=index is not None or bool(nodes),
        columns=dict.fromkeys(relations, columns),
        edge_labels=edges.labels,
        edge_feature_names=ranks.from_first(lambda: edges.feature_names),
        nodes=node_data,
        ignored=(*edges.ignored(), *nodes.ignored()),
        sample=partial(stream, sample=True),
        edges_after=stream,
    )


def _report_possible_headers(edges: EdgeFiles) -> None:
    """Report first lines that are read as edges but may be headers with unknown words."""
    for table in (file.table for file in edges.files if file.part is None):
        if not (table.header_line or table.is_parquet or any(table.numeric)):
            report(
                f"{table.path}: line {first_line(table)} counts as an edge: "
                f"{' '.join(table.head[0])}; if it is a header, give --columns src=NAME,dst=NAME"
            )


def _with_split_files(
    nodes: NodeArrays, index: Index | None, num_nodes: int | None, options: ConvertOptions
) -> NodeArrays:
    splits = dict(nodes.splits)
    for text in options.take("split_files"):
        name, _, files = text.rpartition("=")
        paths = files.split(",")
        with options.ranks.agree():
            if len(paths) != len(SPLIT_NAMES):
                raise InputError(f"--split-file {text}: give [NAME=]train.txt,valid.txt,test.txt")
            if name in splits:
                raise InputError(
                    f"--split-file {text}: there is already a split {name!r}; give it another name"
                )
            if num_nodes is None:
                raise InputError(
                    "--split-file: give the number of nodes, with --num-nodes or --nodes"
                )
        where = dict(zip(SPLIT_NAMES, paths, strict=True))
        ids = {
            part: _ids_of(Path(path), Ids(0, index, part), num_nodes, options.ranks)
            for part, path in where.items()
        }
        with options.ranks.agree():
            splits[name] = split_from_indices(ids, options.ranks.range_of(num_nodes), where)
    return replace(nodes, splits=splits)


def _ids_of(path: Path, column: Ids, num_nodes: int, ranks: RankGroup) -> GlobalIndices:
    """Return the nodes listed in a file that this rank keeps; collective."""
    # A line is one name, even if it contains spaces or commas.
    file = ranks.from_first(lambda: TableFile.open(path, frozenset(), header=False, separator="\t"))
    ids: list[GlobalIndices] = []

    def nodes_listed() -> Iterator[GlobalIndices]:
        for _, (nodes,) in place_ids(id_rows(SharedFiles([file], ranks), [column]), [[column]]):
            check_ids(nodes, num_nodes, str(path))
            yield nodes

    for nodes in ranks.rounds(nodes_listed(), lambda: np.zeros(0, np.int64)):
        ids += ranks.exchange(ranks.keepers(nodes, num_nodes), nodes)
    return np.concatenate([np.zeros(0, np.int64), *ids])


def with_nodes(source: GraphSource, options: ConvertOptions) -> GraphSource:
    """Add the node tables and split files that the options name to a graph of another format.

    Its nodes are numbered 0 to n - 1, and the ids in the tables are these numbers.
    """
    tables = node_tables(options)
    files = options.take("split_files")
    if not tables and not files:
        return source
    node_data, count = source.nodes, source.num_nodes
    counted = source.counted or (count is None and bool(tables))
    index: Index | None = None
    if tables:
        index = find_index(tables.ids, [], options, relabel=False, without_ids=tables.lack_of_ids)
        if index is not None and (index.named or index.nodes().original_id is not None):
            raise InputError(
                f"{tables.tables[0].file.path}: the nodes of {source.path} are numbered from 0; "
                "list each number once in the table, or leave out the ids"
            )
        tables = tables.with_ids(named=False)
        of_tables = read_nodes(tables, index, options)
        count = count or count_rows(of_tables, tables, options.ranks)
        if node_data.kinds or any(
            getattr(node_data, name) is not None and getattr(of_tables, name) is not None
            for name in ("features", "labels")
        ):
            raise InputError(f"--nodes: {source.path} has node data of its own; leave one out")
        check_nodes(of_tables, count, str(tables.paths[0]))
        node_data = replace(
            node_data,
            features=node_data.features or of_tables.features,
            labels=node_data.labels or of_tables.labels,
            splits={**node_data.splits, **of_tables.splits},
            graph=node_data.graph if of_tables.graph is None else of_tables.graph,
        )
    node_data = _with_split_files(node_data, index, count, options)
    inputs = (*source.inputs, *tables.paths)
    return replace(source, nodes=node_data, num_nodes=count, counted=counted, inputs=inputs)
