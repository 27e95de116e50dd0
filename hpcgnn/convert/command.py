"""The command that turns a graph in any known format into a store."""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path

from hpcgnn.comm import Communicator, RankGroup
from hpcgnn.console import print_json, print_table, report
from hpcgnn.convert.formats.registry import FORMATS, convert, detect
from hpcgnn.convert.pipeline import Report
from hpcgnn.convert.source import ConvertOptions
from hpcgnn.convert.splits import parse_shares
from hpcgnn.errors import InputError
from hpcgnn.launch import RankArgumentParser

_MOST_ROWS = 40
"""Lines that a table of relations or types takes at most."""


def main(arguments: Sequence[str] | None = None, comm: "Communicator | None" = None) -> int:
    """Convert as the command line says; return the exit status.

    On all ranks of `comm`, the first of which tells of it, or as one process. Raises `InputError`
    for faulty input.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    ranks = RankGroup.of(comm)
    if words[:1] == ["programs"]:
        with ranks.agree():
            if ranks.size > 1:
                raise InputError("programs are converted by one process: start no other ranks")
        # Its imports take longer than the conversion of a small graph.
        import_module("hpcgnn.convert.programs.command").main(words[1:])
        return 0
    given = _parser().parse_args(words)
    tell = report if ranks.rank == 0 else _stay_silent
    with ranks.agree():
        options = _options(given)
    path = Path(given.input[0])
    found = ranks.from_first(lambda: detect(path) if given.format is None else None)
    name, reason = found or (given.format, "given")
    if found is not None:
        if name == "edge-list" and "relation" in re.split("[,=]", given.columns or ""):
            name, reason = "typed-edge-list", "--columns names a relation"
        tell(f"format: {name} ({reason})")
    started = time.perf_counter()
    result = convert(
        path, given.output, format_name=name, options=options, ranks=ranks, resume=given.resume
    )
    if ranks.rank > 0:
        return 0
    seconds = time.perf_counter() - started
    if given.json:
        print_json(_summary(result, name, seconds))
    else:
        _show(result, name, seconds)
    return 0


def _stay_silent(_: str) -> None:
    return None


def _parser() -> RankArgumentParser:
    parser = RankArgumentParser(
        "convert",
        formatter_class=argparse.HelpFormatter,
        description="Convert a graph into a store (HDF5). docs/formats.md describes each format. "
        "Started with mpiexec or srun, all ranks divide edge lists: the same store on any number.",
        epilog="python -m hpcgnn.convert programs --help: program graphs from Python sources. "
        "formats: " + "; ".join(f"{name}: {each.about}" for name, each in FORMATS.items()),
    )
    parser.add_argument(
        "input",
        metavar="INPUT",
        nargs="+",
        help="file or folder to read; several edge lists are read one after the other",
    )
    parser.add_argument("-o", "--output", metavar="OUT.h5", required=True, help="store to write")
    parser.add_argument(
        "--format", metavar="F", choices=list(FORMATS), help="default: told from the input"
    )
    parser.add_argument("--name", help="name of the graph (default: from INPUT)")
    parser.add_argument("--undirected", action="store_true", help="add the reverse of each edge")
    parser.add_argument("--reverse", action="store_true", help="swap the ends of each edge")
    parser.add_argument(
        "--self-loops", choices=("keep", "add", "drop"), default="keep", help="default: keep"
    )
    parser.add_argument(
        "--duplicates",
        choices=("first", "sum", "error"),
        default="first",
        help="edges given more than once: the first counts (default), weights are summed, or fail",
    )
    parser.add_argument(
        "--relabel",
        action="store_true",
        help="edge lists: number the ids that occur from 0, in their order, and keep them",
    )
    parser.add_argument(
        "--num-nodes", type=int, metavar="N", help="edge lists (default: largest id + 1)"
    )
    parser.add_argument(
        "--columns",
        metavar="A,B,...",
        help="edge lists: what each field of a line is: src, dst, weight, relation or skip; or "
        "by the names of a header: src=NAME,dst=NAME,...",
    )
    parser.add_argument(
        "--names", action="store_true", help="edge lists: take all ids as names, numbers too"
    )
    parser.add_argument(
        "--nodes",
        action="append",
        default=[],
        metavar="FILE",
        help="table of nodes (csv, tsv, parquet) or matrix of their features (npy); repeatable",
    )
    parser.add_argument(
        "--node-columns",
        metavar="ROLE=NAME,...",
        help="columns of --nodes by name or place: id, label, split, ignore; several as A+B",
    )
    parser.add_argument(
        "--features",
        metavar="A,B,...",
        help="columns of --nodes that are features, also of vectors (default: all other numbers)",
    )
    parser.add_argument(
        "--label-separator",
        metavar="TEXT",
        help="what stands between the labels of a node that may have several",
    )
    parser.add_argument(
        "--edge-features",
        metavar="A,B,...",
        help="columns of edge lists that are features of the edges",
    )
    parser.add_argument(
        "--graphs",
        metavar="FILE",
        help="table of graphs: graph, label, split; for nodes with a column graph",
    )
    parser.add_argument(
        "--nodes-from-edges",
        action="store_true",
        help="admit nodes that occur in edges only, beside those of --nodes",
    )
    parser.add_argument(
        "--split-file",
        action="append",
        default=[],
        metavar="[NAME=]A,B,C",
        help="files of the ids that train, validate and test; repeatable",
    )
    parser.add_argument(
        "--root", metavar="DIR", help="pyg: the folder of torch-geometric's data set"
    )
    parser.add_argument(
        "--split", metavar="S", help="which of several splits: OGB folder name, npz mask column"
    )
    parser.add_argument(
        "--random-split",
        metavar="A,B,C",
        help="draw a split: percentages of the nodes with labels that train, validate and test",
    )
    parser.add_argument(
        "--split-seed", type=int, metavar="S", help="seed of --random-split (default: 0)"
    )
    parser.add_argument(
        "--per-class", type=int, metavar="N", help="--random-split: N nodes of each class train"
    )
    parser.add_argument(
        "--dtype",
        choices=("float16", "float32", "float64"),
        help="type of the stored features (default: as in the input; float32 from text)",
    )
    parser.add_argument(
        "--memory",
        type=int,
        default=1024,
        metavar="MIB",
        help="for edges, names, of each process (default: 1024)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep sorted edges in OUT.h5.parts; go on from what an ended conversion left there",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(text.split(","))


def _options(given: argparse.Namespace) -> ConvertOptions:
    if given.memory < 1:
        raise InputError(f"--memory {given.memory}: give at least 1 (MiB)")
    if given.num_nodes is not None and given.num_nodes < 1:
        raise InputError(f"--num-nodes {given.num_nodes}: give at least 1")
    plain = {each.name for each in fields(ConvertOptions)} & set(vars(given))
    plain -= {"columns", "random_split", "nodes", "node_columns", "features", "edge_features"}
    chosen = {name: getattr(given, name) for name in plain}
    return ConvertOptions(
        columns=_words(given.columns),
        more_inputs=tuple(given.input[1:]),
        nodes=tuple(given.nodes),
        node_columns=_words(given.node_columns),
        features=_words(given.features),
        edge_features=_words(given.edge_features),
        split_files=tuple(given.split_file),
        random_split=None if given.random_split is None else parse_shares(given.random_split),
        memory_bytes=given.memory << 20,
        **chosen,
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
        "input_edges": result.input_edges,
        "zero_edges": result.zero_edges,
        "self_loops": result.self_loops,
        "ignored": list(result.ignored),
        "seconds": round(seconds, 3),
        "missing": dict(result.missing),
        "targets": None if result.targets is None else str(result.targets),
    }


def _show(result: Report, format_name: str, seconds: float) -> None:
    rows: list[tuple[str, object]] = []
    for key, value in _summary(result, format_name, seconds).items():
        if (
            key in ("missing", "targets")
            or (key == "num_graphs" and not value)
            or (key == "relations" and list(result.edges) == [""])
        ):
            continue
        if isinstance(value, dict):
            shown = list(value.items())[:_MOST_ROWS]
            rows += [(f"{key}: {name}".rstrip(": "), _text(each)) for name, each in shown]
            if len(value) > _MOST_ROWS:
                rows.append((f"{key}: {len(value) - _MOST_ROWS} more", ""))
        elif isinstance(value, list):
            rows += [(key, ", ".join(map(str, value)))] if value else []
        else:
            rows.append((key, value))
    print_table(f"store {result.path}", ("field", "value"), rows)
    if result.link_split:
        more = " model.embeddings=true" if "features" in result.missing else ""
        ready = f"train.task=links graph.store={result.path}{more}"
        report(f"ready for predicting links: {ready}", sys.stdout)
    if result.missing:
        report(
            f"for predicting classes the store lacks {', '.join(result.missing)}; supply",
            sys.stdout,
        )
    else:
        more = "" if result.targets is None else f" graph.targets={result.targets}"
        more += " train.task=graphs" if result.num_graphs else ""
        report(f"ready for training: graph.store={result.path}{more}", sys.stdout)
    for what, remedy in result.missing.items():
        report(f"  {what}: {remedy}", sys.stdout)


def _text(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return ", ".join(f"{name} {number}" for name, number in value.items())
