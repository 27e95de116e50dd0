"""``python -m hpcgnn.generate``: write a made graph, or the bundled real one, as a store."""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.comm import Communicator, RankGroup
from hpcgnn.commands.arguments import find_object
from hpcgnn.commands.launch import start
from hpcgnn.console import print_json, print_values, report, report_next
from hpcgnn.errors import InputError
from hpcgnn.gallery import (
    KINDS,
    PLACES,
    REYNOLDS_OF_A_CELL,
    BoxMesh,
    Channel,
    CommunityEdges,
    CommunityNodes,
    CoolingBoxes,
    EdgeChunks,
    GridEdges,
    MovedNodes,
    RandomNodes,
    RmatEdges,
    StreamedGraph,
    VortexStreets,
    channel_mesh,
    debian_packages,
    planted_graphs,
    tables,
    write_streamed,
)
from hpcgnn.storage import GraphStore, StoreHeader, write_whole

_LEAST_BOX = 3


def main(options: argparse.Namespace, comm: "Communicator | None") -> int:
    """Generate the graph that the command line names; return the exit status."""
    ranks = RankGroup.of(comm)
    began = time.perf_counter()
    with ranks.agree():
        if comm is not None and not hasattr(options, "memory"):
            raise InputError(
                "this kind is made in the memory of one process: start it without mpiexec or srun; "
                "rmat, grid3d, communities, flow and heat are made by many ranks"
            )
        if ranks.rank == 0:
            find_object(options.check)(options.output)
        streamed_graph = find_object(options.generate)(options)
    if streamed_graph is not None:
        write_streamed(options.output, streamed_graph, ranks)
    if ranks.rank == 0:
        find_object(options.show)(options, time.perf_counter() - began)
    return 0


def generate_rmat(options: argparse.Namespace) -> StreamedGraph:
    """Return an R-MAT graph."""
    edges = RmatEdges(
        options.scale, options.edge_factor, options.seed, options.a, options.b, options.c
    )
    return streamed(options, f"rmat-{options.scale}", edges, RandomNodes, options.undirected)


def generate_grid3d(options: argparse.Namespace) -> StreamedGraph:
    """Return a 3-D grid."""
    if len(options.shape) != 3:
        lengths = ",".join(map(str, options.shape))
        raise InputError(f"--shape {lengths}: is not three positive lengths such as 20,30,40")
    name = "grid3d-" + "x".join(str(length) for length in options.shape)
    edges = GridEdges(options.shape)
    if not options.edge_features:
        return streamed(options, name, edges, RandomNodes, True)
    moved = streamed(options, name, edges, partial(MovedNodes, mesh=box_mesh(options)), True)
    return replace(moved, header=replace(moved.header, edge_feature_names=("x", "y", "z")))


def generate_communities(options: argparse.Namespace) -> StreamedGraph:
    """Return a block model whose labels are its blocks."""
    chosen = (options.mean_degree, options.mixing, options.exponent)
    edges = CommunityEdges(options.nodes, options.classes, options.seed, *chosen)
    return streamed(options, "communities", edges, CommunityNodes, True)


def generate_flow(options: argparse.Namespace) -> StreamedGraph:
    """Return vortex streets behind a cylinder."""
    low, high = options.reynolds[0], options.reynolds[-1]
    if len(options.reynolds) > 2 or high > REYNOLDS_OF_A_CELL * options.cells:
        numbers_text = ",".join(map(str, options.reynolds))
        raise InputError(
            f"--reynolds {numbers_text}: give the least and the largest such as 80,120, up to "
            f"{REYNOLDS_OF_A_CELL} for each of {options.cells} cells across the cylinder (--cells)"
        )
    channel = Channel()
    mesh = channel_mesh(channel, options.nodes, options.seed)
    numbers = tuple(np.linspace(low, high, options.trajectories).tolist())
    streets = VortexStreets(mesh, numbers, options.steps, options.cells, options.seed, channel)
    header = mesh_header("flow", mesh.num_nodes, KINDS, ("x", "y", "length"))
    return StreamedGraph(header, mesh, mesh, options.memory, streets.fields())


