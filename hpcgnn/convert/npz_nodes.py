"""Features, labels and splits of .npz files, under the names that are in use for them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.convert.nodes import (
    SPLIT_PREFIXES,
    labelled,
    mask_column,
    split_from_indices,
    split_from_masks,
)
from hpcgnn.convert.npy import ArrayFile, Npz
from hpcgnn.convert.npz_features import FEATURES, array_features
from hpcgnn.convert.npz_types import find_types, read_kinds
from hpcgnn.convert.source import ConvertOptions, Features, Nodes
from hpcgnn.convert.sparse_features import checked_matrix, dense_features
from hpcgnn.errors import InputError
from hpcgnn.storage import Split
from hpcgnn.typing import Array

__all__ = ["read_nodes"]

_LABELS = ("y", "labels", "label", "node_label")
_CLASSES = ("class_names", "classes")


def read_nodes(
    npz: Npz, known: dict[str, int], options: ConvertOptions
) -> tuple[int | None, Nodes]:
    """Return the number of nodes, None if nothing tells it, and the node data.

    `known` maps the place of what already tells the number of nodes to that number; all that the
    file says must agree with it, else `InputError` is raised.
    """
    fields: dict[str, Any] = {}
    if (numbers := find_types(npz)) is not None:
        fields["types"], fields["kinds"] = read_kinds(npz, numbers, options)
        known[numbers.where] = len(fields["types"])
    else:
        fields["features"] = _features(npz, options, known)
    labels = npz.get(*_LABELS)
    if labels is not None:
        fields |= labelled(labels.load(), labels.where, npz.texts(*_CLASSES) or ())
        known[labels.where] = len(fields["labels"])
    if (count := npz.get("num_nodes")) is not None:
        known[count.where] = _scalar(count)
    masks = _masks(npz, options)
    known |= {f"{npz.path}: {name} mask": len(mask) for name, mask in masks.items()}
    num_nodes = _agreed(known)
    return num_nodes, Nodes(split=_split(npz, masks, num_nodes), **fields)


def _features(npz: Npz, options: ConvertOptions, known: dict[str, int]) -> Features | None:
    array = npz.get(*FEATURES)
    if array is not None:
        known[array.where] = array.shape[0] if array.shape else 0
        return array_features(array, options)
    if "attr_indptr" in npz:
        where = f"{npz.path}: attr_data"
        matrix = checked_matrix(
            where,
            data=npz.need("attr_data").load(),
            indices=npz.need("attr_indices").load(),
            indptr=npz.need("attr_indptr").load(),
            shape=npz.need("attr_shape").load().ravel().tolist(),
        )
        known[where] = matrix.shape[0]
        return dense_features([matrix], where)
    return None


def _scalar(array: ArrayFile) -> int:
    values = array.load().ravel()
    if len(values) != 1 or values.dtype.kind not in "iu" or values[0] < 1:
        raise InputError(f"{array.where} must be one whole number above 0; save it again")
    return int(values[0])


def _agreed(known: dict[str, int]) -> int | None:
    if not known:
        return None
    places = list(known.items())
    for place, count in places[1:]:
        if count != places[0][1]:
            raise InputError(
                f"{place} tells of {count} nodes and {places[0][0]} of {places[0][1]}; "
                "give each array one row a node"
            )
    return places[0][1]


def _masks(npz: Npz, options: ConvertOptions) -> dict[str, Array]:
    masks: dict[str, Array] = {}
    for name, prefixes in SPLIT_PREFIXES.items():
        array = npz.get(*(f"{prefix}_mask" for prefix in prefixes))
        if array is not None:
            masks[name] = mask_column(array.load(), options.split, array.where)
    return masks


def _split(npz: Npz, masks: dict[str, Array], num_nodes: int | None) -> NDArray[np.uint8] | None:
    if masks:
        return split_from_masks(masks, str(npz.path))
    codes = npz.get("split")
    if codes is not None:
        return _coded(codes)
    arrays = {
        name: npz.get(*(f"{p}_{end}" for p in prefixes for end in ("idx", "index")))
        for name, prefixes in SPLIT_PREFIXES.items()
    }
    found = {name: array for name, array in arrays.items() if array is not None}
    if not found:
        return None
    if num_nodes is None:
        raise InputError(f"{npz.path}: a split by node ids needs the array num_nodes; add it")
    values = {name: array.load() for name, array in found.items()}
    return split_from_indices(values, num_nodes, {name: a.where for name, a in found.items()})


def _coded(codes: ArrayFile) -> NDArray[np.uint8]:
    values = codes.load()
    if values.ndim != 1 or values.dtype.kind not in "iu" or not np.isin(values, list(Split)).all():
        raise InputError(
            f"{codes.where} must be a vector of 0 (none), 1 (train), 2 (valid) and 3 (test)"
        )
    return values.astype(np.uint8)
