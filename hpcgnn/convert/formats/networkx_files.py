"""Files that networkx reads into memory: nodes and edges are written to tables and read again."""

import csv
import weakref
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from hpcgnn.convert.formats import edge_list
from hpcgnn.convert.source import ConvertOptions, GraphSource
from hpcgnn.convert.tables.edges import WEIGHTS
from hpcgnn.convert.tables.nodes import node_tables
from hpcgnn.errors import InputError, one_line
from hpcgnn.storage import require_file
from hpcgnn.storage.atomic import scratch_folder

_READERS: Mapping[str, str] = {
    ".graphml": "read_graphml",
    ".gml": "read_gml",
    ".gexf": "read_gexf",
    ".adjlist": "read_adjlist",
    ".edgelist": "read_edgelist",
}


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read a graph with its node and edge data; raises `InputError`."""
    graph = _graph(path)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        nodes, edges = folder / f"{path.name}-nodes.csv", folder / f"{path.name}-edges.csv"
        # A label in GEXF is the name of a node, not a class.
        node_data = graph.nodes(data=True)
        if len({data.get("label") for _, data in node_data}) == len(graph):
            node_data = [
                (node, {k: v for k, v in data.items() if k != "label"}) for node, data in node_data
            ]
        _check_edges(path, graph, options)
        _write(nodes, ["id"], node_data)
        _write(edges, ["src", "dst"], graph.edges(data=True))
        tables = replace(options, nodes=(str(nodes), *options.nodes))
        table = node_tables(tables).tables[0]
        for name in (table.file.names[column] for column in table.features):
            without = [node for node, data in node_data if data.get(name) is None]
            if without:
                raise InputError(
                    f"{path}: node {without[0]!r} has no {name}, which is a feature; give it one, "
                    f"or leave {name} out with --node-columns ignore={name}"
                )
        source = edge_list.read(edges, tables)
        options.taken.update(tables.taken)
        stream = partial(source.edges)
        weakref.finalize(stream, stack.pop_all().close)
    return replace(
        source,
        path=path,
        edges=stream,
        inputs=(path, *map(Path, options.nodes)),
        ignored=tuple(line for line in source.ignored if not line.startswith("header in line")),
        undirected=not graph.is_directed(),
        sample=None,
        edges_after=None,
    )


def _check_edges(path: Path, graph: Any, options: ConvertOptions) -> None:
    """Raise `InputError` for an edge without a weight or feature that others have."""
    columns = [word.rpartition("=")[2] for word in options.columns or WEIGHTS]
    read = {*columns, *(options.edge_features or ())}
    edges = list(graph.edges(data=True))
    for name in {name for *_, data in edges for name in data if name in read}:
        for source, target, data in edges:
            if data.get(name) is None:
                raise InputError(
                    f"{path}: edge {source!r} -> {target!r} has no {name}, and others do; give it "
                    "one, or name the columns to read with --columns src=src,dst=dst"
                )


def _graph(path: Path) -> Any:
    networkx = import_module("networkx")
    plain = path.stem if path.suffix == ".gz" else path.name
    reader = _READERS.get(Path(plain).suffix.lower())
    if reader is None:
        raise InputError(f"{path}: networkx reads {', '.join(_READERS)}; rename the file")
    try:
        return getattr(networkx, reader)(require_file(path))
    except InputError:
        raise
    except Exception as error:
        # networkx's parsers raise exceptions of many types on damaged files.
        raise InputError(
            f"{path}: networkx cannot read it ({type(error).__name__}: {one_line(error)[:200]}); "
            "save it again"
        ) from error


def _write(path: Path, ends: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    """Write rows, each ids and a dict of attributes, as a table; bools become 0 or 1."""
    rows = list(rows)
    attributes = dict.fromkeys(name for *_, data in rows for name in data)
    names = [name for name in attributes if name not in ends]
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow([*ends, *names])
        for *ids, data in rows:
            values = (data.get(name) for name in names)
            table.writerow([*ids, *(int(v) if isinstance(v, bool) else v for v in values)])
