"""Stream a graph that was read into a store: edges first, sorted out of core, then node data."""

import io
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn import watchdog
from hpcgnn.comm import ONE_PROCESS, RankGroup
from hpcgnn.console import Progress, report
from hpcgnn.convert.nodes import check_nodes
from hpcgnn.convert.parts import Parts, key_of
from hpcgnn.convert.read.features import finite_rows
from hpcgnn.convert.source import (
    ConvertOptions,
    EdgeChunk,
    EdgeStream,
    Features,
    GraphSource,
    NodeKind,
    Nodes,
)
from hpcgnn.convert.splits import random_split
from hpcgnn.convert.symmetry import SymmetryCheck
from hpcgnn.convert.tables.graphs import with_graphs
from hpcgnn.errors import InputError
from hpcgnn.storage import (
    EdgeBuilder,
    EdgeColumns,
    EdgeData,
    ShareSizes,
    SpillFile,
    Split,
    StoreHeader,
    StoreWriter,
    first_true,
    write_whole,
)
from hpcgnn.storage.by_ranks import open_store
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
    source: GraphSource,
    out: Path,
    options: ConvertOptions,
    format_name: str,
    ranks: RankGroup = ONE_PROCESS,
    *,
    resume: bool = False,
) -> Report:
    """Write `source`, read as `format_name`, to the store `out`, with a note of where it came from.

    For all `ranks`, which divide the sorting, and write what they have: of nodes that the first
    rank alone has read, it writes all.
    With `resume` sorted edges are kept beside `out`, and a conversion that was ended goes on.
    An earlier file at `out` stays whole until the new one is complete. Raises `InputError` for
    faulty input.
    """
    readers = ONE_PROCESS if source.sample is None else ranks
    reads = readers is ranks or ranks.rank == 0
    makes_split = options.take("random_split") is not None
    with ranks.agree():
        if source.nodes.features is not None or any(kind.features for kind in source.nodes.kinds):
            options.take("dtype")
        source = replace(source, nodes=with_graphs(source.nodes, options))
        if makes_split:
            options.take("per_class")
            if (seed := options.take("split_seed") or 0) < 0:
                raise InputError(f"--split-seed {seed}: give at least 0")
        if source.num_nodes is not None:
            options.take("num_nodes")
        if reads:
            options.check_used(str(source.path))
    if not resume:
        return _write(source, out, options, format_name, ranks, None)
    key = ranks.from_first(lambda: key_of(source.inputs, options.given(), format_name))
    with Parts(out.with_name(f"{out.name}.parts"), ranks, key) as parts:
        report = _write(source, out, options, format_name, ranks, parts)
        parts.remove()
    return report


def _write(
    source: GraphSource,
    out: Path,
    options: ConvertOptions,
    format_name: str,
    ranks: RankGroup,
    parts: Parts | None,
) -> Report:
    """Write the store by options that have been checked."""
    readers = ONE_PROCESS if source.sample is None else ranks
    reads = readers is ranks or ranks.rank == 0
    makes_split = options.take("random_split") is not None
    targets = None
    if source.targets is not None:
        targets = out.with_name(f"{out.stem}-targets.npy")
    with ExitStack() as stack:
        with ranks.agree():
            builders = {
                relation: stack.enter_context(
                    _edge_builder(
                        source, relation, options, ranks, None if parts is None else parts.file(i)
                    )
                )
                for i, relation in enumerate(source.relations)
            }
        feed = EdgeFeed(source, options, ranks, parts)
        feed.run(builders)
        num_nodes = source.num_nodes
        if num_nodes is None:
            most = max(builder.num_nodes for builder in builders.values())
            num_nodes = max(ranks.gather(most))
        with ranks.agree():
            if reads:
                _check_density(source, num_nodes, feed.num_edges, options.num_nodes)
        nodes = source.nodes
        with nullcontext() if readers is ranks else ranks.agree():
            if reads and makes_split:
                nodes = _with_split(nodes, num_nodes, options, readers)
            if reads:
                check_nodes(nodes, num_nodes, str(source.path), readers)
        columns = list(_columns(nodes, num_nodes, options, readers)) if reads else []
        header, no_rows = ranks.from_first(
            lambda: (
                StoreHeader(
                    name=options.name or source.name or _default_name(source.path),
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
                ),
                [(column.append, column.none) for column in columns],
            )
        )
        share = _Share(
            source.path,
            builders,
            feed.range_of(num_nodes),
            nodes,
            readers.range_of(num_nodes) if reads else range(0),
        )
        sizes, declare = partial(share.sizes, header), partial(share.declare, no_rows)
        with open_store(ranks, out, header, sizes, declare) as writer, ranks.agree():
            own_edges = {
                relation: share.write_edges(writer, relation, quiet=ranks.rank > 0)
                for relation in builders
            }
            for column in columns:
                column.write(writer)
            if targets is not None and source.targets is not None:
                content = io.BytesIO()
                np.save(content, source.targets)
                write_whole(targets, content.getvalue())
    totals = ranks.gather(own_edges)
    edges = {relation: sum(each[relation] for each in totals) for relation in own_edges}
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
        {name: _split_sizes(split, readers) for name, split in nodes.splits.items()},
        source.columns,
        feed.link_split,
        source.ignored + (replaced if makes_split and source.nodes.splits else ()),
        _missing(nodes, targets, source.splits_from),
        targets,
        0 if nodes.graph is None else len(np.unique(nodes.graph)),
    )


