"""Check the labels, splits and types of nodes and convert them to the form of the store."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from hpcgnn.comm import ONE_PROCESS, RankGroup
from hpcgnn.convert.source import (
    ConvertOptions,
    Labels,
    NodeArrays,
    NodeKind,
    TypeRange,
    check_array,
)
from hpcgnn.errors import InputError
from hpcgnn.storage import Split, first_true
from hpcgnn.typing import Array

EdgeType = tuple[str, str, str]
"""Source node type, relation, target node type."""

SPLIT_NAMES = {"train": Split.TRAIN, "valid": Split.VALID, "test": Split.TEST}

SPLIT_PREFIXES = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}
"""Prefixes of the names of split arrays, before `_mask` or `_idx`."""

MASK_NAMES = {f"{prefix}_mask": part for part, names in SPLIT_PREFIXES.items() for prefix in names}
"""The sets of a split by the common names of their masks."""

_LARGEST_LABEL = (1 << 20) - 1
"""Labels are bounded because a model has an output for each number up to the largest."""


def labelled(values: Array, where: str, class_names: Sequence[str] = (), first: int = 0) -> Labels:
    """Return the labels of nodes: a vector or a single column holds classes, a matrix 0 and 1.

    `where` names the file and field in errors; `first` is the node of a vector's first value.
    """
    check_names(class_names, where)
    if values.ndim == 2 and values.shape[1] != 1:
        labels, classes = multi_labels(values, where), int(values.shape[1])
        if class_names and len(class_names) != classes:
            raise InputError(
                f"{where} has {classes} columns for {len(class_names)} class names; "
                "give one name for each column"
            )
        return Labels(labels, classes, tuple(class_names))
    single = single_labels(values, where, len(class_names) or None, first)
    classes = len(class_names) or max(1, int(single.max(initial=-1)) + 1)
    return Labels(single, classes, tuple(class_names))


def check_names(names: Sequence[str], where: str) -> None:
    """Raise `InputError` if two classes have the same name."""
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(f"{where}: two classes are called {repeated[0]!r}; rename one")


def single_labels(
    values: Array, where: str, num_classes: int | None, first: int, unit: str = "node"
) -> NDArray[np.int32]:
    """Return classes int32[n], -1 for none; NaN in floating-point input means none.

    Raises `InputError`. Messages number the values from `first` and call each a `unit`.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise InputError(
            f"{where} has shape {values.shape} and dtype {values.dtype}; labels are whole numbers "
            "[n] or, for several labels a node, a matrix [n, classes] of 0 and 1"
        )
    return class_numbers(values, num_classes, lambda row: f"{where}: {unit} {first + row}")


def class_numbers(
    values: Array, num_classes: int | None, locate: Callable[[int], str]
) -> NDArray[np.int32]:
    """Return classes int32[n], -1 for none, of a vector of numbers; NaN means none.

    The `InputError` for a number that is no class tells its row by `locate`.
    """
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), -1, values)
    top = _LARGEST_LABEL if num_classes is None else num_classes - 1
    wrong = (values < -1) | (values > top)
    if values.dtype.kind == "f":
        wrong |= values != np.floor(values)
    if (row := first_true(wrong)) is not None:
        raise InputError(
            f"{locate(row)} has label {values[row]}; classes are whole numbers from 0 to {top}, "
            "and -1 or nan means no label"
        )
    return values.astype(np.int32)


def multi_labels(values: Array, where: str, unit: str = "node") -> NDArray[np.uint8]:
    """Return uint8[n, classes] of 0 and 1; raises `InputError`, which calls a row a `unit`."""
    check_array(values, where, "[n, classes]", expected=f"0 and 1 for several labels a {unit},")
    wrong = (values != 0) & (values != 1)
    if wrong.any():
        node, column = (int(i) for i in np.unravel_index(np.argmax(wrong), values.shape))
        raise InputError(
            f"{where}: {unit} {node} has {values[node, column]} in column {column}; give 0 and 1 "
            f"for several labels a {unit}, or a vector of classes for one label a {unit}"
        )
    return values.astype(np.uint8)


