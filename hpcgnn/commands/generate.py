"""``python -m hpcgnn.generate``: write a made graph, or the bundled real one, as a store."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcgnn.comm import Communicator, RankGroup
from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.command import Command, Processes
from hpcgnn.console import print_json, print_table, report
from hpcgnn.errors import InputError
from hpcgnn.gallery import (
    DEBIAN_SPLIT_SEED,
    CommunityEdges,
    CommunityNodes,
    EdgeChunks,
    GalleryGraph,
    GridEdges,
    NodeBlocks,
    RandomNodes,
    RmatEdges,
    StreamedGraph,
    debian_packages,
    planted,
    planted_graphs,
    planted_types,
    tables,
    write_streamed,
)
from hpcgnn.storage import GraphStore, StoreHeader, check_output, write_whole

MEBIBYTE = 1 << 20
"""The unit of --memory, which tests make small."""


def main(options: argparse.Namespace, comm: "Communicator | None") -> int:
    """Generate the graph that the command line names; return the exit status."""
    ranks = RankGroup.of(comm)
    began = time.perf_counter()
    with ranks.agree():
        if comm is not None and not hasattr(options, "memory"):
            raise InputError(
                "this kind is made in the memory of one process: start it without mpiexec or srun; "
                "rmat, grid3d and communities are made by many ranks"
            )
        if ranks.rank == 0:
            options.check(options.output)
        made = options.generate(options)
    if made is not None:
        write_streamed(options.output, made, ranks)
    if ranks.rank == 0:
        options.show(options, time.perf_counter() - began)
    return 0


def parser() -> CommandParser:
    """Return the arguments.

    `generate` of its result writes the store, or returns a `StreamedGraph` to write.
    """
    cli = CommandParser(
        "generate",
        description="Write a graph as a store, with features, labels and a 60/20/20 split. rmat, "
        "grid3d and communities are made in bounded memory, and also by many ranks, started with "
        "mpiexec or srun: the same store on any number.",
    )
    kinds = cli.add_subparsers(title="kinds", metavar="KIND", required=True)
    add_rmat(kinds)
    add_grid3d(kinds)
    add_communities(kinds)
    add_planted(kinds, "planted", planted, "communities with power-law degrees")
    text = "items, users and tags in communities, with features of their own or none"
    add_planted(kinds, "planted-types", planted_types, text)
    add_planted_graphs(kinds)
    add_debian(kinds)
    add_tables(kinds)
    return cli


def add_rmat(kinds: Any) -> None:
    """Add the sub-command rmat."""
    text = "R-MAT graph of 2**SCALE nodes; random features and labels"
    cli = add_kind(kinds, "rmat", text, generate_rmat)
    cli.add_argument("--scale", type=count, required=True, help="log2 of the number of nodes")
    text = "edges drawn per node (default: 16)"
    cli.add_argument("--edge-factor", type=count, default=16, help=text)
    for name, default in (("a", 0.57), ("b", 0.19), ("c", 0.19)):
        text = f"quadrant probability (default: {default}, as Graph500)"
        cli.add_argument(f"--{name}", type=float, default=default, help=text)
    cli.add_argument("--undirected", action="store_true", help="add the reverse of every edge")
    add_streamed(cli)


def generate_rmat(options: argparse.Namespace) -> StreamedGraph:
    """Return an R-MAT graph."""
    edges = RmatEdges(
        options.scale, options.edge_factor, options.seed, options.a, options.b, options.c
    )
    return streamed(options, f"rmat-{options.scale}", edges, RandomNodes, options.undirected)


def add_grid3d(kinds: Any) -> None:
    """Add the sub-command grid3d."""
    text = "7-point grid, undirected; random features and labels"
    cli = add_kind(kinds, "grid3d", text, generate_grid3d)
    cli.add_argument("--shape", type=grid_shape, required=True, metavar="X,Y,Z")
    add_streamed(cli)


def generate_grid3d(options: argparse.Namespace) -> StreamedGraph:
    """Return a 3-D grid."""
    name = "grid3d-" + "x".join(str(length) for length in options.shape)
    return streamed(options, name, GridEdges(options.shape), RandomNodes, True)


def add_communities(kinds: Any) -> None:
    """Add the sub-command communities."""
    text = "communities with power-law degrees; labels that a model can learn; of any size"
    cli = add_kind(kinds, "communities", text, generate_communities)
    cli.add_argument("--nodes", type=count, required=True, help="number of nodes")
    text = "edges drawn per node, times two (default: 10)"
    cli.add_argument("--mean-degree", type=float, default=10.0, help=text)
    text = "share of the edges that ignore communities (default: 0.2)"
    cli.add_argument("--mixing", type=float, default=0.2, help=text)
    text = "of the power law of degrees, above 2 (default: 2.5)"
    cli.add_argument("--exponent", type=float, default=2.5, help=text)
    add_streamed(cli)


def generate_communities(options: argparse.Namespace) -> StreamedGraph:
    """Return a block model whose labels are its blocks."""
    chosen = (options.mean_degree, options.mixing, options.exponent)
    edges = CommunityEdges(options.nodes, options.classes, options.seed, *chosen)
    return streamed(options, "communities", edges, CommunityNodes, True)


def add_planted(
    kinds: Any, name: str, make: Callable[[int, int, int, int], GalleryGraph], text: str
) -> None:
    """Add a sub-command for a graph with communities, which `make` returns."""
    text = f"{text}; labels that a model can learn; made in memory"
    cli = add_kind(kinds, name, text, generate_planted)
    cli.set_defaults(make=make)
    cli.add_argument("--nodes", type=count, required=True, help="number of nodes")
    add_node_data(cli, 32, 8)


def generate_planted(options: argparse.Namespace) -> None:
    """Write a graph with planted communities."""
    for name in ("nodes", "features", "classes"):
        if not getattr(options, name):
            raise InputError(f"--{name} 0: a planted graph needs at least 1")
    graph = options.make(options.nodes, options.classes, options.features, options.seed)
    graph.write(options.output, provenance())


def add_planted_graphs(kinds: Any) -> None:
    """Add the sub-command planted-graphs."""
    text = "many small graphs; classes and numbers of whole graphs to learn; made in memory"
    cli = add_kind(kinds, "planted-graphs", text, generate_planted_graphs)
    cli.add_argument("--graphs", type=count, required=True, help="number of graphs")
    text = "also write a number of each graph, which graph.targets names; noise has deviation 0.25"
    cli.add_argument("--targets", type=Path, metavar="FILE.csv", help=text)
    add_node_data(cli, 8, 3)


def generate_planted_graphs(options: argparse.Namespace) -> None:
    """Write graphs with planted classes, and their planted numbers."""
    for name in ("graphs", "features", "classes"):
        if not getattr(options, name):
            raise InputError(f"--{name} 0: planted graphs need at least 1")
    made = planted_graphs(options.graphs, options.classes, options.features, options.seed)
    made.graphs.write(options.output, provenance())
    if options.targets is not None:
        lines = [f"{number},{value:.9g}" for number, value in enumerate(made.targets.tolist())]
        text = "\n".join(["graph,target", *lines, ""])
        write_whole(options.targets, text.encode())


def add_debian(kinds: Any) -> None:
    """Add the sub-command debian-packages."""
    text = "packages of Debian 12: 58 classes, typed edges; the bundled real graph"
    cli = add_kind(kinds, "debian-packages", text, generate_debian, seed=False)
    text = f"seed of the split (default: {DEBIAN_SPLIT_SEED})"
    cli.add_argument("--split-seed", type=count, default=DEBIAN_SPLIT_SEED, help=text)
    text = "virtual packages too, as nodes of another type without features"
    cli.add_argument("--virtual", action="store_true", help=text)
    cli.add_argument("--names", type=Path, metavar="FILE", help="also write the packages' names")


def generate_debian(options: argparse.Namespace) -> None:
    """Write the bundled debian-packages graph."""
    graph = debian_packages(options.split_seed, virtual=options.virtual)
    graph.write(options.output, provenance())
    if options.names is not None:
        write_whole(options.names, "".join(f"{name}\n" for name in graph.node_names).encode())


def add_tables(kinds: Any) -> None:
    """Add the sub-command tables."""
    text = "the small tables of the tutorials, as files for hpcgnn convert"
    cli = kinds.add_parser("tables", help=text, description=text)
    cli.set_defaults(generate=generate_tables, check=make_folder, show=show_tables)
    cli.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    cli.add_argument("--json", action="store_true", help="print their paths as JSON")
    cli.add_argument("--seed", type=count, default=0, help="random seed (default: 0)")


def make_folder(path: Path) -> None:
    """Make a folder unless it is there; raises `InputError`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; name a folder") from None