def _check_density(source: GraphSource, num_nodes: int, num_edges: int, asked: int | None) -> None:
    """Raise `InputError` where one number, not what is there, would decide about a store's size.

    Nothing of the size of `num_nodes` is made before. It may be any number where the input has
    something of each node, where the graph is not from files, and where it is `asked` for.
    """
    if asked not in (None, num_nodes):
        raise InputError(
            f"--num-nodes {asked}: {source.path} has {num_nodes} nodes; leave it out, or correct it"
        )
    nodes, path = source.nodes, source.path
    listed = set(nodes.arrays()) - {f"split {name}".rstrip() for name in nodes.splits}
    if asked or source.counted or listed or nodes.names is not None or not source.inputs:
        return
    if num_nodes <= _NODES_PER_EDGE * (num_edges + _FEW_EDGES):
        return
    if source.num_nodes is not None:
        raise InputError(
            f"{path}: says that it has {num_nodes} nodes, in {num_edges} edges, and a store has a "
            f"row for each; give --num-nodes {num_nodes} if that is right"
        )
    raise InputError(
        f"{path}: the largest id is {num_nodes - 1} in {num_edges} edges, and a store has a "
        "row for each number up to it; give --relabel to number the ids that occur, or "
        f"--num-nodes {num_nodes} to keep them"
    )


def _with_split(nodes: Nodes, num_nodes: int, options: ConvertOptions, ranks: RankGroup) -> Nodes:
    """Return the nodes with a random split in place of any other; for all ranks that read.

    The first draws it, for which it holds the labels of all nodes.
    """
    check_nodes(nodes, num_nodes, "the input", ranks)
    if ranks.size > 1 and ranks.rank == 0:
        report(f"--random-split: drawn by the first rank, which holds {num_nodes} labels")
    shares = options.random_split
    assert shares is not None
    labels = None
    if nodes.labels is not None:
        (labels,) = ranks.exchange(
            np.zeros(len(nodes.labels.values), np.int32), nodes.labels.values
        )
    split = np.zeros(0, np.uint8)
    with ranks.agree():
        if ranks.rank == 0:
            owners = np.arange(num_nodes)
            if nodes.graph is not None:
                _, first, owners = np.unique(nodes.graph, return_index=True, return_inverse=True)
                labels = None if labels is None else labels[first]
            drawn = random_split(
                labels,
                int(owners.max()) + 1,
                shares,
                seed=options.split_seed or 0,
                per_class=options.per_class,
            )
            split = drawn[owners]
    keepers = np.repeat(np.arange(ranks.size, dtype=np.int32), np.diff(ranks.starts(num_nodes)))
    (own,) = ranks.exchange(keepers[: len(split)], split)
    return replace(nodes, splits={"": own})


