"""Stream a `GraphSource` into a store: edges first, sorted out of core, then node data."""

import io
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np

from hpcgnn.comm import ONE_PROCESS, RankGroup
from hpcgnn.console import number, report
from hpcgnn.convert.columns import node_columns, node_types, sparse_column, split_names
from hpcgnn.convert.nodes import check_nodes
from hpcgnn.convert.resume import SavedConversion, key_of
from hpcgnn.convert.send_edges import EdgeFeed, role_sizes
from hpcgnn.convert.series import FieldSeries, total_missing
from hpcgnn.convert.source import (
    ConvertOptions,
    GraphSource,
    Labels,
    NodeArrays,
    NodeKind,
    check_density,
    has_few_edges,
)
from hpcgnn.convert.splits import labels_of_graphs, random_split, split_of_nodes
from hpcgnn.convert.tables.codes import SIGNS, report_gaps
from hpcgnn.convert.tables.node_data import with_graphs
from hpcgnn.errors import InputError
from hpcgnn.storage import (
    EdgeColumns,
    ShareSizes,
    Split,
    StoreHeader,
    StoreWriter,
    write_whole,
)
from hpcgnn.storage.by_ranks import open_store


@dataclass(frozen=True, slots=True)
class Report:
    """What was written: `edges` counts stored non-zeros, `input_edges` the edges that were read.

    `zero_edges` were left out because their weight is 0; `self_loops` counts those that were read.
    `columns` describes the edge data of each relation; `link_split` counts the edges of each role
    in the split; `missing` maps what training still needs to the option that supplies it; `targets`
    is the file of numbers to predict. `num_features` is 0 if each node type has features of its
    own. `fields` maps each field, over `num_steps` steps, to its number of columns;
    `missing_values` counts its NaN values, and the nodes or edges that have no value at any step.
    """

    path: Path
    header: StoreHeader
    num_features: int
    sparse_features: bool
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
    fields: Mapping[str, int] = field(default_factory=dict)
    num_steps: int = 0
    missing_values: Mapping[str, int] = field(default_factory=dict)
    num_graphs: int = 0

    @property
    def split(self) -> Mapping[str, int]:
        """The sizes of the sets of the first split; empty if there is no split."""
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
    """Write `source`, read as `format_name`, to the store `out`, and record its provenance.

    Collective on `ranks`, which share the sorting. Node data that only the first rank has read is
    written by it. With `resume`, sorted edges are kept beside `out`, and an interrupted conversion
    continues. An existing file at `out` is replaced once the new one is complete. Raises
    `InputError`.
    """
    with ranks.agree():
        source = _with_options(source, options)
        if source.sample is not None or ranks.rank == 0:
            options.check_used(str(source.path))
    with ExitStack() as stack:
        saved = None
        if resume:
            key = ranks.from_first(lambda: key_of(source.inputs, options.given(), format_name))
            folder = out.with_name(f"{out.name}.parts")
            saved = stack.enter_context(SavedConversion(folder, ranks, key))
        with ranks.agree():
            feed = stack.enter_context(EdgeFeed(source, options, ranks, saved))
        feed.run()
        report = _write(feed, source, out, options, format_name, ranks)
        if saved is not None:
            saved.remove()
    return report


def _with_options(source: GraphSource, options: ConvertOptions) -> GraphSource:
    """Mark the options that affect this source as taken, and apply --dtype and --graphs to it."""
    if source.nodes.features is not None or any(a.features for a in source.nodes.kinds):
        options.take("dtype")
    if any(data.num_features for data in source.columns.values()) and options.take("dtype"):
        dtype = np.dtype(options.dtype).str
        columns = {name: replace(data, dtype=dtype) for name, data in source.columns.items()}
        source = replace(source, columns=columns)
    if source.nodes.features is not None:
        options.take("sparse_features")
    nodes, ignored = with_graphs(source.nodes, options)
    source = replace(source, nodes=nodes, ignored=(*source.ignored, *ignored))
    if options.take("random_split") is not None:
        options.take("per_class")
        if (seed := options.take("split_seed") or 0) < 0:
            raise InputError(f"--split-seed {seed}: give at least 0")
    if source.num_nodes is not None:
        options.take("num_nodes")
    return source


