"""Stream a graph that was read into a store: edges first, sorted out of core, then node data."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.console import Progress
from hpcgnn.convert.nodes import check_nodes
from hpcgnn.convert.source import (
    ConvertOptions,
    EdgeChunk,
    Features,
    GraphSource,
    NodeKind,
    Nodes,
    first_fault,
)
from hpcgnn.convert.splits import random_split
from hpcgnn.convert.symmetry import SymmetryCheck
from hpcgnn.convert.tables.graphs import with_graphs
from hpcgnn.errors import InputError
from hpcgnn.storage import EdgeBuilder, EdgeColumns, EdgeData, Split, StoreHeader, StoreWriter
from hpcgnn.typing import Array

_NODE_ROWS = 1 << 20
_QUIET_BELOW_ROWS = 200_000
_NODES_PER_EDGE, _FEW_EDGES = 16, 1000
_FEATURE_DTYPES = ("float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Report:
    """What was written: `edges` counts stored non-zeros, `input_edges` the edges that were read.

    `zero_edges` were left out for their weight 0; `self_loops` counts those that were read;
    `columns` are what the edges of a relation have, `link_split` the edges of each role in it;
    `ignored` names what the store has no place for, and `missing` what training needs besides, with
    the option that supplies it. `targets` is the file of numbers to predict, and `num_graphs` 0 for
    one graph. `num_features` is 0 for a graph with `node_types`, each of which has its own.
    """

    path: Path
    header: StoreHeader
    num_features: int
    node_types: tuple[NodeKind, ...]
    edges: Mapping[str, int]
    input_edges: int
    zero_edges: int
    self_loops: int
    splits: Mapping[str, Mapping[str, int]]
    columns: Mapping[str, EdgeColumns]
    link_split: Mapping[str, int]
    ignored: tuple[str, ...]
    missing: Mapping[str, str]
    targets: Path | None = None
    num_graphs: int = 0

    @property
    def split(self) -> Mapping[str, int]:
        """The sizes of the sets of the first split, none without any."""
        return next(iter(self.splits.values()), {})


def write_store(
    source: GraphSource, out: Path, options: ConvertOptions, format_name: str
) -> Report:
    """Write `source`, read as `format_name`, to the store `out`, with a note of where it came from.

    An earlier file at `out` stays whole until the new one is complete. Raises `InputError` for
    faulty input.
    """
    if source.nodes.features is not None or any(kind.features for kind in source.nodes.kinds):
        options.take("dtype")
    source = replace(source, nodes=with_graphs(source.nodes, options))
    makes_split = options.take("random_split") is not None
    if makes_split:
        options.take("split_seed")
        options.take("per_class")
    options.check_used(str(source.path))
    with ExitStack() as stack:
        builders = {
            relation: stack.enter_context(_edge_builder(source, relation, options))
            for relation in source.relations
        }
        feed = EdgeFeed(source, options)
        feed.run(builders)
        num_nodes = source.num_nodes
        if num_nodes is None:
            num_nodes = max(builder.num_nodes for builder in builders.values())
            _check_density(source.path, num_nodes, feed.num_edges)
        nodes = _with_split(source.nodes, num_nodes, options) if makes_split else source.nodes
        header = StoreHeader(
            name=options.name or _default_name(source.path),
            num_nodes=num_nodes,
            num_classes=0 if nodes.labels is None else nodes.labels.num_classes,
            multi_label=nodes.labels is not None and nodes.labels.multi_label,
            undirected=feed.undirected,
            class_names=() if nodes.labels is None else nodes.labels.class_names,
            node_types=tuple(kind.name for kind in nodes.kinds),
            splits=_split_names(nodes),
            provenance={
                "command": "convert",
                "format": format_name,
                "inputs": [file.name for file in source.inputs],
                "options": options.given(),
            },
        )
        check_nodes(nodes, num_nodes, str(source.path))
        with StoreWriter(out, header) as writer:
            edges = {
                relation: _write_edges(builder, writer, relation, source.path)
                for relation, builder in builders.items()
            }
            _write_nodes(writer, nodes, options)
    targets = None
    if source.targets is not None:
        targets = out.with_name(f"{out.stem}-targets.npy")
        _write_targets(targets, source.targets)
    replaced = ("the split of the input, replaced by --random-split",)
    return Report(
        out,
        header,
        0 if nodes.features is None else nodes.features.num_columns,
        nodes.kinds,
        edges,
        feed.num_edges,
        feed.num_zero,
        feed.num_loops,
        {name: _split_sizes(split) for name, split in nodes.splits.items()},
        source.columns,
        feed.link_split,
        source.ignored + (replaced if makes_split and source.nodes.splits else ()),
        _missing(nodes, targets),
        targets,
        0 if nodes.graph is None else len(np.unique(nodes.graph)),
    )


def _check_density(path: Path, num_nodes: int, num_edges: int) -> None:
    """Raise `InputError` where ids, not edges, would decide about the size of the store."""
    if num_nodes > _NODES_PER_EDGE * (num_edges + _FEW_EDGES):
        raise InputError(
            f"{path}: the largest id is {num_nodes - 1} in {num_edges} edges, and a store has a "
            "row for each number up to it; give --relabel to number the ids that occur, or "
            f"--num-nodes {num_nodes} to keep them"
        )


def _with_split(nodes: Nodes, num_nodes: int, options: ConvertOptions) -> Nodes:
    """Return the nodes with a random split in place of any other."""
    check_nodes(nodes, num_nodes, "the input")
    assert options.random_split is not None
    labels = None if nodes.labels is None else nodes.labels.values
    owners = np.arange(num_nodes)
    if nodes.graph is not None:
        _, first, owners = np.unique(nodes.graph, return_index=True, return_inverse=True)
        labels = None if labels is None else labels[first]
    split = random_split(
        labels,
        int(owners.max()) + 1,
        options.random_split,
        seed=options.split_seed or 0,
        per_class=options.per_class,
    )
    return replace(nodes, splits={"": split[owners]})


def _write_targets(path: Path, targets: Array) -> None:
    try:
        np.save(path, targets)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def _missing(nodes: Nodes, targets: Path | None) -> dict[str, str]:
    """Return what the store lacks for training, with what supplies it."""
    missing = {}
    if nodes.features is None and not nodes.kinds:
        # Types without features have learned vectors.
        ways = "--nodes FILE with numbers; or train with graph.structure or model.embeddings"
        missing["features"] = ways
    if nodes.labels is None and targets is None:
        missing["labels"] = "--nodes FILE with a column label"
    if not nodes.splits:
        missing["split"] = "--random-split 60,20,20, or --nodes FILE with a column split"
    return missing


def _edge_builder(source: GraphSource, relation: str, options: ConvertOptions) -> EdgeBuilder:
    # Most of it is for finding names.
    share = len(source.relations) * (1 if source.nodes.names is None else 4)
    with _naming(source.path):
        return EdgeBuilder(
            source.num_nodes,
            undirected=options.undirected or source.undirected,
            self_loops=options.self_loops,
            duplicates=options.duplicates,
            columns=source.columns.get(relation, EdgeColumns()),
            memory_bytes=options.memory_bytes // share,
        )


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the name of the input before what `storage` finds wrong with its content."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _default_name(path: Path) -> str:
    """Return the name of a folder, or of a file without its endings."""
    return path.resolve().name.removeprefix("ind.").removeprefix("pyg:").split(".")[0] or "graph"


def _progress(text: str, rows: int) -> Progress:
    return Progress(text, rows, "rows", quiet=rows < _QUIET_BELOW_ROWS)


def _write_edges(builder: EdgeBuilder, writer: StoreWriter, relation: str, path: Path) -> int:
    rows = writer.header.num_nodes
    text = f"writing edges {relation}".rstrip()
    with _progress(text, rows) as progress, _naming(path):
        return builder.write(writer, relation, progress.advance)


def _write_nodes(writer: StoreWriter, nodes: Nodes, options: ConvertOptions) -> None:
    num_nodes = writer.header.num_nodes
    if nodes.features is not None:
        _write_features(writer.append_features, nodes.features, num_nodes, options)
    arrays = nodes.arrays()
    if nodes.kinds:
        types = arrays.pop("types", None)
        ends = np.cumsum([kind.num_nodes for kind in nodes.kinds])
        for rows in _row_ranges(num_nodes):
            by_kind = np.searchsorted(ends, np.arange(rows.start, rows.stop), side="right")
            writer.append_types(by_kind if types is None else types[rows])
        for kind in nodes.kinds:
            if kind.features is not None:
                append = partial(writer.append_type_features, kind.name)
                _write_features(append, kind.features, kind.num_nodes, options)
    appends = {
        "labels": writer.append_labels,
        "original_id": writer.append_original_id,
        "graph": writer.append_graph,
    }
    for name in sorted(appends.keys() & arrays.keys()):
        for rows in _row_ranges(num_nodes):
            appends[name](arrays[name][rows])
    for name, split in zip(_split_names(nodes) or ("",), nodes.splits.values(), strict=False):
        for rows in _row_ranges(num_nodes):
            writer.append_split(split[rows], name)
    for offsets, data in nodes.names() if nodes.names is not None else ():
        writer.append_names(offsets, data)


def _split_names(nodes: Nodes) -> tuple[str, ...]:
    """Return the names of the splits, none where there is one without a name or none at all."""
    return () if set(nodes.splits) <= {""} else tuple(name or "default" for name in nodes.splits)


def _row_ranges(num_nodes: int) -> Iterator[slice]:
    for first in range(0, num_nodes, _NODE_ROWS):
        yield slice(first, min(first + _NODE_ROWS, num_nodes))


def _write_features(
    append: Callable[[Array], None], features: Features, num_nodes: int, options: ConvertOptions
) -> None:
    kept = features.dtype.name if features.dtype.name in _FEATURE_DTYPES else "float32"
    dtype = np.dtype(options.dtype or kept)
    done = 0
    if num_nodes == 0:
        # A node type without nodes keeps its columns.
        append(np.empty((0, features.num_columns), dtype))
    with _progress("writing features", num_nodes) as progress, closing(features.blocks()) as blocks:
        for block in blocks:
            rows = _finite_rows(block, dtype, features, done)
            done += len(rows)
            if done > num_nodes:
                break
            append(rows)
            progress.advance(len(rows))
    if done != num_nodes:
        count = "more" if done > num_nodes else f"only {done}"
        raise InputError(
            f"{features.locate(min(done, num_nodes))}: there are {count} "
            f"feature rows for {num_nodes} nodes; give one row a node"
        )


def _finite_rows(block: Array, dtype: np.dtype[Any], features: Features, first: int) -> Array:
    with np.errstate(over="ignore"):
        rows = block.astype(dtype, copy=False)
    finite = np.isfinite(rows)
    if not finite.all():
        row, column = (int(i) for i in np.unravel_index(np.argmin(finite), rows.shape))
        raise InputError(
            f"{features.locate(first + row)}: the feature in column {column + 1} is "
            f"{rows[row, column]} as {dtype}; replace it by a finite number"
        )
    return rows


def _split_sizes(split: Array) -> dict[str, int]:
    return _named_sizes(np.bincount(split, minlength=len(Split)))


def _named_sizes(counts: Array) -> dict[str, int]:
    return {part.name.lower(): int(counts[part]) for part in Split if part != Split.NONE}


_LARGEST_ID = (1 << 32) - 1
"""The largest id that `EdgeBuilder` sorts."""


class EdgeFeed:
    """One pass over the edges of `source`.

    Afterwards `num_edges` counts the edges read, `num_zero` those left out because their weight is
    0 (a zero is no entry of the adjacency), `num_loops` those of the others from a node to itself,
    and `undirected` tells whether every edge that is stored has its reverse.
    """

    def __init__(self, source: GraphSource, options: ConvertOptions) -> None:
        self._source, self._reverse = source, options.reverse
        self._made_undirected = options.undirected or source.undirected
        weighted = any(each.weighted for each in source.columns.values())
        # Which of several unequal weights is the first may differ between a pair and its reverse.
        self._watches = not self._made_undirected and not (
            weighted and options.duplicates == "first"
        )
        self._symmetry = SymmetryCheck()
        self.num_edges = 0
        self.num_zero = 0
        self.num_loops = 0
        self._roles = np.zeros(len(Split), np.int64)

    @property
    def link_split(self) -> dict[str, int]:
        """The edges of each role, where links have a split."""
        return {} if not self._roles.any() else _named_sizes(self._roles)

    @property
    def undirected(self) -> bool:
        """Whether the adjacency that is stored equals its transpose."""
        return self._made_undirected or (self._watches and self._symmetry.symmetric)

    def run(self, builders: Mapping[str, EdgeBuilder]) -> None:
        """Read all edges; raises `InputError` that names the place of a faulty one."""
        # Closed at once on an error, so that the reader's progress display ends before the message.
        with closing(self._source.edges()) as chunks:
            for chunk in chunks:
                self._add(chunk, builders[chunk.relation])
        if self.num_edges == 0:
            raise InputError(f"{self._source.path}: the graph has no edges; check the input")

    def _add(self, chunk: EdgeChunk, builder: EdgeBuilder) -> None:
        limit = _LARGEST_ID if self._source.num_nodes is None else self._source.num_nodes - 1
        remedy = "number the nodes from 0"
        if limit == _LARGEST_ID:
            remedy += ", or give an edge list with --relabel"
        chunk.check_ends((limit, limit), remedy)
        src, dst = (chunk.dst, chunk.src) if self._reverse else (chunk.src, chunk.dst)
        columns = self._source.columns.get(chunk.relation, EdgeColumns())
        weights = _finite_weights(chunk) if columns.weighted else None
        data = _finite_data(chunk)
        self.num_edges += len(src)
        if weights is not None and not weights.all():
            kept = weights != 0
            self.num_zero += len(kept) - int(kept.sum())
            src, dst, weights, data = src[kept], dst[kept], weights[kept], data.take(kept)
        if data.split is not None:
            self._roles += np.bincount(data.split, minlength=len(Split))
        self.num_loops += int(np.count_nonzero(src == dst))
        _check_within_graphs(chunk, self._source.nodes.graph)
        if self._watches:
            self._symmetry.update(src, dst, weights, chunk.relation)
        builder.add(src, dst, weights, data)


def _check_within_graphs(chunk: EdgeChunk, graph: Array | None) -> None:
    if graph is None:
        return
    sources, targets = graph[chunk.src], graph[chunk.dst]
    if (row := first_fault(sources != targets)) is not None:
        raise InputError(
            f"{chunk.locate(row)}: the edge joins graphs {sources[row]} and {targets[row]}; remove "
            "it, or give its nodes one graph"
        )


def _finite_data(chunk: EdgeChunk) -> EdgeData:
    features = chunk.data.features
    if features is not None and not (finite := np.isfinite(features)).all():
        row, column = (int(i) for i in np.unravel_index(np.argmin(finite), features.shape))
        raise InputError(
            f"{chunk.locate(row)}: feature {column + 1} of the edge is {features[row, column]}; "
            "replace it by a finite number"
        )
    return chunk.data


def _finite_weights(chunk: EdgeChunk) -> Array:
    if chunk.weights is None:
        return np.ones(len(chunk.src), np.float32)
    with np.errstate(over="ignore"):
        weights = chunk.weights.astype(np.float32)
    finite = np.isfinite(weights)
    if not finite.all():
        position = int(np.argmin(finite))
        raise InputError(
            f"{chunk.locate(position)}: weight {chunk.weights[position]} is not a finite float32 "
            "number; correct or remove the edge"
        )
    return weights
