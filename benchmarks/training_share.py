"""Copy a store with another share of training nodes, and the same parts, edges and features.

    python -m benchmarks.training_share STORE --share 0.1 -o OUT.h5

A tenth of the nodes is the validation set, and the rest the test set.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcgnn.commands.launch import run_command
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore, SortedRows, Split, StoreHeader, StoreWriter, check_output

VALID_SHARE = 0.1
BLOCK_ROWS = 1 << 16


def main() -> None:
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.training_share", description=(__doc__ or "").split("\n")[0]
    )
    cli.add_argument("store", type=Path, metavar="STORE")
    cli.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.h5")
    cli.add_argument("--share", type=float, default=0.1, help="in (0, 0.9] (default: 0.1)")
    cli.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    options = cli.parse_args()
    if not 0 < options.share <= 1 - VALID_SHARE:
        raise InputError(f"--share {options.share} is not in (0, {1 - VALID_SHARE}]")
    check_output(options.output)
    with GraphStore.open(options.store) as store:
        split = draw_split(store.num_nodes, options.share, options.seed)
        copy_with_split(store, options.output, split)


def draw_split(num_nodes: int, share: float, seed: int) -> NDArray[np.uint8]:
    """Return a random split with ``share`` of the nodes for training."""
    split = np.full(num_nodes, Split.TEST, np.uint8)
    order = np.random.default_rng(seed).permutation(num_nodes)
    num_train = round(share * num_nodes)
    split[order[:num_train]] = Split.TRAIN
    split[order[num_train : num_train + round(VALID_SHARE * num_nodes)]] = Split.VALID
    return split


def copy_with_split(store: GraphStore, path: Path, split: NDArray[np.uint8]) -> None:
    """Write `store` to `path` with another split."""
    header = StoreHeader(
        name=store.name,
        num_nodes=store.num_nodes,
        num_classes=store.num_classes,
        multi_label=store.multi_label,
        undirected=store.undirected,
        class_names=store.class_names,
        node_types=tuple(each.name for each in store.node_types),
        provenance=store.provenance,
    )
    with StoreWriter(path, header) as writer:
        for start in range(0, store.num_nodes, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, store.num_nodes)
            for relation in store.relations:
                block = store.read_adjacency(start, stop, relation)
                rows = SortedRows(block.indptr, block.indices, block.weights)
                writer.append_rows(rows, relation)
            nodes = store.read_nodes(start, stop)
            if nodes.features is not None:
                writer.append_features(nodes.features)
            if nodes.types is not None:
                writer.append_types(nodes.types)
            for kind, rows in zip(store.node_types, nodes.type_features, strict=True):
                if kind.dtype is not None:
                    writer.append_type_features(kind.name, rows)
            if nodes.labels is not None:
                writer.append_labels(nodes.labels)
            writer.append_original_id(nodes.original_id)
            writer.append_split(split[start:stop])
        if store.num_parts > 1:
            info = store.partition_info
            writer.set_partition(store.row_starts, info["method"], info["seed"], info["metrics"])


if __name__ == "__main__":
    run_command("training_share", main)