def _write(
    feed: EdgeFeed,
    source: GraphSource,
    out: Path,
    options: ConvertOptions,
    format_name: str,
    ranks: RankGroup,
) -> Report:
    readers = ONE_PROCESS if source.sample is None else ranks
    reads = readers is ranks or ranks.rank == 0
    nodes, series, num_nodes = source.nodes, source.nodes.series, feed.num_nodes
    with ranks.agree():
        if reads:
            _check_density(source, num_nodes, feed.num_edges, options.num_nodes)
            _check_edges(series, feed.num_edges, source)
    if reads:
        nodes = _without_no_labels(nodes, source.path, readers)
    with nullcontext() if readers is ranks else ranks.agree():
        if reads and options.random_split is not None:
            nodes = _with_split(nodes, num_nodes, options, readers)
        if reads:
            check_nodes(nodes, num_nodes, str(source.path), readers)
    if reads:
        _report_signs(nodes.labels, source.path, readers)
        _report_gaps(nodes.labels, source.path, readers)
    arguments = nodes, num_nodes, options, readers
    with ranks.agree():
        columns = list(node_columns(*arguments, lambda: feed.places)) if reads else []
    edge_rows = None
    if source.keeps_places and ranks.moves_rows:
        # The rank that reads fields of edges also writes them.
        with ranks.agree():
            own_count = np.array([sum(feed.count().values())])
        edge_rows = int(ranks.sum(own_count)[0]) * reads
    sparse = nodes.features if nodes.features and nodes.features.is_sparse(options) else None
    provenance = {
        "command": "convert",
        "format": format_name,
        "inputs": [file.name for file in source.inputs],
        "options": options.given(),
    }
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
                splits=split_names(nodes),
                edge_labels=source.edge_labels,
                feature_names=_feature_names(nodes),
                edge_feature_names=source.edge_feature_names,
                sparse_columns=0 if sparse is None else sparse.num_columns,
                provenance=provenance,
            ),
            [(column.append, column.none) for column in columns],
        )
    )

    def sizes() -> ShareSizes:
        own_nodes = readers.range_of(num_nodes) if reads else range(0)
        of_type = np.zeros(len(header.node_types), np.int64)
        for types in node_types(nodes, own_nodes):
            of_type += np.bincount(types, minlength=len(of_type))
        parts = [(len(o) - 1, len(data)) for o, data in (nodes.names or tuple)()]
        num_names, name_bytes = np.sum([(0, 0), *parts], axis=0).tolist()
        features = 0
        if sparse is not None and reads:
            column = sparse_column(sparse, num_nodes, options, readers)
            features = sum(rows.num_edges for (rows,) in column.pieces)
        return ShareSizes(
            len(own_nodes),
            feed.count(),
            tuple(of_type.tolist()),
            num_names,
            name_bytes,
            rows=len(feed.rows),
            features=features,
            edge_rows=edge_rows,
        )

    def declare(writer: StoreWriter) -> None:
        feed.declare(writer)
        for append, none in no_rows:
            getattr(writer, append)(*none)

    targets = None if source.targets is None else out.with_name(f"{out.stem}-targets.npy")
    with open_store(ranks, out, header, sizes, declare) as writer:
        with ranks.agree():
            own_edges = feed.write(writer)
        feed.sum_roles()
        feed.gather_places()
        with ranks.agree():
            for column in columns:
                column.write(writer)
            if targets is not None and source.targets is not None and nodes.graph is not None:
                content = io.BytesIO()
                # Graphs behind the last node are not in the store.
                np.save(content, source.targets[: int(nodes.graph.max(initial=-1)) + 1])
                write_whole(targets, content.getvalue())
    totals = ranks.gather(own_edges)
    missing_values = total_missing(
        ranks.gather({k: n for c in columns for k, n in getattr(c, "missing", {}).items()})
    )
    splits = {}
    for name, split in nodes.splits.items():
        counts = readers.gather(np.bincount(split, minlength=len(Split)))
        splits[name] = role_sizes(np.sum(counts, axis=0))
    replaced = options.random_split is not None and bool(source.nodes.splits)
    return Report(
        path=out,
        header=header,
        num_features=0 if nodes.features is None else nodes.features.num_columns,
        sparse_features=sparse is not None,
        node_types=nodes.kinds,
        edges={relation: sum(counts[relation] for counts in totals) for relation in own_edges},
        input_edges=feed.num_edges,
        zero_edges=feed.num_zero,
        self_loops=feed.num_loops,
        splits=splits,
        columns=source.columns,
        link_split=feed.link_split,
        ignored=source.ignored
        + (("the split of the input, replaced by --random-split",) if replaced else ()),
        missing=_missing(nodes, targets, source.splits_from, splits),
        targets=targets,
        fields={a.name: a.info.num_columns for a in series.fields} if series else {},
        num_steps=len(series.times) if series else 0,
        missing_values=missing_values,
        num_graphs=0 if nodes.graph is None else len(np.unique(nodes.graph)),
    )


def _check_edges(series: FieldSeries | None, num_edges: int, source: GraphSource) -> None:
    for array in () if series is None else series.fields:
        if array.of_edges and array.shape[1] != num_edges:
            raise InputError(
                f"field {array.name!r} has rows for {array.shape[1]} edges, and {source.path} has "
                f"{num_edges}; give a row for each edge, in the order of the input"
            )