def _missing(nodes: Nodes, targets: Path | None, splits_from: str) -> dict[str, str]:
    """Return what the store lacks for training, with what supplies it."""
    missing = {}
    if nodes.features is None and not nodes.kinds:
        # Types without features have learned vectors.
        ways = "--nodes FILE with numbers; or train with graph.structure or model.embeddings"
        missing["features"] = ways
    if nodes.labels is None and targets is None:
        missing["labels"] = "--nodes FILE with a column label; or train with graph.targets=FILE"
    if not nodes.splits:
        files = f", or {splits_from}" if splits_from else ""
        missing["split"] = f"--random-split 60,20,20, or --nodes FILE with a column split{files}"
    return missing


def _edge_builder(
    source: GraphSource,
    relation: str,
    options: ConvertOptions,
    ranks: RankGroup,
    file: SpillFile | None,
) -> EdgeBuilder:
    # Most of it is for finding names.
    share = len(source.relations) * (1 if source.nodes.names is None else 4)
    columns = source.columns.get(relation, EdgeColumns())
    with _naming(source.path):
        return EdgeBuilder(
            source.num_nodes,
            # Ranks send edges both ways, each to the rank of its row.
            undirected=ranks.size == 1 and (options.undirected or source.undirected),
            self_loops=options.self_loops,
            duplicates=options.duplicates,
            columns=replace(columns, ordered=_is_ordered(columns, options, ranks)),
            memory_bytes=options.memory_bytes // share,
            scratch=file,
        )


def _is_ordered(columns: EdgeColumns, options: ConvertOptions, ranks: RankGroup) -> bool:
    """Tell whether edges need their places in the input: where they may change what is stored."""
    differ = columns.weighted or columns.has_data
    return ranks.size > 1 and differ and options.duplicates != "error"


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


def _progress(text: str, rows: int, *, quiet: bool) -> Progress:
    return Progress(text, rows, "rows", quiet=quiet or rows < _QUIET_BELOW_ROWS)


@dataclass(frozen=True)
class _Share:
    """What this rank writes: `rows` of each relation, and what the `own` nodes have."""

    path: Path
    builders: Mapping[str, EdgeBuilder]
    rows: range
    nodes: Nodes
    own: range

    def sizes(self, header: StoreHeader) -> ShareSizes:
        """Count what is there."""
        start, stop = self.rows.start, self.rows.stop
        with _naming(self.path):
            edges = {name: builder.count(start, stop) for name, builder in self.builders.items()}
        of_type = np.zeros(len(header.node_types), np.int64)
        if self.nodes.kinds:
            for types in _types(self.nodes, self.own):
                of_type += np.bincount(types, minlength=len(of_type))
        names = name_bytes = 0
        for offsets, data in () if self.nodes.names is None else self.nodes.names():
            names += len(offsets) - 1
            name_bytes += len(data)
        sizes = len(self.own), edges, tuple(of_type.tolist()), names, name_bytes
        return ShareSizes(*sizes, rows=len(self.rows))

    def declare(self, no_rows: Iterable[tuple[str, tuple[Any, ...]]], writer: StoreWriter) -> None:
        """Append blocks without rows, for nodes those that are given with their methods."""
        for relation, builder in self.builders.items():
            writer.append_rows(builder.no_rows(), relation)
        for append, none in no_rows:
            getattr(writer, append)(*none)

    def write_edges(self, writer: StoreWriter, relation: str, *, quiet: bool) -> int:
        """Write the rows of a relation, and return how many non-zeros they have."""
        num_edges, rows = 0, self.rows
        title = f"writing edges {relation}".rstrip()
        with _progress(title, len(rows), quiet=quiet) as progress, _naming(self.path):
            for block in self.builders[relation].blocks(rows.start, rows.stop):
                writer.append_rows(block, relation)
                num_edges += block.num_edges
                progress.advance(block.num_rows)
                watchdog.beat()
        return num_edges


