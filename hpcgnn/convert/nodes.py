"""Labels, splits and types of nodes, checked and brought to the one form of the store."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from hpcgnn.comm import ONE_PROCESS, RankGroup
from hpcgnn.convert.source import ConvertOptions, Labels, NodeKind, Nodes, TypeRange, check_array
from hpcgnn.errors import InputError
from hpcgnn.storage import Split, first_true
from hpcgnn.typing import Array

EdgeType = tuple[str, str, str]
"""The type of the sources, the relation, the type of the targets."""

SPLIT_NAMES = {"train": Split.TRAIN, "valid": Split.VALID, "test": Split.TEST}

SPLIT_PREFIXES = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}
"""How the arrays of a split are called, before `_mask` or `_idx`."""

_LARGEST_LABEL = (1 << 20) - 1
"""A model has an output for each number up to it."""


def labelled(values: Array, where: str, class_names: Sequence[str] = (), first: int = 0) -> Labels:
    """Return the labels of nodes: a vector or column holds classes, a matrix 0 and 1.

    `where` names the file and field in errors, `first` is the node that a vector begins with.
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
    """Raise `InputError` where two classes have one name."""
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(f"{where}: two classes are called {repeated[0]!r}; rename one")


def single_labels(
    values: Array, where: str, num_classes: int | None, first: int, unit: str = "node"
) -> NDArray[np.int32]:
    """Return classes int32[n], -1 for none; NaN in floating-point input means none.

    Raises `InputError`, which names the `unit` behind the `first`.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise InputError(
            f"{where} has shape {values.shape} and dtype {values.dtype}; labels are whole numbers "
            "[n] or, for several labels a node, 0 and 1 [n, classes]"
        )
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), -1, values)
    top = _LARGEST_LABEL if num_classes is None else num_classes - 1
    wrong = (values < -1) | (values > top)
    if values.dtype.kind == "f":
        wrong |= values != np.floor(values)
    if (node := first_true(wrong)) is not None:
        raise InputError(
            f"{where}: {unit} {first + node} has label {values[node]}; classes are whole numbers "
            f"from 0 to {top}, and -1 or nan means no label"
        )
    return values.astype(np.int32)


def multi_labels(values: Array, where: str, unit: str = "node") -> NDArray[np.uint8]:
    """Return uint8[n, classes] of 0 and 1; raises `InputError`, which names the `unit`."""
    check_array(values, where, "[n, classes]", due=f"0 and 1, of several labels a {unit},")
    wrong = (values != 0) & (values != 1)
    if wrong.any():
        node, column = (int(i) for i in np.unravel_index(np.argmax(wrong), values.shape))
        raise InputError(
            f"{where}: {unit} {node} has {values[node, column]} in column {column}; several labels "
            f"a {unit} are given by 0 and 1, one label a {unit} by a vector of classes"
        )
    return values.astype(np.uint8)


def find_masks(
    get: Callable[[str], Array | None], origin: str
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the masks that `get` finds by their usual names, and where they are; `InputError`."""
    masks, where = {}, {}
    for part, prefixes in SPLIT_PREFIXES.items():
        for name in (f"{prefix}_mask" for prefix in prefixes):
            if part not in masks and (mask := get(name)) is not None:
                masks[part], where[part] = mask, f"{origin}: {name}"
                if mask.ndim == 0:
                    raise InputError(
                        f"{where[part]} is a single value; give a vector of 0 and 1, one for each "
                        "node"
                    )
    return masks, where


def split_from_codes(values: Array, where: str) -> NDArray[np.uint8]:
    """Return the split uint8[n] from numbers of `Split`; raises `InputError`."""
    if values.ndim != 1 or values.dtype.kind not in "iu" or not np.isin(values, list(Split)).all():
        raise InputError(f"{where} must be a vector of 0 (none), 1 (train), 2 (valid) and 3 (test)")
    return values.astype(np.uint8)


def splits_from_masks(
    masks: Mapping[str, Array], options: ConvertOptions, where: Mapping[str, str]
) -> dict[str, NDArray[np.uint8]]:
    """Return the splits of masks [n], or [n, splits] side by side, under keys of `SPLIT_NAMES`.

    Several splits are called by their numbers, and `options.split` chooses one of them. `where`
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
                f"{where[name]} holds {width} splits and {where[first]} {count}; give the same"
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
    """Return the split uint8[n] from boolean masks [n] of `SPLIT_NAMES`, from node `first` on."""
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
    """Return the split uint8[num_nodes] from node ids under the keys of `SPLIT_NAMES`.

    Nodes may also be a range of those of the graph; all ids lie in it. `where` names the file and
    field of each key in errors.
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
    """Raise `InputError` for an id that is not below `num_nodes`."""
    if (position := first_true((ids < 0) | (ids >= num_nodes))) is not None:
        raise InputError(
            f"{where}: node id {ids[position]} is outside 0..{num_nodes - 1}; correct or remove it"
        )


