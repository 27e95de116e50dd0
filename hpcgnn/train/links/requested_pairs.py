"""Read the pairs of nodes that a user asks about from a table of ids or names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn.comm import ProcessGrid, allreduce_sum, raise_on_all
from hpcgnn.comm.row_map import found_among
from hpcgnn.config.options import known
from hpcgnn.errors import InputError, named
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, read_csv
from hpcgnn.typing import FloatArray, GlobalIndices

_COLUMNS = ("source", "target", "relation")


@dataclass(frozen=True, eq=False)
class RequestedPairs:
    """Pairs of nodes, equal on all ranks.

    `ids` (m, 3) int64 are original ids of sources and targets, and numbers of the predicted
    relations; `features` (m, F) float64 are edge features of the pairs, None if not given.
    """

    ids: GlobalIndices
    features: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.ids)


def read_pairs(
    path: Path, store: GraphStore, relations: Sequence[str], relation: str | None, width: int
) -> RequestedPairs:
    """Return the pairs of a CSV table with header source, target and optionally relation.

    Nodes are identified by name if the store has names, else by original id. `relation` applies to
    all pairs if the table has no such column. Further columns are edge features, of which the model
    reads `width`.

    Raises `InputError` if the table cannot be read, or names an unknown node or relation.
    """
    header, rows = read_csv(path, f"--pairs {path}", "give a table source,target")
    columns = [name for name in _COLUMNS if name in header]
    if len(columns) < 2 or columns[:2] != list(_COLUMNS[:2]) or not rows:
        raise InputError(f"--pairs {path}: needs a header source,target, and pairs below it")
    texts = {name: [row[header.index(name)] for row in rows.values()] for name in columns}
    ends = [_ids(path, store, texts[name]) for name in _COLUMNS[:2]]
    relation_names = texts.get("relation") or [relation_of(relations, relation)] * len(rows)
    for name in dict.fromkeys(relation_names):
        known(name, relations, f"relation of {path}")
    numbers = {name: number for number, name in enumerate(relations)}
    ids = np.stack([*ends, [numbers[name] for name in relation_names]], axis=1).astype(np.int64)
    feature_columns = [column for column, name in enumerate(header) if name not in _COLUMNS]
    if not width or not feature_columns:
        return RequestedPairs(ids)
    given, stored = [header[column] for column in feature_columns], list(store.edge_feature_names)
    if given != stored and sorted(given) == sorted(stored):
        raise InputError(
            f"--pairs {path}: columns {', '.join(given)}; give them in the order of convert "
            f"--edge-features: {', '.join(stored)}"
        )
    return RequestedPairs(ids, _features(path, rows, feature_columns, width))


def _features(
    path: Path, rows: Mapping[int, Sequence[str]], columns: Sequence[int], width: int
) -> FloatArray:
    if len(columns) != width:
        raise InputError(
            f"--pairs {path}: {len(columns)} columns beside source,target,relation, and edges have "
            f"{width} features; give these, in the order of convert --edge-features, or none"
        )
    features = np.empty((len(rows), width))
    for values, (line, row) in zip(features, rows.items(), strict=True):
        try:
            values[:] = [float(row[column]) for column in columns]
        except ValueError as error:
            raise InputError(f"--pairs {path}, line {line}: {error}; give numbers") from None
        if not np.isfinite(values).all():
            raise InputError(f"--pairs {path}, line {line}: not finite; give numbers")
    return features


def relation_of(relations: Sequence[str], relation: str | None) -> str:
    """Return `relation`, or the only one there is; raises `InputError` if that is ambiguous."""
    if relation is None and len(relations) > 1:
        raise InputError(f"--relation: several are predicted; give one of {', '.join(relations)}")
    if relation is not None:
        known(relation, relations, "predicted relation")
    return relation or relations[0]


def _ids(path: Path, store: GraphStore, texts: Sequence[str]) -> GlobalIndices:
    if store.has_names:
        numbers = store.find_names(texts)
        if numbers.min(initial=0) < 0:
            missing = [text for text, row in zip(texts, numbers, strict=True) if row < 0]
            raise InputError(
                f"--pairs {path}: {store.path} has no node {named(missing)}; name nodes of it"
            )
        return numbers
    try:
        return np.array([int(text) for text in texts], np.int64)
    except (ValueError, OverflowError):
        raise InputError(
            f"--pairs {path}: nodes of {store.path} have no names; give original ids, integers"
        ) from None


@collective
def find_rows(graph: LocalGraph, node_ids: GlobalIndices) -> GlobalIndices:
    """Return the global rows (m,) of original ids (m,), which are equal on all ranks.

    Raises `CollectiveInputError` if an id belongs to no node.
    """
    ids = graph.products.node_ids
    order = np.argsort(ids)
    positions, is_local = found_among(ids[order], node_ids)
    rows = np.zeros(len(node_ids), np.int64)
    rows[is_local] = order[positions[is_local]] + graph.row_map.start + 1
    allreduce_sum(graph.grid.layer, rows)
    missing = named(node_ids[rows == 0].tolist())
    fault = InputError(f"{graph.facts.name} has no node {missing}; give ids of the original graph")
    raise_on_all(graph.grid.world, fault if missing else None)
    return rows - 1


def share_of(grid: ProcessGrid, count: int) -> slice:
    """Return this rank's slice of `count` rows that all ranks know."""
    bounds = np.arange(grid.num_blocks + 1) * count // grid.num_blocks
    return slice(int(bounds[grid.block]), int(bounds[grid.block + 1]))