def _check_density(source: GraphSource, num_nodes: int, num_edges: int, flag: int | None) -> None:
    """Raise `InputError` if a single number in the input would make the store huge.

    Nothing of size `num_nodes` is allocated before this check. Any `num_nodes` is accepted if the
    input has data for each node, if the graph is not from files, or if the `flag` confirms it.
    """
    if flag not in (None, num_nodes):
        raise InputError(
            f"--num-nodes {flag}: {source.path} has {num_nodes} nodes; leave it out, or correct it"
        )
    nodes, path = source.nodes, source.path
    listed = set(nodes.arrays()) - {f"split {name}".rstrip() for name in nodes.splits}
    if flag or source.counted or listed or nodes.names is not None or not source.inputs:
        return
    if source.num_nodes is not None:
        check_density(str(path), num_nodes, num_edges)
    elif has_few_edges(num_nodes, num_edges):
        raise InputError(
            f"{path}: the largest id is {num_nodes - 1} in {num_edges} edges, and a store has a "
            "row for each number up to it; give --relabel to number the ids that occur, or "
            f"--num-nodes {num_nodes} to keep them"
        )


def _with_split(
    nodes: NodeArrays, num_nodes: int, options: ConvertOptions, ranks: RankGroup
) -> NodeArrays:
    """Draw a random split on the first rank, which gathers all labels for it."""
    check_nodes(nodes, num_nodes, "the input", ranks)
    if ranks.moves_rows and ranks.rank == 0:
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
            owners, owner_labels = np.arange(num_nodes), labels
            if nodes.graph is not None:
                _, owners, owner_labels = labels_of_graphs(nodes.graph, labels)
            drawn = random_split(
                owner_labels,
                int(owners.max()) + 1,
                shares,
                seed=options.split_seed or 0,
                per_class=options.per_class,
            )
            split = split_of_nodes(drawn, owners, labels)
    (own_split,) = ranks.exchange(ranks.keepers(np.arange(len(split)), num_nodes), split)
    return replace(nodes, splits={"": own_split})


def _without_no_labels(nodes: NodeArrays, path: Path, ranks: RankGroup) -> NodeArrays:
    """Return the nodes without labels if all of them are missing and no split needs them."""
    labels = nodes.labels
    if labels is None or labels.multi_label:
        return nodes
    needed = any((split != Split.NONE).any() for split in nodes.splits.values())
    if any(ranks.gather(bool(needed or (labels.values >= 0).any()))):
        return nodes
    if ranks.rank == 0:
        report(f"{path}: no node has a label; the store gets none")
    return replace(nodes, labels=None)


def _report_signs(labels: Labels | None, path: Path, ranks: RankGroup) -> None:
    """Report unlabelled nodes (-1) if -1 and 1 may have been meant as two classes."""
    if labels is None or labels.multi_label or labels.class_names or labels.num_classes != 2:
        return
    none, zeros = ranks.sum(np.bincount(labels.values + 1, minlength=2)[:2]).tolist()
    if none and not zeros and ranks.rank == 0:
        report(f"{path}: {number(none, 'node')} with -1, nan or nothing {SIGNS}")


def _report_gaps(labels: Labels | None, path: Path, ranks: RankGroup) -> None:
    """Report numbers of classes most of which do not occur."""
    if labels is None or labels.multi_label or labels.class_names:
        return
    given = labels.values[labels.values >= 0]
    dense = labels.num_classes < len(given)
    own = np.flatnonzero(np.bincount(given)) if dense else np.unique(given)
    occurring = set[int]().union(*ranks.gather(set(own.tolist())))
    if ranks.rank == 0:
        report_gaps(str(path), labels.num_classes, len(occurring))


def _missing(
    nodes: NodeArrays,
    targets: Path | None,
    splits_from: str,
    splits: Mapping[str, Mapping[str, int]],
) -> dict[str, str]:
    """Return what the store lacks for training, with the option that supplies it."""
    missing = {}
    if nodes.features is None and not nodes.kinds and nodes.series is None:
        # Node types without features get learned embeddings.
        ways = "--nodes FILE with numbers; or train with graph.structure or model.embeddings"
        missing["features"] = ways
    if nodes.series is not None:
        return missing
    table = "--nodes FILE" if nodes.graph is None else "--graphs FILE"
    if nodes.labels is None and targets is None:
        missing["labels"] = f"{table} with a column label; or train with graph.targets=FILE"
    if not next(iter(splits.values()), {}).get("train"):
        none = "no node is in its training set; " if splits else ""
        files = f", or {splits_from}" if splits_from else ""
        missing["split"] = f"{none}--random-split 60,20,20, or {table} with a column split{files}"
    return missing


def _feature_names(nodes: NodeArrays) -> tuple[str, ...]:
    """Return the names of feature columns, type after type; () unless all have one."""
    tables = [nodes.features, *(kind.features for kind in nodes.kinds)]
    parts = [table for table in tables if table is not None and table.num_columns]
    return tuple(chain.from_iterable(p.names for p in parts)) if all(p.names for p in parts) else ()


def _default_name(path: Path) -> str:
    return path.resolve().name.removeprefix("ind.").removeprefix("pyg:").split(".")[0] or "graph"
