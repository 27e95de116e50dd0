"""Positions, weights and fields from files that accompany a graph of any format.

Row i of an array belongs to node or edge i; tables name their nodes.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.convert.divide_input import OneReaderError
from hpcgnn.convert.read.files import PARQUET
from hpcgnn.convert.read.npy import open_npy
from hpcgnn.convert.series import FieldArray, FieldSeries, join_fields, timed
from hpcgnn.convert.source import ConvertOptions, GraphSource, NodeArrays, check_array
from hpcgnn.convert.tables.node_rows import read_node_rows
from hpcgnn.convert.tables.series import read_edge_series, read_series
from hpcgnn.errors import InputError, instead_of

_ROWS = 1 << 20
_AXES = 3
_TABLES = (".csv", ".tsv", ".txt", *PARQUET)
_FILES = ("positions", "node_weights", "times", "trajectories", "series", "edge_series")


def with_fields(source: GraphSource, options: ConvertOptions) -> GraphSource:
    """Add the positions, weights and fields that the options name to a graph.

    Every rank that reads the graph calls this, and gets the rows of its nodes. Raises `InputError`.
    """
    files = [Path(path) for name in _FILES if (path := getattr(options, name)) is not None]
    mesh, counts = _mesh(source, options)
    fields = _fields(options)
    counts |= {array.where: array.shape[1] for array in fields if not array.of_edges}
    nodes, count = source.nodes, source.num_nodes
    if counts and (nodes.names is not None or nodes.original_id is not None):
        raise InputError(
            f"{next(iter(counts))}: its rows are nodes 0, 1, ..., but the nodes of {source.path} "
            "have ids of their own; number them from 0"
        )
    for where, number in counts.items():
        if count not in (None, number):
            raise InputError(f"{where}: has rows for {number} nodes, and the graph has {count}")
        count = number
    for flag, path in (("--series", options.series), ("--edge-series", options.edge_series)):
        if path is not None and options.ranks.moves_rows:
            raise OneReaderError(flag)
    if options.series is not None:
        if any(not array.of_edges for array in fields) or nodes.series is not None:
            raise InputError("--series: the graph already has fields; leave one of them out")
        nodes = replace(nodes, series=read_series(replace(source, num_nodes=count), options))
    series = _series(nodes, fields, options)
    if options.edge_series is not None:
        table = read_edge_series(replace(source, num_nodes=count), options)
        series = table if series is None else series.joined(table, options.edge_series)
    if series is not None and series.of_edges and (options.undirected or source.undirected):
        series = replace(series, fluxes=_fluxes(series, options))
    nodes = replace(nodes, **mesh, series=series and series.in_order())
    of_edges = series is not None and series.of_edges
    if of_edges and options.ranks.moves_rows:
        raise OneReaderError("fields of edges")
    if of_edges and source.relations != ("",):
        raise InputError(
            f"{source.path}: fields of edges need a graph with a single unnamed relation; "
            f"it has {', '.join(map(repr, source.relations[:4]))}"
        )
    if nodes.box and nodes.positions is None:
        raise InputError("--box: there are no positions; give --positions, or leave it out")
    return replace(
        source,
        nodes=nodes,
        num_nodes=count,
        counted=source.counted or bool(counts),
        keeps_places=of_edges,
        inputs=(*source.inputs, *files, *(Path(array.where) for array in fields)),
    )


def _mesh(source: GraphSource, options: ConvertOptions) -> tuple[dict[str, Any], dict[str, int]]:
    """Return positions, periods and weights, and the number of rows in each file."""
    arrays: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for name, shape, most in (("positions", "[n, D]", _AXES), ("node_weights", "[n]", 1)):
        if (path := options.take(name)) is None:
            continue
        if Path(path).suffix.lower() in _TABLES:
            flag = f"--{name.replace('_', '-')}"
            rows = read_node_rows(flag, Path(path), most, source, options)
            rows = rows[:, 0] if most == 1 else rows
            if source.num_nodes is None:
                counts[path] = len(rows)
        else:
            array = open_npy(Path(path))
            check_array(array, array.where, shape, "iuf")
            own = options.ranks.range_of(array.shape[0])
            blocks = list(array.rows(_ROWS, options.memory_bytes, own))
            rows = np.concatenate([np.empty((0, *array.shape[1:])), *blocks])
            counts[array.where] = array.shape[0]
        arrays[name.removeprefix("node_")] = rows.astype(np.float64, copy=False)
    if (box := options.take("box")) is not None:
        try:
            arrays["box"] = tuple(float(word) for word in box)
        except ValueError:
            raise InputError(
                f"--box {','.join(box)}: give the period of each axis as a number, 0 for none"
            ) from None
    return arrays, counts


def _fields(options: ConvertOptions) -> list[FieldArray]:
    """Return the fields of --fields and --edge-fields, mapped into memory."""
    flags = {"--fields": "fields", "--edge-fields": "edge_fields"}
    paths = {flag: _pairs(flag, options.take(name)) for flag, name in flags.items()}
    names = [name for pairs in paths.values() for name in pairs]
    units = _pairs("--units", options.take("units") if names else None)
    for name in units:
        if name not in (*names, "times"):
            raise InputError(f"--units {name}: is neither a field of --fields nor times")
    return [
        FieldArray.of_file(
            open_npy(Path(path)), name, units.get(name, ""), of_edges=flag == "--edge-fields"
        )
        for flag, pairs in paths.items()
        for name, path in pairs.items()
    ]


def _series(
    nodes: NodeArrays, fields: Sequence[FieldArray], options: ConvertOptions
) -> FieldSeries | None:
    """Join the fields with those of the graph, at the times that the options give."""
    series = nodes.series
    if fields:
        if series is not None and options.series is None and options.fields:
            raise InputError("--fields: the input has fields of its own; leave one of them out")
        unit = _pairs("--units", options.units).get("times", "")
        if series is None:
            series = join_fields(fields, None, unit=unit)
        else:
            series = replace(series, fields=(*series.fields, *fields))
    if series is None:
        return None
    paths = [options.take(name) for name in ("times", "trajectories")]
    if not any(paths):
        return series
    times, starts = (None if path is None else open_npy(Path(path)).load() for path in paths)
    return timed(series, times, starts, " and ".join(filter(None, paths)))


def _fluxes(series: FieldSeries, options: ConvertOptions) -> frozenset[str]:
    """Return the fields of --fluxes, negated on reverse edges; raises `InputError`."""
    fluxes = options.take("fluxes") or ()
    names = [array.name for array in series.fields if array.of_edges]
    for name in fluxes:
        if name not in names:
            raise InputError(f"--fluxes {name}: is no field of edges; {instead_of(name, names)}")
    return frozenset(fluxes)


def _pairs(flag: str, words: tuple[str, ...] | None) -> dict[str, str]:
    """Parse words of the form NAME=TEXT into a dict."""
    pairs: dict[str, str] = {}
    for word in words or ():
        name, equals, text = word.partition("=")
        if not (name and equals and text) or name in pairs:
            raise InputError(f"{flag} {word}: give NAME=..., each name once")
        pairs[name] = text
    return pairs
