"""Node types of .npz files.

`node_type` [n] holds the number of each node's type and `node_types` the types' names; the features
of a type are an array `x_NAME` (or another of the usual names for features before the underscore)
with a row for each of its nodes, in the order of the nodes.
"""

import numpy as np

from hpcgnn.convert.coordinates import check_vector
from hpcgnn.convert.npy import ArrayFile, Npz, decode_texts
from hpcgnn.convert.npz_features import FEATURES, array_features
from hpcgnn.convert.source import ConvertOptions, NodeKind
from hpcgnn.errors import InputError
from hpcgnn.typing import Array

__all__ = ["find_types", "read_kinds"]


def find_types(npz: Npz) -> ArrayFile | None:
    """Return the array of node types, None for a graph without them."""
    return npz.get("node_type", "ntype")


def read_kinds(
    npz: Npz, numbers: ArrayFile, options: ConvertOptions
) -> tuple[Array, tuple[NodeKind, ...]]:
    """Return the nodes' types [n] in a small integer type, and what they are; `InputError`."""
    check_vector(numbers, "iu")
    types = numbers.load()
    names = _names(npz, types)
    wrong = (types < 0) | (types >= len(names))
    if wrong.any():
        node = int(np.argmax(wrong))
        raise InputError(
            f"{numbers.where}: node {node} has the type {types[node]}, outside "
            f"0..{len(names) - 1}; correct it or name more types"
        )
    if shared := npz.get(*FEATURES):
        raise InputError(
            f"{shared.where} holds features of all nodes, but {numbers.member} gives them types; "
            f"save those of each type, such as x_{names[0]}, or leave {numbers.member} out"
        )
    counts = np.bincount(types, minlength=len(names)).tolist()
    kinds = []
    for name, count in zip(names, counts, strict=True):
        array = npz.get(*(f"{prefix}_{name}" for prefix in FEATURES))
        features = None if array is None else array_features(array, options)
        kinds.append(NodeKind(name, count, features))
    return types.astype(np.min_scalar_type(len(names))), tuple(kinds)


def _names(npz: Npz, types: Array) -> list[str]:
    array = npz.get("node_types", "ntypes")
    if array is None:
        return [str(number) for number in range(int(types.max(initial=0)) + 1)]
    check_vector(array, "SU")
    names = decode_texts(array.load(), array.where)
    if not names or len(set(names)) != len(names):
        raise InputError(f"{array.where}: must name at least one type, each once")
    return names
