"""Effect of supernodes on a store of program graphs: graphs that fit a band, and dropped edges.

    python -m benchmarks.supernodes --store PROGRAMS.h5 --json

Every graph is laid out alone, with at most ``--supernodes`` supernodes for each block size. One
JSON object per pair: block, supernodes, graphs, fit (share of graphs whose edges, except those of
supernodes, are shorter than the block), dropped (share of edges held by neither blocks nor
supernodes, as in a supergraph of that graph alone), beside (share of edges outside the blocks that
supernodes hold), mean_supernodes of a graph, slice_share (numbers in dense rows and columns per
number in blocks) and ms_per_graph (processor time of the layout).
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.columns import Columns, print_columns, ratio, text
from hpcgnn.banded import Supergraph, held_edges, inside_band, lay_out
from hpcgnn.comm import Communicator
from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.launch import run_mpi_command
from hpcgnn.console import print_json
from hpcgnn.storage import InstanceStore

COLUMNS: Columns = {
    "S": ("block", text),
    "supernodes": ("supernodes", text),
    "fit": ("fit", ratio),
    "dropped": ("dropped", ratio),
    "beside": ("beside", ratio),
    "mean": ("mean_supernodes", ratio),
    "slices": ("slice_share", ratio),
    "ms a graph": ("ms_per_graph", ratio),
}


def main(comm: Communicator) -> int:
    cli = CommandParser(prog="python -m benchmarks.supernodes", description=__doc__)
    cli.add_argument("--store", type=Path, required=True, help="from hpcgnn.convert programs")
    cli.add_argument("--blocks", type=_integers, default="128,256,512,1024", metavar="S,...")
    cli.add_argument("--supernodes", type=_integers, default="0,1,2,4,8,16", metavar="R,...")
    cli.add_argument("--every", type=int, default=1, help="take every N-th graph (default: 1)")
    cli.add_argument("--json", action="store_true", help="one JSON object per pair")
    options = cli.parse_args()
    if comm.rank == 0:
        with InstanceStore.open(options.store) as store:
            found = [
                measure(store, block, most, options.every)
                for block in options.blocks
                for most in options.supernodes
            ]
        for each in found if options.json else ():
            print_json(each)
        if not options.json:
            print_columns(COLUMNS, found)
    return 0


def _integers(words: str) -> list[int]:
    return [int(word) for word in words.split(",")]


def measure(store: InstanceStore, block: int, most: int, every: int) -> dict[str, Any]:
    rows = [measure_graph(store, number, block, most) for number in range(0, len(store), every)]
    fit, edges, dropped, beside, supernodes, slices, blocks, seconds = np.array(rows).T
    return {
        "block": block,
        "supernodes": most,
        "graphs": len(rows),
        "fit": float(fit.mean()),
        "dropped": float(dropped.sum() / edges.sum()),
        "beside": float(beside.sum() / edges.sum()),
        "mean_supernodes": float(supernodes.mean()),
        "slice_share": float(slices.sum() / blocks.sum()),
        "ms_per_graph": float(1000 * seconds.mean()),
    }


def measure_graph(store: InstanceStore, number: int, block: int, most: int) -> tuple[float, ...]:
    batch = store.read(number, number + 1)
    began = time.process_time()
    layout = lay_out(batch, block, most)
    seconds = time.process_time() - began
    graph = Supergraph.build(batch, len(store.header.edge_names), np.zeros(1, np.int64), layout)
    edges, supernodes = graph.edges, layout.supernodes
    touched = supernodes.touch(edges)
    others = edges.select(~touched)
    fits = (np.abs(others.targets - others.sources) < block).all()
    dropped = (~held_edges(edges, block, supernodes)).sum()
    count, nodes = len(supernodes), graph.num_nodes
    beside = (touched & ~inside_band(edges, block)).sum()
    return fits, len(edges), dropped, beside, count, 2 * nodes * count, 3 * nodes * block, seconds


if __name__ == "__main__":
    run_mpi_command("supernodes", main)