@dataclass(frozen=True)
class _Column:
    """Some of what nodes have: `pieces` of it are what the writer's method `append` takes.

    `none` is a piece without rows.
    """

    append: str
    none: tuple[Any, ...]
    pieces: Iterable[tuple[Any, ...]]

    def write(self, writer: StoreWriter) -> None:
        """Append all pieces."""
        for piece in self.pieces:
            getattr(writer, self.append)(*piece)
            watchdog.beat()


def _columns(
    nodes: Nodes, num_nodes: int, options: ConvertOptions, ranks: RankGroup
) -> Iterator[_Column]:
    """Yield what the nodes of this rank have, in the order of the store."""
    if nodes.features is not None:
        matrix = _Matrix(nodes.features, num_nodes, options)
        yield _Column("append_features", (matrix.none,), zip(matrix.blocks(ranks)))
    arrays = nodes.arrays()
    arrays.pop("types", None)
    if nodes.kinds:
        types = _types(nodes, ranks.range_of(num_nodes))
        yield _Column("append_types", (np.empty(0, np.uint8),), zip(types))
        for kind in nodes.kinds:
            if kind.features is not None:
                matrix = _Matrix(kind.features, kind.num_nodes, options)
                named = zip(repeat(kind.name), matrix.blocks(ranks))
                yield _Column("append_type_features", (kind.name, matrix.none), named)
    for name in ("graph", "labels", "original_id"):
        if name in arrays:
            yield _Column(f"append_{name}", (arrays[name][:0],), zip(_blocks(arrays[name])))
    for name, split in zip(_split_names(nodes) or ("",), nodes.splits.values(), strict=False):
        yield _Column("append_split", (split[:0], name), zip(_blocks(split), repeat(name)))
    if nodes.names is not None:
        none = (np.zeros(1, np.int64), np.empty(0, np.uint8))
        yield _Column("append_names", none, nodes.names())


def _blocks(array: Array) -> Iterator[Array]:
    for first in range(0, len(array), _NODE_ROWS):
        yield array[first : first + _NODE_ROWS]


def _types(nodes: Nodes, own: range) -> Iterator[Array]:
    """Yield the types of `own` nodes, some at a time."""
    if nodes.types is not None:
        yield from _blocks(nodes.types)
        return
    ends = np.cumsum([kind.num_nodes for kind in nodes.kinds])
    for first in range(own.start, own.stop, _NODE_ROWS):
        numbers = np.arange(first, min(first + _NODE_ROWS, own.stop))
        yield np.searchsorted(ends, numbers, side="right")


def _split_names(nodes: Nodes) -> tuple[str, ...]:
    """Return the names of the splits, none where there is one without a name or none at all."""
    return () if set(nodes.splits) <= {""} else tuple(name or "default" for name in nodes.splits)


@dataclass(frozen=True)
class _Matrix:
    """Features of `num_nodes` nodes, as the store has them."""

    features: Features
    num_nodes: int
    options: ConvertOptions

    @property
    def none(self) -> Array:
        """No rows, as `blocks` yields them."""
        own = self.features.dtype.name
        kept = own if own in _FEATURE_DTYPES else "float32"
        return np.empty((0, self.features.num_columns), self.options.dtype or kept)

    def blocks(self, ranks: RankGroup) -> Iterator[Array]:
        """Yield the rows that this rank keeps, checked."""
        features, num_nodes = self.features, self.num_nodes
        dtype = self.none.dtype
        due = ranks.range_of(num_nodes)
        done = features.first
        # A node type without nodes keeps its columns.
        yield self.none
        progress = _progress("writing features", len(due), quiet=ranks.rank > 0)
        with progress, closing(features.blocks()) as blocks:
            for block in blocks:
                rows = finite_rows(block, dtype, partial(_place, features, done))
                done += len(rows)
                if done > due.stop:
                    break
                yield rows
                progress.advance(len(rows))
        if done != due.stop:
            count = "more" if done > due.stop else f"only {done}"
            raise InputError(
                f"{features.locate(min(done, num_nodes))}: there are {count} "
                f"feature rows for {num_nodes} nodes; give one row a node"
            )


def _place(features: Features, first: int, row: int) -> str:
    return features.locate(first + row)


