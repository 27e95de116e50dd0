"""Write a store's edges with random edge and node features as an .npz file for hpcgnn convert.

    python -m benchmarks.edge_features_npz STORE.h5 --width 4 -o OUT.npz

An edge in several relations counts once.
"""

import argparse
from pathlib import Path

import numpy as np

from hpcgnn.commands.launch import run_command
from hpcgnn.storage import GraphStore, check_output

NODE_FEATURES, CLASSES = 64, 8


def main() -> None:
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.edge_features_npz", description=(__doc__ or "").split("\n")[0]
    )
    cli.add_argument("store", type=Path, metavar="STORE.h5")
    cli.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.npz")
    cli.add_argument("--width", type=int, default=4, help="features per edge (default: 4)")
    options = cli.parse_args()
    check_output(options.output)
    with GraphStore.open(options.store) as store:
        num_nodes, keys = store.num_nodes, []
        for relation in store.relations:
            block = store.read_adjacency(0, num_nodes, relation)
            targets = np.repeat(np.arange(num_nodes), np.diff(block.indptr))
            keys.append(targets * num_nodes + block.indices)
    targets, sources = np.divmod(np.unique(np.concatenate(keys)), num_nodes)
    draws = np.random.default_rng(0)
    np.savez(
        options.output,
        edge_index=np.stack([sources, targets]),
        edge_attr=draws.normal(size=(len(targets), options.width)).astype(np.float32),
        x=draws.normal(size=(num_nodes, NODE_FEATURES)).astype(np.float32),
        y=draws.integers(0, CLASSES, num_nodes),
    )


if __name__ == "__main__":
    run_command("edge_features_npz", main)