def generate_heat(options: argparse.Namespace) -> StreamedGraph:
    """Return boxes that cool."""
    mesh = box_mesh(options)
    boxes = CoolingBoxes(mesh, options.trajectories, options.steps)
    header = mesh_header("heat", mesh.edges.num_nodes, PLACES, ("x", "y", "z", "length"))
    return StreamedGraph(header, mesh.edges, mesh, options.memory, boxes.fields())


def box_mesh(options: argparse.Namespace) -> BoxMesh:
    """Return a mesh of `--shape`."""
    if len(options.shape) != 3 or min(options.shape) < _LEAST_BOX:
        lengths = ",".join(map(str, options.shape))
        raise InputError(f"--shape {lengths}: is not three lengths from 3 on such as 17,17,17")
    return BoxMesh(options.shape, options.seed)


def mesh_header(
    name: str, num_nodes: int, features: tuple[str, ...], edge_features: tuple[str, ...]
) -> StoreHeader:
    """Return what stands in the store of a mesh, whose edges go both ways."""
    return StoreHeader(
        name=name,
        num_nodes=num_nodes,
        undirected=True,
        feature_names=features,
        edge_feature_names=edge_features,
        provenance=provenance(),
    )


def generate_planted(options: argparse.Namespace) -> None:
    """Write a graph with planted communities."""
    for name in ("nodes", "features", "classes"):
        if not getattr(options, name):
            raise InputError(f"--{name} 0: a planted graph needs at least 1")
    make = find_object(options.make)
    graph = make(options.nodes, options.classes, options.features, options.seed)
    graph.write(options.output, provenance())


def generate_planted_graphs(options: argparse.Namespace) -> None:
    """Write graphs with planted classes, and their planted numbers."""
    for name in ("graphs", "features", "classes"):
        if not getattr(options, name):
            raise InputError(f"--{name} 0: planted graphs need at least 1")
    planted = planted_graphs(options.graphs, options.classes, options.features, options.seed)
    planted.graphs.write(options.output, provenance())
    if options.targets is not None:
        lines = [f"{number},{value:.9g}" for number, value in enumerate(planted.targets.tolist())]
        text = "\n".join(["graph,target", *lines, ""])
        write_whole(options.targets, text.encode())


def generate_debian(options: argparse.Namespace) -> None:
    """Write the bundled debian-packages graph."""
    graph = debian_packages(options.split_seed, virtual=options.virtual)
    graph.write(options.output, provenance())
    if options.names is not None:
        write_whole(options.names, "".join(f"{name}\n" for name in graph.node_names).encode())


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


def streamed(
    options: argparse.Namespace,
    name: str,
    edges: EdgeChunks,
    make_nodes: Callable[[int, int, int, int], RandomNodes],
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
    return StreamedGraph(header, edges, nodes, options.memory)


def provenance() -> dict[str, Any]:
    """Return what to record in the store."""
    return {"command": ["hpcgnn.generate", *sys.argv[1:]]}


def show_store(options: argparse.Namespace, seconds: float) -> None:
    """Print what the written store holds."""
    with GraphStore.open(options.output) as store:
        relations = {name: store.num_edges(name) for name in store.relations}
        types = {each.name: each.num_nodes for each in store.node_types}
        fields = {each.name: each.num_columns for each in store.fields.values()}
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
        print_json(summary | {"relations": relations, "node_types": types, "fields": fields})
        return
    named = {f"nodes: {name}": number for name, number in types.items()}
    named |= {f"edges: {name}": number for name, number in relations.items() if name}
    named |= {f"columns: {name}": number for name, number in fields.items()}
    print_values(str(options.output), summary | named, made=True)
    report_next("init", options.output)


if __name__ == "__main__":
    start("generate")
