"""Graphs whose formats number the nodes of each type from 0: one numbering, one set of arrays.

All nodes of the first type come first, then those of the second, and so on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from hpcgnn.convert.edge_ids import check_ends
from hpcgnn.convert.nodes import check_nodes
from hpcgnn.convert.source import EdgeChunk, NodeKind, Nodes
from hpcgnn.errors import InputError
from hpcgnn.storage import Split
from hpcgnn.typing import Array

__all__ = ["EdgeType", "TypeRange", "join_types", "relation_names", "type_ranges", "with_all_nodes"]

EdgeType = tuple[str, str, str]
"""The type of the sources, the relation, the type of the targets."""


@dataclass(frozen=True, slots=True)
class TypeRange:
    """The nodes `start` to `start + num_nodes` - 1 of the graph are those of the type `name`."""

    name: str
    start: int
    num_nodes: int


def type_ranges(counts: Mapping[str, int]) -> dict[str, TypeRange]:
    """Return the ranges of types with `counts` nodes, in their order, by name."""
    ranges, start = {}, 0
    for name, count in counts.items():
        ranges[name] = TypeRange(name, start, count)
        start += count
    return ranges


def relation_names(edge_types: Iterable[EdgeType]) -> dict[EdgeType, str]:
    """Return a name for each edge type: its relation, or `source-relation-target`.

    The longer name is for relations that several edge types share. Raises `InputError` where two
    edge types get the same name all the same.
    """
    known = list(edge_types)
    relations = [relation for _, relation, _ in known]
    names = {each: each[1] if relations.count(each[1]) == 1 else "-".join(each) for each in known}
    owners: dict[str, EdgeType] = {}
    for each, name in names.items():
        if (other := owners.setdefault(name, each)) != each:
            raise InputError(
                f"the edge types {other} and {each} would both be the relation {name!r}; "
                "rename one of them"
            )
    return names


def with_all_nodes(chunk: EdgeChunk, source: TypeRange, target: TypeRange) -> EdgeChunk:
    """Return edges between nodes numbered by type as edges between nodes of the whole graph.

    Raises `InputError` for an id that its type does not have.
    """
    check_ends(
        chunk,
        (source.num_nodes - 1, target.num_nodes - 1),
        "number the nodes of each type from 0",
        (source.name, target.name),
    )
    src = chunk.src.astype(np.int64) + source.start
    dst = chunk.dst.astype(np.int64) + target.start
    return EdgeChunk(src, dst, chunk.locate, chunk.weights, chunk.relation)


def join_types(parts: Mapping[str, Nodes], counts: Mapping[str, int], where: str) -> Nodes:
    """Return the data of all nodes from those of each type, which has `counts` nodes.

    Nodes of types without labels have none, and nodes of types without a split are in none of its
    sets. Raises `InputError` where several types have labels.
    """
    ranges = type_ranges(counts)
    for name, nodes in parts.items():
        check_nodes(nodes, counts[name], f"{where}, nodes of the type {name!r}")
    labelled = [name for name, nodes in parts.items() if nodes.labels is not None]
    if len(labelled) > 1:
        raise InputError(
            f"{where}: the node types {', '.join(labelled)} have labels; those of one type can be "
            "stored: leave out the others"
        )
    total = sum(counts.values())
    kinds = tuple(NodeKind(name, counts[name], nodes.features) for name, nodes in parts.items())
    split = None
    for name, nodes in parts.items():
        if nodes.split is not None:
            split = np.full(total, Split.NONE, np.uint8) if split is None else split
            _put(split, nodes.split, ranges[name])
    if not labelled:
        return Nodes(kinds=kinds, split=split)
    nodes = parts[labelled[0]]
    assert nodes.labels is not None
    none = 0 if nodes.multi_label else -1
    labels = np.full((total, *nodes.labels.shape[1:]), none, nodes.labels.dtype)
    _put(labels, nodes.labels, ranges[labelled[0]])
    return Nodes(
        kinds=kinds,
        labels=labels,
        num_classes=nodes.num_classes,
        class_names=nodes.class_names,
        split=split,
    )


def _put(array: Array, rows: Array, where: TypeRange) -> None:
    array[where.start : where.start + where.num_nodes] = rows