def _assign(
    split: NDArray[np.uint8], ids: NDArray[np.int64], name: str, where: str, first: int
) -> None:
    """Put nodes into a part; `first` is the node that the split begins with."""
    assigned = ids[split[ids] != Split.NONE]
    if len(assigned):
        part = Split(int(split[assigned[0]])).name.lower()
        node = first + assigned[0]
        raise InputError(f"{where}: node {node} is in {part} and in {name}; keep it in one")
    split[ids] = SPLIT_NAMES[name]


def check_nodes(nodes: Nodes, num_nodes: int, where: str, ranks: RankGroup = ONE_PROCESS) -> None:
    """Raise `InputError` unless all arrays have one row a node and split nodes have labels.

    For all `ranks`, each of which has the rows of some nodes.
    """
    arrays = nodes.arrays()
    lengths = ranks.gather([len(array) for array in arrays.values()])
    for name, rows in zip(arrays, map(sum, zip(*lengths, strict=True)), strict=True):
        if rows != num_nodes:
            raise InputError(
                f"{where}: {name} has {rows} rows for {num_nodes} nodes; give one row a node"
            )
    with ranks.agree():
        if nodes.series is not None and nodes.series.num_nodes not in (0, num_nodes):
            raise InputError(
                f"{where}: the fields have {nodes.series.num_nodes} rows a step for {num_nodes} "
                "nodes; give one row a node"
            )
        if nodes.labels is None or nodes.labels.multi_label:
            return
        for split in nodes.splits.values():
            bare = (split != Split.NONE) & (nodes.labels.values < 0)
            if (node := first_true(bare)) is not None:
                part = Split(int(split[node])).name.lower()
                more = f", like {bare.sum() - 1} more" if bare.sum() > 1 else ""
                node += ranks.range_of(num_nodes).start
                raise InputError(
                    f"{where}: node {node} is in the {part} split but has no label{more}; give it "
                    "one or take it out of the split"
                )


def edge_ends(
    names: Mapping[EdgeType, str], counts: Mapping[str, int]
) -> dict[str, tuple[TypeRange, TypeRange]]:
    """Return the types of the sources and targets of each relation, where types have `counts`."""
    ranges = _type_ranges(counts)
    return {name: (ranges[source], ranges[target]) for (source, _, target), name in names.items()}


def _type_ranges(counts: Mapping[str, int]) -> dict[str, TypeRange]:
    """Return the ranges of types with `counts` nodes, in their order, by name."""
    ranges, start = {}, 0
    for name, count in counts.items():
        ranges[name] = TypeRange(name, start, count)
        start += count
    return ranges


def relation_names(edge_types: Iterable[EdgeType]) -> dict[EdgeType, str]:
    """Return a name for each edge type: its relation, or `source-relation-target`.

    The longer name is for relations that several edge types share; `InputError` where two agree all
    the same.
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


def join_types(parts: Mapping[str, Nodes], counts: Mapping[str, int], where: str) -> Nodes:
    """Return the data of all nodes, type after type, from those of each, which has `counts` nodes.

    Nodes of types without labels have none, and nodes of types without a split are in none of its
    sets. Raises `InputError` where several types have labels.
    """
    for name, nodes in parts.items():
        check_nodes(nodes, counts[name], f"{where}, nodes of the type {name!r}")
    labels = {name: part.labels for name, part in parts.items() if part.labels is not None}
    if len(labels) > 1:
        raise InputError(
            f"{where}: the node types {', '.join(labels)} have labels; those of one type can be "
            "stored: leave out the others"
        )
    splits: dict[str, dict[str, Array]] = {}
    for name, part in parts.items():
        for split, roles in part.splits.items():
            splits.setdefault(split, {})[name] = roles
    joined = None
    for name, given_labels in labels.items():
        none = 0 if given_labels.multi_label else -1
        joined = replace(given_labels, values=_spread({name: given_labels.values}, counts, none))
    graphs = [part.graph for part in parts.values() if part.graph is not None]
    names = [part.names for part in parts.values() if part.names is not None]
    if graphs and len(graphs) < len(parts):
        raise InputError(f"{where}: nodes of some types tell their graph, others do not; give all")
    return Nodes(
        graph=np.concatenate(graphs) if graphs else None,
        kinds=tuple(NodeKind(name, counts[name], part.features) for name, part in parts.items()),
        labels=joined,
        splits={name: _spread(rows, counts, Split.NONE) for name, rows in splits.items()},
        names=(lambda: chain.from_iterable(part() for part in names)) if names else None,
    )


def _spread(arrays: Mapping[str, Array], counts: Mapping[str, int], fill: int) -> Array:
    """Return rows of all nodes, `fill` for those of types that have no array."""
    like = next(iter(arrays.values()))
    rows = np.full((sum(counts.values()), *like.shape[1:]), fill, like.dtype)
    for name, nodes in _type_ranges(counts).items():
        if name in arrays:
            rows[nodes.start : nodes.start + nodes.num_nodes] = arrays[name]
    return rows
