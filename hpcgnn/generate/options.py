"""What the command line of ``python -m hpcgnn.generate`` may say."""

import argparse
from pathlib import Path
from typing import Any

from hpcgnn.gallery import DEBIAN_FEATURES, DEBIAN_SPLIT_SEED, planted, planted_types
from hpcgnn.generate.graphs import (
    Planted,
    generate_debian,
    generate_grid3d,
    generate_planted,
    generate_rmat,
)

__all__ = ["parser"]


def parser() -> argparse.ArgumentParser:
    """Return the command's argument parser."""
    cli = argparse.ArgumentParser(
        prog="python -m hpcgnn.generate",
        description="Write a graph as a store, with features, labels and a 60/20/20 split.",
    )
    kinds = cli.add_subparsers(title="kinds", metavar="KIND", required=True)
    add_rmat(kinds)
    add_grid3d(kinds)
    add_planted(kinds, "planted", planted, "communities with power-law degrees")
    text = "items, users and tags in communities, with features of their own or none"
    add_planted(kinds, "planted-types", planted_types, text)
    add_debian(kinds)
    return cli


def add_kind(kinds: Any, name: str, text: str, generate: Any, seed: bool = True) -> Any:
    """Add a sub-command with the options that all kinds have."""
    cli = kinds.add_parser(name, help=text, description=text)
    cli.set_defaults(generate=generate)
    cli.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.h5")
    cli.add_argument("--json", action="store_true", help="print a summary as JSON")
    if seed:
        cli.add_argument("--seed", type=count, default=0, help="random seed (default: 0)")
    return cli


def add_node_data(cli: Any, num_features: int, num_classes: int) -> None:
    """Add the options for features and labels."""
    cli.add_argument(
        "--features", type=count, default=num_features, help=f"columns (default: {num_features})"
    )
    cli.add_argument(
        "--classes", type=count, default=num_classes, help=f"number (default: {num_classes})"
    )


def add_streamed(cli: Any) -> None:
    """Add the options of graphs that are made in bounded memory."""
    add_node_data(cli, 64, 16)
    cli.add_argument(
        "--memory",
        type=count,
        default=1024,
        metavar="MIB",
        help="MiB of edges kept before they go to temporary files beside OUT.h5 (default: 1024)",
    )


def add_rmat(kinds: Any) -> None:
    """Add the sub-command rmat."""
    text = "R-MAT graph of 2**SCALE nodes; random features and labels"
    cli = add_kind(kinds, "rmat", text, generate_rmat)
    cli.add_argument("--scale", type=count, required=True, help="log2 of the number of nodes")
    cli.add_argument(
        "--edge-factor", type=count, default=16, help="edges drawn per node (default: 16)"
    )
    for name, default in (("a", 0.57), ("b", 0.19), ("c", 0.19)):
        text = f"quadrant probability (default: {default}, as Graph500)"
        cli.add_argument(f"--{name}", type=float, default=default, help=text)
    cli.add_argument("--undirected", action="store_true", help="add the reverse of every edge")
    add_streamed(cli)


def add_grid3d(kinds: Any) -> None:
    """Add the sub-command grid3d."""
    text = "7-point grid, undirected; random features and labels"
    cli = add_kind(kinds, "grid3d", text, generate_grid3d)
    cli.add_argument("--shape", type=grid_shape, required=True, metavar="X,Y,Z")
    add_streamed(cli)


def add_planted(kinds: Any, name: str, make: Planted, text: str) -> None:
    """Add a sub-command for a graph with communities, which `make` returns."""
    text = f"{text}; labels that a model can learn; made in memory"
    cli = add_kind(kinds, name, text, generate_planted)
    cli.set_defaults(make=make)
    cli.add_argument("--nodes", type=count, required=True, help="number of nodes")
    add_node_data(cli, 32, 8)


def add_debian(kinds: Any) -> None:
    """Add the sub-command debian-packages."""
    text = "packages of Debian 12: 58 classes, typed edges; the bundled real graph"
    cli = add_kind(kinds, "debian-packages", text, generate_debian, seed=False)
    cli.add_argument(
        "--packages", type=Path, metavar="FILE", help="make it from this Packages index instead"
    )
    text = f"columns, with --packages (default: {DEBIAN_FEATURES})"
    cli.add_argument("--features", type=count, help=text)
    text = f"seed of the split (default: {DEBIAN_SPLIT_SEED})"
    cli.add_argument("--split-seed", type=count, default=DEBIAN_SPLIT_SEED, help=text)
    text = "virtual packages too, as nodes of another type without features"
    cli.add_argument("--virtual", action="store_true", help=text)
    cli.add_argument("--names", type=Path, metavar="FILE", help="also write the packages' names")


def count(text: str) -> int:
    """Return the non-negative integer in `text`, for argparse."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def grid_shape(text: str) -> tuple[int, ...]:
    """Return the three positive lengths in `text`, for argparse."""
    shape = tuple(int(length) for length in text.split(","))
    if len(shape) != 3 or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not three positive lengths such as 20,30,40")
    return shape
