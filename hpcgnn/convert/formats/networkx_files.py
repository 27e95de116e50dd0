"""Files that networkx reads whole: nodes and edges become tables, which are read as such."""

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
    """Read a graph with what is known of its nodes and edges; raises `InputError`."""
    graph = _graph(path)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        nodes, edges = folder / f"{path.name}-nodes.csv", folder / f"{path.name}-edges.csv"
        # What GEXF calls a label is how a node is called.
        known = graph.nodes(data=True)
        if len({each.get("label") for _, each in known}) == len(graph):
            known = [
                (node, {k: v for k, v in each.items() if k != "label"}) for node, each in known
            ]
        _write(nodes, ["id"], known)
        _write(edges, ["src", "dst"], graph.edges(data=True))
        tables = replace(options, nodes=(str(nodes), *options.nodes))
        table = node_tables(tables).tables[0]
        for name in (table.file.names[column] for column in table.features):
            bare = [node for node, each in known if each.get(name) is None]
            if bare:
                raise InputError(
                    f"{path}: node {bare[0]!r} has no {name}, which is a feature; give it one, or "
                    f"leave all out with --node-columns ignore={name}"
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
        ignored=tuple(each for each in source.ignored if not each.startswith("header in line")),
        undirected=not graph.is_directed(),
        sample=None,
        edges_after=None,
    )


def _graph(path: Path) -> Any:
    networkx = import_module("networkx")
    plain = path.stem if path.suffix == ".gz" else path.name
    reader = _READERS.get(Path(plain).suffix.lower())
    if reader is None:
        raise InputError(f"{path}: networkx reads {', '.join(_READERS)}; name it so")
    try:
        return getattr(networkx, reader)(require_file(path))
    except InputError:
        raise
    except Exception as error:
        # Its parsers fail in countless ways at a damaged file.
        raise InputError(
            f"{path}: networkx cannot read it ({type(error).__name__}: {one_line(error)[:200]}); "
            "save it again"
        ) from error


def _write(path: Path, ends: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    """Write a table of rows that end with a dictionary, in which bool is 0 or 1."""
    listed = list(rows)
    attributes = dict.fromkeys(name for *_, data in listed for name in data)
    names = [name for name in attributes if name not in ends]
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow([*ends, *names])
        for *ids, data in listed:
            values = (data.get(name) for name in names)
            table.writerow([*ids, *(int(v) if isinstance(v, bool) else v for v in values)])
