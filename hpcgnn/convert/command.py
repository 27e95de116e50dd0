"""The command that converts a graph in any known format into a store."""

import argparse
import sys
import time
from dataclasses import fields
from pathlib import Path

from hpcgnn.comm import Communicator, RankGroup
from hpcgnn.console import print_json, print_values, report, report_next
from hpcgnn.convert.formats.registry import convert, detect
from hpcgnn.convert.pipeline import Report
from hpcgnn.convert.source import ConvertOptions
from hpcgnn.convert.splits import parse_shares
from hpcgnn.errors import InputError

_MOST_ROWS = 40
"""Most lines that a table of relations or types takes."""


def main(args: argparse.Namespace, comm: "Communicator | None") -> int:
    """Convert a graph with the options `args`; return the exit status. Raises `InputError`."""
    ranks = RankGroup.of(comm)
    with ranks.agree():
        options = _options(args)
    path = Path(args.input[0])
    detected = ranks.from_first(lambda: detect(path) if args.format is None else None)
    name, reason = detected or (args.format, "given")
    if detected is not None:
        roles = [role for word in args.columns or () for role in word.split("=")]
        if name == "edge-list" and "relation" in roles:
            name, reason = "typed-edge-list", "--columns names a relation"
        if ranks.rank == 0:
            report(f"format: {name} ({reason})")
    started = time.perf_counter()
    result = convert(
        path,
        args.output,
        format_name=name,
        options=options,
        ranks=ranks,
        resume=args.resume,
    )
    if ranks.rank > 0:
        return 0
    seconds = time.perf_counter() - started
    if args.json:
        print_json(_summary(result, name, seconds))
    else:
        _show(result, name, seconds)
    return 0


def _options(args: argparse.Namespace) -> ConvertOptions:
    if args.num_nodes is not None and args.num_nodes < 1:
        raise InputError(f"--num-nodes {args.num_nodes}: give at least 1")
    plain = {option.name for option in fields(ConvertOptions)} & set(vars(args))
    values = {name: getattr(args, name) for name in plain - {"random_split", "nodes"}}
    return ConvertOptions(
        more_inputs=tuple(args.input[1:]),
        nodes=tuple(args.nodes),
        split_files=tuple(args.split_file),
        random_split=None if args.random_split is None else parse_shares(args.random_split),
        memory_bytes=args.memory,
        **values,
    )


def _summary(result: Report, format_name: str, seconds: float) -> dict[str, object]:
    header = result.header
    return {
        "path": str(result.path),
        "format": format_name,
        "name": header.name,
        "num_nodes": header.num_nodes,
        "num_graphs": result.num_graphs,
        "num_edges": sum(result.edges.values()),
        "relations": dict(result.edges),
        "num_features": result.num_features,
        "sparse_features": result.sparse_features,
        "node_types": {
            kind.name: {
                "num_nodes": kind.num_nodes,
                "num_features": 0 if kind.features is None else kind.features.num_columns,
            }
            for kind in result.node_types
        },
        "num_classes": header.num_classes,
        "multi_label": header.multi_label,
        "undirected": header.undirected,
        "split": dict(result.split),
        "edge_features": {
            relation: columns.num_features
            for relation, columns in result.columns.items()
            if columns.num_features
        },
        "link_split": dict(result.link_split),
        "edge_labels": list(header.edge_labels),
        "fields": dict(result.fields),
        "num_steps": result.num_steps,
        "missing_values": dict(result.missing_values),
        "input_edges": result.input_edges,
        "zero_edges": result.zero_edges,
        "self_loops": result.self_loops,
        "ignored": list(result.ignored),
        "seconds": round(seconds, 3),
        "missing": dict(result.missing),
        "targets": None if result.targets is None else str(result.targets),
    }


def _show(result: Report, format_name: str, seconds: float) -> None:
    shown: dict[str, object] = {}
    for key, value in _summary(result, format_name, seconds).items():
        if (
            key in ("missing", "targets")
            or (key in ("num_graphs", "num_steps") and not value)
            or (key == "relations" and list(result.edges) == [""])
        ):
            continue
        if isinstance(value, dict):
            for name, entry in list(value.items())[:_MOST_ROWS]:
                shown[f"{key}: {name}".rstrip(": ")] = entry
            if len(value) > _MOST_ROWS:
                shown[f"{key}: {len(value) - _MOST_ROWS:,} more"] = ""
        elif value != []:
            shown[key] = value
    print_values(f"store {result.path}", shown, made=True)
    of_edges = len(result.header.edge_labels) > 0
    if result.link_split and not of_edges:
        more = " model.embeddings=true" if "features" in result.missing else ""
        ready = f"train.task=links graph.store={result.path}{more}"
        report(f"ready for predicting links: {ready}", sys.stdout)
    if result.fields:
        report(f"ready for fields: train.task=fields graph.store={result.path}", sys.stdout)
    elif of_edges:
        report(f"ready for labels of edges: train.task=edges graph.store={result.path}", sys.stdout)
    elif result.missing:
        report(
            f"for predicting classes the store lacks {', '.join(result.missing)}; supply",
            sys.stdout,
        )
    else:
        more = "" if result.targets is None else f" graph.targets={result.targets}"
        more += " train.task=graphs" if result.num_graphs else ""
        report(f"ready for training: graph.store={result.path}{more}", sys.stdout)
    for field, remedy in result.missing.items():
        # Predicting edge labels needs no node labels or split, but still needs node features.
        if field == "features" or not of_edges:
            report(f"  {field}: {remedy}", sys.stdout)
    if result.link_split or of_edges or not result.missing:
        report_next("init", result.path)
