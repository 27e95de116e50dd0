"""Labels and splits of any format, checked and brought to the one form of the store."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.convert.source import Nodes
from hpcgnn.errors import InputError
from hpcgnn.storage import Split
from hpcgnn.typing import Array

__all__ = [
    "SPLIT_NAMES",
    "SPLIT_PREFIXES",
    "check_nodes",
    "labelled",
    "mask_column",
    "multi_labels",
    "single_labels",
    "split_from_indices",
    "split_from_masks",
]

SPLIT_NAMES = {"train": Split.TRAIN, "valid": Split.VALID, "test": Split.TEST}

SPLIT_PREFIXES = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}
"""How the arrays of a split are called, before `_mask` or `_idx`."""

_LARGEST_LABEL = np.iinfo(np.int32).max - 1


def labelled(values: Array, where: str, class_names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the label fields of `Nodes`: a vector or column holds classes, a matrix 0 and 1.

    `where` names the file and field in errors.
    """
    labels: Array
    if values.ndim == 2 and values.shape[1] != 1:
        labels, classes = multi_labels(values, where), int(values.shape[1])
        if class_names and len(class_names) != classes:
            raise InputError(
                f"{where} has {classes} columns for {len(class_names)} class names; "
                "give one name for each column"
            )
    else:
        labels = single_labels(values, where, len(class_names) or None)
        classes = len(class_names) or max(1, int(labels.max(initial=-1)) + 1)
    return {"labels": labels, "num_classes": classes, "class_names": tuple(class_names)}


def single_labels(values: Array, where: str, num_classes: int | None = None) -> NDArray[np.int32]:
    """Return classes int32[n], -1 for none; NaN in floating-point input means none."""
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
    if wrong.any():
        node = int(np.argmax(wrong))
        raise InputError(
            f"{where}: node {node} has label {values[node]}; classes are whole numbers from 0 to "
            f"{top}, and -1 or nan means no label"
        )
    return values.astype(np.int32)


def multi_labels(values: Array, where: str) -> NDArray[np.uint8]:
    """Return uint8[n, classes] of 0 and 1."""
    if values.ndim != 2 or values.shape[1] == 0 or values.dtype.kind not in "biuf":
        raise InputError(
            f"{where} has shape {values.shape} and dtype {values.dtype}; "
            "several labels a node are 0 and 1 [n, classes]"
        )
    wrong = (values != 0) & (values != 1)
    if wrong.any():
        node, column = (int(i) for i in np.unravel_index(np.argmax(wrong), values.shape))
        raise InputError(
            f"{where}: node {node} has {values[node, column]} in column {column}; several labels a "
            "node are given by 0 and 1, one label a node by a vector of classes"
        )
    return values.astype(np.uint8)


def mask_column(mask: Array, split: str | None, where: str) -> Array:
    """Return the mask [n], from several side by side [n, s] that with the number `split`."""
    if mask.ndim != 2:
        return mask
    if split is None or not split.isdecimal() or int(split) >= mask.shape[1]:
        raise InputError(
            f"{where} holds {mask.shape[1]} splits; choose one with --split 0 to "
            f"--split {mask.shape[1] - 1}"
        )
    return mask[:, int(split)]


def split_from_masks(masks: Mapping[str, Array], where: str) -> NDArray[np.uint8]:
    """Return the split uint8[n] from boolean masks [n] under the keys of `SPLIT_NAMES`."""
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
        _assign(split, np.flatnonzero(mask), name, where)
    return split


def split_from_indices(
    indices: Mapping[str, Array], num_nodes: int, where: Mapping[str, str]
) -> NDArray[np.uint8]:
    """Return the split uint8[num_nodes] from node ids under the keys of `SPLIT_NAMES`.

    `where` names the file and field of each key in errors.
    """
    split = np.zeros(num_nodes, np.uint8)
    for name, ids in indices.items():
        ids = ids[:, 0] if ids.ndim == 2 and ids.shape[1] == 1 else ids
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
            raise InputError(
                f"{where[name]} has shape {ids.shape} and dtype {ids.dtype}; "
                "node ids are a vector of whole numbers"
            )
        wrong = (ids < 0) | (ids >= num_nodes)
        if wrong.any():
            raise InputError(
                f"{where[name]}: node id {ids[np.argmax(wrong)]} is outside 0..{num_nodes - 1}; "
                "correct or remove it"
            )
        _assign(split, ids.astype(np.int64), name, where[name])
    return split


def _assign(split: NDArray[np.uint8], ids: NDArray[np.int64], name: str, where: str) -> None:
    taken = ids[split[ids] != Split.NONE]
    if len(taken):
        other = Split(int(split[taken[0]])).name.lower()
        raise InputError(f"{where}: node {taken[0]} is in {other} and in {name}; keep it in one")
    split[ids] = SPLIT_NAMES[name]


def check_nodes(nodes: Nodes, num_nodes: int, where: str) -> None:
    """Raise `InputError` unless all arrays have one row a node and split nodes have labels."""
    for name in ("types", "labels", "split", "original_id"):
        array = getattr(nodes, name)
        if array is not None and len(array) != num_nodes:
            raise InputError(
                f"{where}: {name} has {len(array)} rows for {num_nodes} nodes; give one row a node"
            )
    if nodes.split is None or nodes.labels is None or nodes.multi_label:
        return
    bare = (nodes.split != Split.NONE) & (nodes.labels < 0)
    if bare.any():
        node = int(np.argmax(bare))
        part = Split(int(nodes.split[node])).name.lower()
        raise InputError(
            f"{where}: node {node} is in the {part} split but has no label; "
            "give it one or take it out of the split"
        )