def generate_tables(options: argparse.Namespace) -> None:
    """Write the tables, each over a file of its name."""
    for name, content in tables(options.seed).items():
        make_folder((options.output / name).parent)
        write_whole(options.output / name, content)


def show_tables(options: argparse.Namespace, _: float) -> None:
    """Say which files were written."""
    names = sorted(tables(options.seed))
    if options.json:
        print_json({"files": [str(options.output / name) for name in names]})
        return
    entries = dict.fromkeys(name.partition("/")[0] for name in names)
    report(f"wrote {len(names)} files in {options.output}: {' '.join(entries)}")


def add_kind(kinds: Any, name: str, text: str, generate: Any, seed: bool = True) -> Any:
    """Add a sub-command with the options that all kinds have."""
    cli = kinds.add_parser(name, help=text, description=text)
    cli.set_defaults(generate=generate, check=check_output, show=show_store)
    cli.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.h5")
    cli.add_argument("--json", action="store_true", help="print a summary as JSON")
    if seed:
        cli.add_argument("--seed", type=count, default=0, help="random seed (default: 0)")
    return cli


def add_node_data(cli: Any, num_features: int, num_classes: int) -> None:
    """Add the options for features and labels."""
    text = f"columns (default: {num_features})"
    cli.add_argument("--features", type=count, default=num_features, help=text)
    text = f"number (default: {num_classes})"
    cli.add_argument("--classes", type=count, default=num_classes, help=text)


