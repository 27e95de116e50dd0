"""Compare a plan made from degrees only with the plan of the graph itself.

    python benchmarks/compare_degree_plans.py STORE.h5 --blocks 4,16,64,256 [section.key=value ...]

The store is cut into random parts, for each number of parts in turn. Every line has an exchange, a
pattern, and four ratios of the plan from degrees to that of the graph: rows of all ranks, of the
busiest sender and of the busiest receiver, and non-zeros of the fullest rank.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from hpcgnn.comm import ProcessGrid
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.config.file import load_config
from hpcgnn.plan.degree_graph import DegreeGraph
from hpcgnn.plan.graph_shape import Shape, write_shape
from hpcgnn.plan.traffic import ALL, Ranks, Traffic
from hpcgnn.plan.whole_graph import WholeGraph
from hpcgnn.storage import GraphStore


def ratios(found: Traffic, right: Traffic) -> list[float]:
    """Return ratios of total rows, of the busiest sender and receiver, and of most non-zeros."""

    def figures(traffic: Traffic) -> list[float]:
        # A push goes from the block column to the block row, as a fetch does.
        sides = sum(np.array(rows) for rows, _ in traffic.moved.values())
        sent, received = np.sum(sides, axis=1)
        return [sent.sum(), sent.max(), received.max(), traffic.entries.max()]

    return [mine / max(its, 1) for mine, its in zip(figures(found), figures(right), strict=True)]


def shape_of(whole: WholeGraph, folder: Path) -> Shape:
    """Return the shape of a graph, read back from its file."""
    pattern = whole.patterns[ALL].diagonal
    rows = pattern.entry_rows()
    loops = np.bincount(rows[rows == pattern.indices], minlength=pattern.shape[0])
    facts = whole.facts
    values = {
        "classes": facts.num_classes,
        "training": float(whole.targets.mean()),
        "features": facts.num_features,
        "outside": 1.0,
    }
    path = folder / "shape.toml"
    write_shape(path, facts.name, values, np.diff(pattern.indptr) - loops)
    return Shape.read(path)


def main() -> None:
    """Print a line for each exchange, pattern and number of blocks."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("store")
    cli.add_argument("words", nargs="*")
    cli.add_argument("--blocks", default="4,16,64,256")
    options = cli.parse_intermixed_args()
    words = [f"graph.store={options.store}", "run.dir=none", *options.words]
    config = load_config(None, words)
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessGrid.of_this_process() as grid,
        GraphStore.open(options.store) as store,
    ):
        whole = WholeGraph(grid, config, store)
        shape = shape_of(whole, Path(folder))
    graph = DegreeGraph(config, shape)
    for blocks in map(int, options.blocks.split(",")):
        starts = np.arange(blocks + 1, dtype=np.int64) * shape.num_nodes // blocks
        for method in ("aware", "push", "joint"):
            exchange = ExchangeConfig(method=method)
            right = whole.surveys(Ranks(starts, exchange))
            drawn = Ranks(graph.row_starts(blocks), exchange)
            found = graph.surveys(drawn)
            for key, survey in right.items():
                values = ratios(found[key].traffic(drawn), survey.traffic(Ranks(starts, exchange)))
                line = " ".join(f"{each:.3f}" for each in values)
                print(f"{blocks:5d} {method:6s} {key[0]!s:5s} {line}")


if __name__ == "__main__":
    main()
