"""Nodes of unusual types, and a dense reference of their input layers."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hpcgnn.nn import InputLayers, TypedRows

WIDTHS = (5, 0, 3, 2)
"""The second type has no features, and the last one no nodes."""


def type_numbers(num_nodes: int, seed: int) -> np.ndarray:
    """Return the type of each node; the third type is rare and comes last."""
    types = np.random.default_rng(seed).choice([0, 1], num_nodes, p=[0.7, 0.3]).astype(np.uint8)
    types[-3:] = 2
    return types


def type_parts(types: np.ndarray, seed: int) -> list[np.ndarray]:
    """Return the features of the nodes of each type, in order."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=((types == t).sum(), width)) for t, width in enumerate(WIDTHS)]


def typed_rows(types: np.ndarray, parts: Sequence[np.ndarray]) -> TypedRows:
    return TypedRows.in_order([torch.from_numpy(part) for part in parts], torch.from_numpy(types))


def block_of(types: np.ndarray, parts: Sequence[np.ndarray], mine: slice) -> TypedRows:
    """Return the rows of one rank."""
    before = [np.count_nonzero(types[: mine.start] == t) for t in range(len(parts))]
    counts = [np.count_nonzero(types[mine] == t) for t in range(len(parts))]
    own = [
        part[first : first + count]
        for part, first, count in zip(parts, before, counts, strict=True)
    ]
    return typed_rows(types[mine], own)


def dense_inputs(layers: InputLayers, types: np.ndarray, parts: Sequence[np.ndarray]) -> Tensor:
    """Return the results of the input layers, node by node."""
    taken = [0] * len(parts)
    rows = []
    for number in types.tolist():
        features = torch.from_numpy(parts[number][taken[number]])
        rows.append(layers.weights[number] @ features + layers.biases[number])
        taken[number] += 1
    return torch.stack(rows)