def add_streamed(cli: Any) -> None:
    """Add the options of graphs that are made in bounded memory."""
    add_node_data(cli, 64, 16)
    text = "MiB of edges that a process keeps before they go to temporary files beside OUT.h5 "
    text += "(default: 1024)"
    cli.add_argument("--memory", type=at_least_one, default=1024, metavar="MIB", help=text)


def streamed(
    options: argparse.Namespace,
    name: str,
    edges: EdgeChunks,
    make_nodes: Callable[[int, int, int, int], NodeBlocks],
    undirected: bool,
) -> StreamedGraph:
    """Return a graph of edge chunks and the node data that `make_nodes` makes."""
    header = StoreHeader(
        name=name,
        num_nodes=edges.num_nodes,
        num_classes=options.classes,
        undirected=undirected,
        provenance=provenance(),
    )
    nodes = make_nodes(edges.num_nodes, options.features, options.classes, options.seed)
    return StreamedGraph(header, edges, nodes, options.memory * MEBIBYTE)


def provenance() -> dict[str, Any]:
    """Return what to record in the store."""
    return {"command": ["hpcgnn.generate", *sys.argv[1:]]}


def count(text: str) -> int:
    """Return the non-negative integer in `text`, for argparse."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def at_least_one(text: str) -> int:
    """Return the positive integer in `text`, for argparse."""
    value = count(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0: give at least 1")
    return value


def grid_shape(text: str) -> tuple[int, ...]:
    """Return the three positive lengths in `text`, for argparse."""
    shape = tuple(int(length) for length in text.split(","))
    if len(shape) != 3 or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not three positive lengths such as 20,30,40")
    return shape


def show_store(options: argparse.Namespace, seconds: float) -> None:
    """Print what the written store holds."""
    with GraphStore.open(options.output) as store:
        relations = {name: store.num_edges(name) for name in store.relations}
        types = {each.name: each.num_nodes for each in store.node_types}
        summary = {
            "path": str(options.output),
            "name": store.name,
            "num_nodes": store.num_nodes,
            "num_edges": store.num_edges(),
            "num_features": store.num_features,
            "num_classes": store.num_classes,
            "undirected": store.undirected,
            "fingerprint": store.fingerprint,
            "seconds": round(seconds, 3),
        }
    if options.json:
        print_json(summary | {"relations": relations, "node_types": types})
        return
    named = [(f"nodes: {name}", number) for name, number in types.items()]
    named += [(f"edges: {name}", number) for name, number in relations.items() if name]
    print_table(str(options.output), ("property", "value"), [*summary.items(), *named])


COMMAND = Command("generate", parser, "hpcgnn.commands.generate:main", Processes.ANY)

if __name__ == "__main__":
    COMMAND.start()
