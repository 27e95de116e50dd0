"""What models read of a rank's nodes: one matrix of features, or one for each node type."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid, allreduce_sum
from hpcgnn.nn import NodeFeatures, TypedRows
from hpcgnn.storage import NodeBlock
from hpcgnn.train.config import Config
from hpcgnn.train.features import FeatureScale, cast_features, scale_features
from hpcgnn.train.label_inputs import label_columns
from hpcgnn.train.local_graph import GraphFacts
from hpcgnn.typing import Array, FloatArray, Mask

__all__ = ["NodeInputs", "Scales", "labelled_types", "make_inputs", "scales_from"]

Scales: TypeAlias = Mapping[str, FeatureScale]
"""By node type; the key of features without types is empty."""


@dataclass(frozen=True, eq=False)
class NodeInputs:
    """The inputs of the local nodes.

    Parameters
    ----------
    features
        On the CPU, in the training dtype; with label augmentation, behind the features of a node C
        columns with the labels of training nodes. Node types that no rank has such labels of go
        without these columns.
    scales
        What features were scaled by, where that comes from the graph.
    """

    features: NodeFeatures
    scales: Scales


def make_inputs(
    grid: ProcessGrid, config: Config, facts: GraphFacts, nodes: NodeBlock, known: Scales | None
) -> NodeInputs:
    """Return the inputs that `config` makes of the features of nodes.

    Collective.

    Parameters
    ----------
    grid, config, facts
        The ranks, the configuration, the sizes of the graph.
    nodes
        Of this rank.
    known
        For standardised features: what to scale by; None takes it from this graph.

    Raises
    ------
    CollectiveInputError
        When a value is too large for the training dtype.
    """
    names, by_type = facts.type_names or ("",), nodes.type_features
    if not facts.type_names:
        assert nodes.features is not None
        by_type = (nodes.features,)
    tables: list[FloatArray] = []
    scales: dict[str, FeatureScale] = {}
    for name, rows in zip(names, by_type, strict=True):
        table = cast_features(grid, rows, config.train.dtype)
        kind = config.graph.normalize_features if table.shape[1] else "none"
        scale = scale_features(grid, kind, table, known[name] if known and kind != "none" else None)
        if scale is not None:
            scales[name] = scale
        tables.append(table)
    if config.train.label_augmentation > 0:
        tables = _with_labels(tables, facts, nodes)
    if nodes.types is None:
        return NodeInputs(torch.from_numpy(tables[0]), scales)
    parts = [torch.from_numpy(each) for each in tables]
    typed = TypedRows.in_order(parts, torch.from_numpy(nodes.types))
    typed = TypedRows.in_order(parts, torch.from_numpy(nodes.types))
    if config.model.embeddings:
        typed = replace(typed, numbers=typed.places)
    return NodeInputs(typed, scales)


def labelled_types(
    grid: ProcessGrid, names: Sequence[str], types: Array | None, trains: Mask
) -> tuple[str, ...]:
    """Return the node types that have labelled training nodes, the same on all ranks.

    Collective.

    Parameters
    ----------
    grid
        The ranks.
    names
        Of the node types.
    types, trains
        (N,) type of each local node, and whether it is a labelled training node.
    """
    if types is None:
        return ()
    counts = np.bincount(types[trains], minlength=len(names)).astype(np.int64)
    allreduce_sum(grid.layer, counts)
    return tuple(name for name, count in zip(names, counts, strict=True) if count > 0)


def scales_from(tensors: Mapping[str, Tensor]) -> Scales | None:
    """Return the scales that a checkpoint holds; None without any.

    Not collective.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, field = key.rpartition(".")
        found.setdefault(name, {})[field] = value
    return {name: FeatureScale.from_tensors(each) for name, each in found.items()} or None


def _with_labels(
    tables: Sequence[FloatArray], facts: GraphFacts, nodes: NodeBlock
) -> list[FloatArray]:
    """Return the tables with label columns behind those of nodes that may have labels."""
    assert nodes.labels is not None
    assert nodes.split is not None
    made = []
    for number, table in enumerate(tables):
        labels, split = nodes.labels, nodes.split
        if nodes.types is not None:
            if facts.type_names[number] not in facts.labelled_types:
                made.append(table)
                continue
            mine = nodes.types == number
            labels, split = labels[mine], split[mine]
        columns = label_columns(labels, split, facts.num_classes, table.dtype)
        made.append(np.concatenate([table, columns], axis=1))
    return made