def _split_sizes(split: Array, ranks: RankGroup) -> dict[str, int]:
    return _named_sizes(np.sum(ranks.gather(np.bincount(split, minlength=len(Split))), axis=0))


def _named_sizes(counts: Array) -> dict[str, int]:
    return {part.name.lower(): int(counts[part]) for part in Split if part != Split.NONE}


_LARGEST_ID = (1 << 32) - 1
"""The largest id that `EdgeBuilder` sorts."""

_SAMPLED_ROWS = 1 << 18

SAVE_EVERY_S = 300.0
"""Seconds between two savings of what has been read, where a conversion can be resumed."""


@dataclass(slots=True)
class _Counts:
    """What one rank has read, up to the order `end`; `done` is all."""

    edges: int = 0
    zero: int = 0
    loops: int = 0
    roles: list[int] = field(default_factory=lambda: [0] * len(Split))
    end: int = 0
    done: bool = False


class EdgeFeed:
    """One pass over the edges of `source`, which ends at the ranks of their rows.

    Afterwards `num_edges` counts the edges read, `num_zero` those left out because their weight is
    0 (a zero is no entry of the adjacency), `num_loops` those of the others from a node to itself,
    and `undirected` tells whether every edge that is stored has its reverse.
    """

    def __init__(
        self,
        source: GraphSource,
        options: ConvertOptions,
        ranks: RankGroup = ONE_PROCESS,
        parts: Parts | None = None,
    ) -> None:
        self._source, self._reverse, self._ranks = source, options.reverse, ranks
        self._parts_kept, self._saved_at = parts, time.monotonic()
        self._made_undirected = options.undirected or source.undirected
        self._drops_loops = options.self_loops == "drop"
        weighted = any(each.weighted for each in source.columns.values())
        # Which of several unequal weights is the first may differ between a pair and its reverse.
        self._watches = not self._made_undirected and not (
            weighted and options.duplicates == "first"
        )
        self._symmetry = SymmetryCheck()
        self._own = _Counts()
        self.link_split: dict[str, int] = {}
        self.undirected = self._made_undirected
        self.num_edges = self.num_zero = self.num_loops = 0
        each = [source.columns.get(name, EdgeColumns()) for name in source.relations]
        self._columns = [
            replace(columns, ordered=_is_ordered(columns, options, ranks)) for columns in each
        ]
        self._starts = np.zeros(1, np.int64)

    def run(self, builders: Mapping[str, EdgeBuilder]) -> None:
        """Read all edges; raises `InputError` that names the place of a faulty one."""
        kept = self._parts_kept
        state = None if kept is None else kept.state()
        if state is not None:
            self._restore(state, builders)
        elif self._ranks.size > 1:
            self._starts = self._find_starts()
        if not self._own.done:
            # Closed at once on an error, so that a progress display ends before the message.
            with closing(self._edges()) as chunks:
                self._read(chunks, builders)
            self._own.done = True
            self._save(builders)
        self._sum_up()
        if self.num_edges == 0:
            raise InputError(f"{self._source.path}: the graph has no edges; check the input")

    def range_of(self, num_nodes: int) -> range:
        """Return the rows whose edges this rank has."""
        bounds = np.append(np.minimum(self._starts, num_nodes), num_nodes)
        rank = self._ranks.rank
        return range(int(bounds[rank]), int(bounds[rank + 1]))

    def _edges(self) -> EdgeStream:
        """Return what is left to be read."""
        source, end = self._source, self._own.end
        if end and source.edges_after is not None:
            return source.edges_after(end)
        if self._ranks.size > 1 and source.sample is None:
            return _in_order(source.edges())
        return source.edges()

    def _read(self, chunks: EdgeStream, builders: Mapping[str, EdgeBuilder]) -> None:
        """Send each edge to the rank of its row; all ranks."""
        ranks = self._ranks
        while True:
            with ranks.agree():
                chunk = next(chunks, None)
                parts = [] if chunk is None else list(self._parts(chunk))
            due = time.monotonic() > self._saved_at + SAVE_EVERY_S
            votes = ranks.gather((chunk is not None, due))
            if not any(more for more, _ in votes):
                return
            if ranks.size == 1:
                for part in parts:
                    builders[part.relation].add(part.src, part.dst, part.weights, part.data)
            else:
                arrived = list(self._sent(parts))
                with ranks.agree():
                    for relation, columns, (src, dst, values) in arrived:
                        weights, data = columns.unpack(values)
                        builders[relation].add(src, dst, weights, data)
            if chunk is not None:
                self._own.end = max(self._own.end, chunk.end)
            if self._source.edges_after is not None and any(due for _, due in votes):
                self._save(builders)

    def _save(self, builders: Mapping[str, EdgeBuilder]) -> None:
        """Have on disk how far this rank is, where that is kept; for all ranks."""
        if self._parts_kept is None:
            return
        with self._ranks.agree():
            state = {
                "builders": {relation: each.save() for relation, each in builders.items()},
                "own": asdict(self._own),
                "symmetry": self._symmetry.sums,
                "starts": self._starts.tolist(),
            }
        self._parts_kept.save(state)
        self._saved_at = time.monotonic()

    def _restore(self, state: Mapping[str, Any], builders: Mapping[str, EdgeBuilder]) -> None:
        with self._ranks.agree():
            for relation, each in builders.items():
                each.restore(state["builders"][relation])
        self._own = _Counts(**state["own"])
        self._symmetry = SymmetryCheck(state["symmetry"])
        self._starts = np.array(state["starts"], np.int64)
        found = self._ranks.gather(self._own.edges)
        if self._ranks.rank == 0:
            report(f"going on after {sum(found)} edges that were sorted before")

    def _find_starts(self) -> NDArray[np.int64]:
        """Return the first row of each rank, such that all get about as many edges."""
        ranks, source = self._ranks, self._source
        rows = [np.zeros(0, np.int64)]
        stream = source.edges if source.sample is None else source.sample
        with closing(stream()) as chunks:
            while True:
                with ranks.agree():
                    chunk = next(chunks, None)
                    for part in () if chunk is None else self._parts(chunk, counts=False):
                        ends = (part.dst, part.src) if self._made_undirected else (part.dst,)
                        rows += [each.astype(np.int64) for each in ends]
                if source.sample is None or not ranks.any(chunk is not None):
                    break
        own = np.sort(np.concatenate(rows))
        own = own[:: max(1, len(own) * ranks.size // _SAMPLED_ROWS)]
        sample = np.sort(np.concatenate(ranks.gather(own)))
        places = len(sample) * np.arange(1, ranks.size) // ranks.size
        return np.concatenate([[0], sample[places] if len(sample) else 0 * places])

    def _sent(
        self, parts: Sequence[EdgeChunk]
    ) -> Iterator[tuple[str, EdgeColumns, tuple[Any, ...]]]:
        """Exchange the edges of a round; yield what arrived, by relation. For all ranks."""
        ranks, relations = self._ranks, self._source.relations
        number = {name: place for place, name in enumerate(relations)}
        group = range(len(relations))
        if len(set(self._columns)) > 1:
            # What is sent differs from relation to relation: all send those of one.
            mine = max((number[part.relation] for part in parts), default=-1)
            one = max(ranks.gather(mine))
            group = range(one, one + 1)
        columns = self._columns[group.start]
        src = _joined([part.src for part in parts], np.uint32)
        dst = _joined([part.dst for part in parts], np.uint32)
        packed = [columns.pack(part.weights, _trimmed(part.data, columns)) for part in parts]
        record = columns.record()
        values = None if record is None else _joined(packed, record)
        kinds = np.repeat(
            np.array([number[part.relation] for part in parts], np.int32),
            [len(part.src) for part in parts],
        )
        if self._drops_loops:
            kept = src != dst
            src, dst, kinds = src[kept], dst[kept], kinds[kept]
            values = None if values is None else values[kept]
        if self._made_undirected:
            turned = src != dst
            src, dst = np.append(src, dst[turned]), np.append(dst, src[turned])
            kinds = np.append(kinds, kinds[turned])
            values = None if values is None else np.concatenate([values, values[turned]])
        owners = (np.searchsorted(self._starts, dst, side="right") - 1).astype(np.int32)
        given = [src, dst]
        given += [kinds] if len(group) > 1 else []
        given += [] if values is None else [values]
        src, dst, *rest = ranks.exchange(owners, *given)
        values = None if values is None else rest.pop()
        if len(group) == 1:
            yield relations[group.start], columns, (src, dst, values)
            return
        (kinds,) = rest
        for each in np.flatnonzero(np.bincount(kinds)):
            places = np.flatnonzero(kinds == each)
            some = None if values is None else values[places]
            yield relations[each], columns, (src[places], dst[places], some)

    def _parts(self, chunk: EdgeChunk, *, counts: bool = True) -> Iterator[EdgeChunk]:
        """Yield the edges of a chunk as they are to be stored, by relation, checked and counted."""
        for part in chunk.by_relation(self._source.relations):
            # A rank without a piece has no edges, nor what they have.
            if len(part.src):
                yield self._checked(part, counts=counts)

    def _checked(self, chunk: EdgeChunk, *, counts: bool) -> EdgeChunk:
        limit = _LARGEST_ID if self._source.num_nodes is None else self._source.num_nodes - 1
        remedy = "number the nodes from 0"
        if limit == _LARGEST_ID:
            remedy += ", or give an edge list with --relabel"
        chunk.check_ends((limit, limit), remedy)
        src, dst = (chunk.dst, chunk.src) if self._reverse else (chunk.src, chunk.dst)
        columns = self._source.columns.get(chunk.relation, EdgeColumns())
        weights = _finite_weights(chunk) if columns.weighted else None
        data = _finite_data(chunk)
        num_read = len(src)
        if weights is not None and not weights.all():
            kept = weights != 0
            src, dst, weights, data = src[kept], dst[kept], weights[kept], data.take(kept)
        _check_within_graphs(chunk, self._source.nodes.graph)
        if counts:
            self._count(num_read, src, dst, data)
            if self._watches:
                self._symmetry.update(src, dst, weights, chunk.relation)
        return replace(chunk, src=src, dst=dst, weights=weights, data=data)

    def _count(self, num_read: int, src: Array, dst: Array, data: EdgeData) -> None:
        own = self._own
        own.edges += num_read
        own.zero += num_read - len(src)
        if data.split is not None:
            counts = np.bincount(data.split, minlength=len(Split))
            own.roles = [
                before + int(count) for before, count in zip(own.roles, counts, strict=True)
            ]
        own.loops += int(np.count_nonzero(src == dst))

    def _sum_up(self) -> None:
        """Make the counts of all ranks those of each."""
        found = self._ranks.gather((self._own, self._symmetry))
        for own, _ in found:
            self.num_edges += own.edges
            self.num_zero += own.zero
            self.num_loops += own.loops
        roles = np.sum([own.roles for own, _ in found], axis=0)
        self.link_split = {} if not roles.any() else _named_sizes(roles)
        whole = SymmetryCheck()
        for _, symmetry in found:
            whole.add(symmetry)
        self.undirected = self._made_undirected or (self._watches and whole.symmetric)


def _in_order(chunks: EdgeStream) -> EdgeStream:
    """Yield chunks that one rank reads, with the places of their edges."""
    done = 0
    with closing(chunks):
        for chunk in chunks:
            order = done + np.arange(len(chunk.src), dtype=np.uint64)
            done += len(chunk.src)
            yield replace(chunk, data=replace(chunk.data, order=order))


def _trimmed(data: EdgeData, columns: EdgeColumns) -> EdgeData:
    return data if columns.ordered else replace(data, order=None)


def _joined(arrays: Sequence[Array | None], dtype: Any) -> Array:
    """Return arrays one after the other as `dtype`."""
    given = [array for array in arrays if array is not None]
    return np.concatenate([np.zeros(0, dtype), *(array.astype(dtype) for array in given)])


def _check_within_graphs(chunk: EdgeChunk, graph: Array | None) -> None:
    if graph is None:
        return
    sources, targets = graph[chunk.src], graph[chunk.dst]
    if (row := first_true(sources != targets)) is not None:
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