def find_masks(
    get: Callable[[str], Array | None], origin: str
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the masks that `get` finds under common names, and their places; `InputError`."""
    masks, where = {}, {}
    for name, part in MASK_NAMES.items():
        if part not in masks and (mask := get(name)) is not None:
            masks[part], where[part] = mask, f"{origin}: {name}"
            if mask.ndim == 0:
                raise InputError(
                    f"{where[part]} is a single value; give a vector of 0 and 1, one for each node"
                )
    return masks, where


def split_from_codes(values: Array, where: str) -> NDArray[np.uint8]:
    """Return the split uint8[n] from an array of `Split` values; raises `InputError`."""
    if values.ndim != 1 or values.dtype.kind not in "iu" or not np.isin(values, list(Split)).all():
        raise InputError(f"{where} must be a vector of 0 (none), 1 (train), 2 (valid) and 3 (test)")
    return values.astype(np.uint8)


def splits_from_masks(
    masks: Mapping[str, Array], options: ConvertOptions, where: Mapping[str, str]
) -> dict[str, NDArray[np.uint8]]:
    """Return the splits from masks [n], or [n, splits] for several, keyed as `SPLIT_NAMES`.

    Several splits are named by their column numbers, and `options.split` may choose one. `where`
    names the file and field of each key in errors.
    """
    widths = {name: mask.shape[1] for name, mask in masks.items() if mask.ndim == 2}
    origin = next(iter(where.values()), "").rpartition(": ")[0]
    if not widths:
        return {"": split_from_masks(masks, origin)} if masks else {}
    first, count = next(iter(widths.items()))
    for name, width in widths.items():
        if width != count:
            raise InputError(
                f"{where[name]} holds {width} splits and {where[first]} {count}; give equally many"
            )
    splits = options.take_split([str(number) for number in range(count)], where[first])
    return {
        name: split_from_masks(
            {
                part: mask[:, int(number)] if mask.ndim == 2 else mask
                for part, mask in masks.items()
            },
            origin,
        )
        for name, number in splits.items()
    }


def split_from_masks(masks: Mapping[str, Array], where: str, first: int = 0) -> NDArray[np.uint8]:
    """Return the split uint8[n] from masks [n] keyed as `SPLIT_NAMES`; row 0 is node `first`."""
    sizes = {name: mask.shape for name, mask in masks.items()}
    for name, mask in masks.items():
        if mask.ndim != 1 or (mask.dtype != bool and not np.isin(mask, (0, 1)).all()):
            raise InputError(
                f"{where}: the {name} mask must be a vector of 0 and 1, one for each node"
            )
    if len(set(sizes.values())) > 1:
        raise InputError(f"{where}: the masks have unequal shapes {sizes}; give one value a node")
    split = np.zeros(next(iter(sizes.values())), np.uint8)
    for name, mask in masks.items():
        _assign(split, np.flatnonzero(mask), name, where, first)
    return split


def split_from_indices(
    indices: Mapping[str, Array], num_nodes: int | range, where: Mapping[str, str]
) -> NDArray[np.uint8]:
    """Return the split uint8[num_nodes] from node ids keyed as `SPLIT_NAMES`.

    `num_nodes` may also be a range of the graph's nodes that contains all ids. `where` names the
    file and field of each key in errors.
    """
    nodes = num_nodes if isinstance(num_nodes, range) else range(num_nodes)
    split = np.zeros(len(nodes), np.uint8)
    for name, ids in indices.items():
        ids = ids[:, 0] if ids.ndim == 2 and ids.shape[1] == 1 else ids
        if ids.size:
            check_array(ids, where[name], "[m]", "iu", "node ids")
        check_ids(ids, nodes.stop, where[name])
        _assign(split, ids.astype(np.int64) - nodes.start, name, where[name], nodes.start)
    return split


def check_ids(ids: Array, num_nodes: int, where: str) -> None:
    """Raise `InputError` for an id outside 0 to `num_nodes` - 1."""
    if (position := first_true((ids < 0) | (ids >= num_nodes))) is not None:
        raise InputError(
            f"{where}: node id {ids[position]} is outside 0..{num_nodes - 1}; correct or remove it"
        )


def _assign(
    split: NDArray[np.uint8], ids: NDArray[np.int64], name: str, where: str, first: int
) -> None:
    """Assign the rows `ids` to the set `name`; row 0 is node `first`."""
    assigned = ids[split[ids] != Split.NONE]
    if len(assigned):
        part = Split(int(split[assigned[0]])).name.lower()
        node = first + assigned[0]
        raise InputError(f"{where}: node {node} is in {part} and in {name}; keep it in one")
    split[ids] = SPLIT_NAMES[name]


def check_nodes(
    nodes: NodeArrays, num_nodes: int, where: str, ranks: RankGroup = ONE_PROCESS
) -> None:
    """Raise `InputError` unless all arrays have one row a node and split nodes have labels.

    Collective on `ranks`, each of which holds the rows of some nodes.
    """
    arrays = nodes.arrays()
    lengths = ranks.gather([len(array) for array in arrays.values()])
    with ranks.agree():
        for name, rows in zip(arrays, map(sum, zip(*lengths, strict=True)), strict=True):
            if rows != num_nodes:
                raise InputError(
                    f"{where}: {name} has {rows} rows for {num_nodes} nodes; give one row a node"
                )
        for array in () if nodes.series is None else nodes.series.fields:
            if not array.of_edges and array.shape[1] != num_nodes:
                raise InputError(
                    f"{where}: the fields have {array.shape[1]} rows a step for {num_nodes} "
                    "nodes; give one row a node"
                )
    if nodes.labels is None or nodes.labels.multi_label:
        return
    for split in nodes.splits.values():
        _check_labelled(nodes, split, nodes.labels.values, where, ranks)


def _check_labelled(
    nodes: NodeArrays, split: NDArray[np.uint8], labels: Array, where: str, ranks: RankGroup
) -> None:
    """Raise `InputError` on all ranks if a row in a set of `split` has no label; collective."""
    rows = np.flatnonzero((split != Split.NONE) & (labels < 0))
    count = len(rows) if nodes.graph is None else len(np.unique(nodes.graph[rows]))
    start = sum(ranks.gather(len(split))[: ranks.rank])
    first = (start + int(rows[0]), Split(int(split[rows[0]])).name.lower()) if len(rows) else None
    faults = [fault for fault in ranks.gather(first) if fault is not None]
    if faults:
        node, part = faults[0]
        given = "".join(ranks.gather(_given_name(nodes, node, start, ranks)))
        more = sum(ranks.gather(count)) - 1
        with ranks.agree():
            raise InputError(
                f"{where}: {given or f'node {node}'} is in the {part} split but has no label"
                f"{f', like {more} more' if more else ''}; give it one or take it out of the split"
            )


def _given_name(nodes: NodeArrays, node: int, start: int, ranks: RankGroup) -> str:
    """Return how the input calls node `node`, "" on the ranks that do not know it; collective.

    This rank has the rows from `start`, but names are shared in another way.
    """
    if nodes.names is not None and nodes.graph is None:
        blocks = list(nodes.names())
        place = node - sum(ranks.gather(sum(len(o) - 1 for o, _ in blocks))[: ranks.rank])
        for offsets, texts in blocks:
            if 0 <= place < len(offsets) - 1:
                name = texts[offsets[place] : offsets[place + 1]].tobytes()
                return f"node {name.decode('utf-8', 'replace')!r}"
            place -= len(offsets) - 1
        return ""
    kind, ids = ("node", nodes.original_id) if nodes.graph is None else ("graph", nodes.graph)
    has_row = ids is not None and 0 <= node - start < len(ids)
    return f"{kind} {ids[node - start]}" if ids is not None and has_row else ""


def edge_ends(
    names: Mapping[EdgeType, str], counts: Mapping[str, int]
) -> dict[str, tuple[TypeRange, TypeRange]]:
    """Return the source and target type of each relation; `counts` are the nodes of each type."""
    ranges = _type_ranges(counts)
    return {name: (ranges[source], ranges[target]) for (source, _, target), name in names.items()}


def _type_ranges(counts: Mapping[str, int]) -> dict[str, TypeRange]:
    """Return the node range of each type; types follow each other in the order of `counts`."""
    ranges, start = {}, 0
    for name, count in counts.items():
        ranges[name] = TypeRange(name, start, count)
        start += count
    return ranges


def relation_names(edge_types: Iterable[EdgeType]) -> dict[EdgeType, str]:
    """Return a name for each edge type: its relation, or `source-relation-target`.

    The longer form is used if several edge types share a relation. Raises `InputError` if two
    names still agree.
    """
    types = list(edge_types)
    relations = [relation for _, relation, _ in types]
    names = {
        edge_type: edge_type[1] if relations.count(edge_type[1]) == 1 else "-".join(edge_type)
        for edge_type in types
    }
    owners: dict[str, EdgeType] = {}
    for edge_type, name in names.items():
        if (owner := owners.setdefault(name, edge_type)) != edge_type:
            raise InputError(
                f"the edge types {owner} and {edge_type} would both be the relation {name!r}; "
                "rename one of them"
            )
    return names


def join_types(
    parts: Mapping[str, NodeArrays], counts: Mapping[str, int], where: str
) -> NodeArrays:
    """Return the data of all nodes, type after type; type `name` has `counts[name]` nodes.

    Nodes of types without labels are unlabelled, and nodes of types without a split are in none of
    its sets. Raises `InputError` if several types have labels.
    """
    for name, nodes in parts.items():
        check_nodes(nodes, counts[name], f"{where}, nodes of the type {name!r}")
    labels = {name: part.labels for name, part in parts.items() if part.labels is not None}
    if len(labels) > 1:
        raise InputError(
            f"{where}: the node types {', '.join(labels)} have labels; only one type can have "
            "them: leave out the others"
        )
    splits: dict[str, dict[str, Array]] = {}
    for name, part in parts.items():
        for split, roles in part.splits.items():
            splits.setdefault(split, {})[name] = roles
    joined = None
    for name, of_type in labels.items():
        none = 0 if of_type.multi_label else -1
        joined = replace(of_type, values=_spread({name: of_type.values}, counts, none))
    graphs = [part.graph for part in parts.values() if part.graph is not None]
    names = [part.names for part in parts.values() if part.names is not None]
    if graphs and len(graphs) < len(parts):
        raise InputError(f"{where}: only some node types tell their nodes' graphs; give all")
    return NodeArrays(
        graph=np.concatenate(graphs) if graphs else None,
        kinds=tuple(NodeKind(name, counts[name], part.features) for name, part in parts.items()),
        labels=joined,
        splits={name: _spread(rows, counts, Split.NONE) for name, rows in splits.items()},
        names=(lambda: chain.from_iterable(part() for part in names)) if names else None,
    )


def _spread(arrays: Mapping[str, Array], counts: Mapping[str, int], fill: int) -> Array:
    """Return rows for all nodes, `fill` for nodes of types that have no array."""
    first = next(iter(arrays.values()))
    rows = np.full((sum(counts.values()), *first.shape[1:]), fill, first.dtype)
    for name, nodes in _type_ranges(counts).items():
        if name in arrays:
            rows[nodes.start : nodes.start + nodes.num_nodes] = arrays[name]
    return rows
