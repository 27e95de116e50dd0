"""``python -m hpcgnn.split``: add splits to an existing store.

Nodes are chosen by their original ids, so that a store and its partitioned copy get the same split.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcgnn.commands.launch import start
from hpcgnn.console import cell_text, print_json, report, report_next
from hpcgnn.convert.splits import labels_of_graphs, parse_shares, random_split, split_of_nodes
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore, Split, add_splits, check_output, first_true
from hpcgnn.typing import Array, GlobalIndices

_SETS = (Split.TRAIN, Split.VALID, Split.TEST)


def main(options: argparse.Namespace) -> None:
    """Draw or read splits, write them, and print their sizes."""
    out = options.output or options.store
    check(options)
    check_output(out)
    with GraphStore.open(options.store) as store:
        ids = store.read_original_id(0, store.num_nodes)
        labels = of_nodes = store.read_labels(0, store.num_nodes)
        owners = None
        if (graph := store.read_graph(0, store.num_nodes)) is not None:
            ids, owners, labels = labels_of_graphs(graph, labels)
        splits = drawn(options, labels, ids) if options.random_split else {}
        for text in options.split_file:
            name, split = from_files(store, text, ids)
            if name in splits:
                raise InputError(f"--split-file: {name!r} is named twice; give unique names")
            splits[name] = split
        for name in splits:
            if name in store.splits:
                raise InputError(
                    f"{options.store} has a split {name!r} already; give another with --name"
                )
        if labels is not None and labels.ndim == 1:
            check_labelled(store, splits, labels, ids)
        if owners is not None:
            splits = {name: split_of_nodes(of, owners, of_nodes) for name, of in splits.items()}
        source = {"command": ["hpcgnn.split", *sys.argv[1:]], "input": store.provenance}
        add_splits(store, out, splits, source)
        before = store.splits
    sizes = {
        name: {role.name.lower(): int(np.count_nonzero(split == role)) for role in _SETS}
        for name, split in splits.items()
    }
    if options.json:
        print_json({"output": str(out), "splits": [*before, *sizes], "added": sizes})
        return
    for name, counts in sizes.items():
        report(f"{out}: split {name}: {cell_text(counts)}")
    report_next("init", out)


def check(options: argparse.Namespace) -> None:
    """Raise `InputError` if options contradict each other."""
    if not options.random_split and not options.split_file:
        raise InputError("nothing to add: give --random-split A,B,C or --split-file NAME=FILES")
    if options.random_split:
        return
    for flag in ("split_seed", "per_class", "count", "name"):
        if getattr(options, flag) is not None:
            raise InputError(f"--{flag.replace('_', '-')} belongs to --random-split")


def drawn(
    options: argparse.Namespace, labels: Array | None, ids: GlobalIndices
) -> dict[str, Array]:
    """Return the drawn splits by name, each uint8 (n,) in the order of the store."""
    shares = parse_shares(options.random_split)
    seed, name = options.split_seed or 0, options.name or "random"
    if seed < 0 or (options.count is not None and options.count < 1):
        raise InputError("--split-seed is at least 0, and --count at least 1")
    by_id = np.argsort(ids, kind="stable")
    in_order = None if labels is None else labels[by_id]
    splits = {}
    for number in range(seed, seed + (options.count or 1)):
        title = name if options.count is None else f"{name}-{number}"
        splits[title] = np.empty(len(ids), np.uint8)
        splits[title][by_id] = random_split(
            in_order, len(ids), shares, seed=number, per_class=options.per_class
        )
    return splits


def from_files(store: GraphStore, text: str, ids: GlobalIndices) -> tuple[str, Array]:
    """Return the name and the split, uint8 (n,), of ``NAME=TRAIN,VALID,TEST``."""
    name, _, files = text.partition("=")
    paths = files.split(",")
    if not name or len(paths) != len(_SETS) or not all(paths):
        raise InputError(f"--split-file {text}: give NAME=TRAIN.txt,VALID.txt,TEST.txt")
    by_id = np.argsort(ids, kind="stable")
    split = np.zeros(len(ids), np.uint8)
    for part, path in zip(_SETS, paths, strict=True):
        nodes, lines = read_nodes(store, Path(path))
        positions = np.minimum(np.searchsorted(ids[by_id], nodes), len(ids) - 1)
        rows = by_id[positions]
        for is_wrong, fault in (
            (ids[rows] != nodes, "no such node"),
            ((split[rows] != Split.NONE) & (split[rows] != part), "the node is in another set too"),
        ):
            if is_wrong.any():
                line = lines[int(np.argmax(is_wrong))]
                raise InputError(f"{path}, line {line}: {fault}; correct or remove the line")
        split[rows] = part
    return name, split


def read_nodes(store: GraphStore, path: Path) -> tuple[GlobalIndices, Sequence[int]]:
    """Return the original ids in a file, -1 for unknown names, and their line numbers."""
    try:
        content = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read ({reason}); give one node per line") from None
    numbered = [(number, line.split("#")[0].strip()) for number, line in enumerate(content, 1)]
    lines = [number for number, word in numbered if word]
    words = [word for _, word in numbered if word]
    if store.has_names and not store.has_graphs:
        return store.find_names(words), lines
    for number, word in zip(lines, words, strict=True):
        if not word.lstrip("-").isdecimal() or abs(int(word)) >= 1 << 63:
            raise InputError(
                f"{path}, line {number}: {word!r} is not a node id; give a whole number"
            )
    return np.array([int(word) for word in words], np.int64), lines


def check_labelled(
    store: GraphStore, splits: dict[str, Array], labels: Array, ids: GlobalIndices
) -> None:
    """Raise `InputError` if a node, or graph, without a label is in a set."""
    for name, split in splits.items():
        unlabelled = (split != Split.NONE) & (labels < 0)
        if (place := first_true(unlabelled)) is not None:
            called = str(ids[place])
            if store.has_names and not store.has_graphs:
                called = repr(store.names(ids[place : place + 1])[0])
            raise InputError(
                f"split {name!r}: {'graph' if store.has_graphs else 'node'} {called} has no label; "
                "take it out of the files"
            )


if __name__ == "__main__":
    start("split")
