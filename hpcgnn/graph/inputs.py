"""What models read of nodes: features, scaled as configured, in a table for each node type."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import SparseFeatures, moments
from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.label_inputs import label_columns
from hpcgnn.nn import NodeFeatures, TypedRows
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmd import collective
from hpcgnn.storage import NodeBlock, SparseRows, Split
from hpcgnn.typing import FloatArray, GlobalIndices, Mask

_BLOCK_BYTES = 8 << 20
_COLUMNS = 16
_ROUNDING = 64
"""Units in the last place of its mean within which a column is constant."""
_UNEVEN = 30.0
"""Times the least deviation of a column from which another drowns it."""


@dataclass(frozen=True, eq=False)
class FeatureScale:
    """Mean and deviation (F,) float64 of every feature; a model keeps those it was trained with."""

    mean: FloatArray
    deviation: FloatArray

    def tensors(self, name: str = "") -> dict[str, Tensor]:
        """Return it in the form that checkpoints hold, under the name of a node type."""
        prefix = f"{name}." if name else ""
        return {
            f"{prefix}mean": torch.from_numpy(self.mean),
            f"{prefix}deviation": torch.from_numpy(self.deviation),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "FeatureScale":
        """Return what `tensors` gave, without the name."""
        return cls(tensors["mean"].numpy(), tensors["deviation"].numpy())


def far_columns(features: FloatArray) -> GlobalIndices:
    """Return the columns of features (N, F) whose values drown those of others, or what differs.

    A column counts by the root of its mean square: years are all large, and differ by little. Words
    that a text has or has not are rare and frequent, but of one size.
    """
    values = features.astype(np.float64)
    spread = values.std(axis=0) if len(values) else np.zeros(features.shape[1])
    varies = spread > 0
    least = _UNEVEN * spread[varies].min(initial=np.inf)
    size = np.sqrt(np.square(values).mean(axis=0)) if len(values) else spread
    return np.flatnonzero(varies & (size > max(1.0, least)))


@collective
def cast_features(grid: ProcessGrid, rows: FloatArray, dtype: str) -> FloatArray:
    """Return features (N, F) in the training dtype; the input itself where it has that already.

    Raises `CollectiveInputError` when a value is too large for `dtype`.
    """
    with np.errstate(over="ignore"):
        features = np.ascontiguousarray(rows, dtype=dtype)
    with agree(grid.world):
        if features.itemsize < rows.itemsize and not np.isfinite(features).all():
            raise InputError(
                f"a feature is too large for train.dtype = {dtype!r}: scale the features before "
                "converting them, or set train.dtype=float64"
            )
    return features


@collective
def scale_features(
    grid: ProcessGrid,
    scaling: str,
    features: FloatArray,
    known: FeatureScale | None,
    measured: Mask | None = None,
) -> FeatureScale | None:
    """Scale `features` (N, F) in place; return the scale where it was taken from all nodes.

    `scaling` is ``graph.normalize_features``: none, row (sum of absolute values), l2 or standard.
    For the last, `known` is the scale of the graph that the model was trained on; None takes it
    from this one, of the `measured` (N,) nodes, None: all.
    """
    if scaling in ("row", "l2"):
        for block in _blocks(features):
            norms = np.linalg.norm(block.astype(np.float64), 1 if scaling == "row" else 2, axis=1)
            block[:] = block / np.where(norms > 0, norms, 1)[:, None]
    if scaling != "standard":
        return None
    scale = known or _measure(grid, features if measured is None else features[measured])
    divisor = np.where(scale.deviation > 0, scale.deviation, 1)
    for block in _blocks(features):
        block[:] = (block - scale.mean) / divisor
    return scale


def _measure(grid: ProcessGrid, features: FloatArray) -> FeatureScale:
    # Some columns at a time, which all ranks have: in float64 all would triple the memory.
    scale = FeatureScale(np.zeros(features.shape[1]), np.zeros(features.shape[1]))
    for start in range(0, features.shape[1], _COLUMNS):
        some = slice(start, start + _COLUMNS)
        wide = torch.from_numpy(features[:, some].astype(np.float64))
        mean, variance, _ = moments(wide, grid.sum_over_blocks)
        deviation = variance.sqrt()
        # What is left of a constant column is the rounding of its mean.
        deviation[deviation <= _ROUNDING * torch.finfo(wide.dtype).eps * mean.abs()] = 0
        scale.mean[some], scale.deviation[some] = mean.numpy(), deviation.numpy()
    return scale


def _blocks(features: FloatArray) -> Iterator[FloatArray]:
    """Yield views of rows: float64 intermediates of all rows would triple the memory."""
    rows = max(1, _BLOCK_BYTES // max(1, 8 * features.shape[1]))
    for start in range(0, len(features), rows):
        yield features[start : start + rows]


Scales: TypeAlias = Mapping[str, FeatureScale]
"""By node type; the key of features without types is empty."""


@collective
def make_inputs(
    grid: ProcessGrid, config: Config, facts: GraphFacts, nodes: NodeBlock, known: Scales | None
) -> tuple[NodeFeatures, Scales]:
    """Return what models read of nodes, and the scales of it that come from a graph.

    Features are on the CPU, in the training dtype or in bfloat16; with label augmentation, behind
    the features of a node stand C columns with the labels of training nodes. Node types that no
    rank has such labels of go without these columns. Standardised features are scaled by `known`;
    None takes scales from this graph. Sparse rows stay sparse.

    Raises `CollectiveInputError` when a value is too large for the training dtype.
    """
    names, widths = facts.type_names or ("",), facts.type_features or (facts.num_features,)
    inductive = config.train.inductive or facts.num_graphs > 0
    tables: list[FloatArray | LocalCSR] = []
    scales: dict[str, FeatureScale] = {}
    for number, (name, rows, width) in enumerate(zip(names, _rows(nodes), widths, strict=True)):
        scaling = config.graph.normalize_features if width else "none"
        # What float64 holds far from 0 is 0 or noise in float32, unless it is scaled before.
        wide = scaling != "none" and not isinstance(rows, SparseRows) and rows.dtype == np.float64
        table = _cast(grid, rows, width, "float64" if wide else config.train.dtype)
        if isinstance(table, LocalCSR):
            _scale_rows(scaling, table)
            tables.append(table)
            continue
        given = known[name] if known and scaling != "none" else None
        measured = _measured(nodes, number) if inductive else None
        scale = scale_features(grid, scaling, table, given, measured)
        if scale is not None:
            scales[name] = scale
        tables.append(cast_features(grid, table, config.train.dtype))
    if config.train.label_augmentation > 0:
        tables = _with_labels(tables, facts, nodes, np.dtype(config.train.dtype))
    parts: list[Tensor] = []
    while tables:
        # One at a time: both formats of all of them are never in memory together.
        table = tables.pop(0)
        if isinstance(table, LocalCSR):
            parts.append(SparseFeatures.of(table, config.train.precision))
            continue
        part = torch.from_numpy(table)
        parts.append(part.bfloat16() if config.train.precision == "bfloat16" else part)
        del table, part
    if nodes.types is None:
        return parts[0], scales
    typed = TypedRows.in_order(parts, torch.from_numpy(nodes.types))
    if config.model.embeddings:
        typed = replace(typed, numbers=typed.places)
    return typed, scales


def _rows(nodes: NodeBlock) -> Sequence[FloatArray | SparseRows]:
    """Return the features of each type, or of all nodes where these have none."""
    if nodes.types is not None:
        sparse = nodes.sparse_of_types or [None] * len(nodes.type_features)
        pairs = zip(sparse, nodes.type_features, strict=True)
        return [dense if rows is None else rows for rows, dense in pairs]
    rows = nodes.features if nodes.sparse is None else nodes.sparse
    assert rows is not None
    return [rows]


@collective
def _cast(
    grid: ProcessGrid, rows: FloatArray | SparseRows, width: int, dtype: str
) -> FloatArray | LocalCSR:
    """Return features in the training dtype; see `cast_features`."""
    if not isinstance(rows, SparseRows):
        return cast_features(grid, rows, dtype)
    values = cast_features(grid, rows.values[:, None], dtype)[:, 0]
    return LocalCSR(rows.indptr, rows.indices, values, (len(rows.indptr) - 1, width))


def _scale_rows(norm: str, matrix: LocalCSR) -> None:
    """Scale the rows of sparse features in place, as `scale_features` does those of dense ones."""
    values, rows = matrix.values, matrix.entry_rows()
    assert values is not None
    if norm in ("row", "l2"):
        wide = np.abs(values.astype(np.float64))
        norms = np.bincount(rows, wide if norm == "row" else np.square(wide), matrix.shape[0])
        norms = norms if norm == "row" else np.sqrt(norms)
        values[:] = values / np.where(norms > 0, norms, 1)[rows]


def _measured(nodes: NodeBlock, number: int) -> Mask | None:
    """Return which nodes of a type are trained on; None where the store has no split."""
    if nodes.split is None:
        return None
    trains: Mask = nodes.split == Split.TRAIN
    return trains if nodes.types is None else trains[nodes.types == number]


def scales_from(tensors: Mapping[str, Tensor]) -> Scales | None:
    """Return the scales that a checkpoint holds; None without any."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, field = key.rpartition(".")
        found.setdefault(name, {})[field] = value
    return {name: FeatureScale.from_tensors(each) for name, each in found.items()} or None


def _with_labels(
    tables: Sequence[FloatArray | LocalCSR],
    facts: GraphFacts,
    nodes: NodeBlock,
    dtype: np.dtype[np.generic],
) -> list[FloatArray | LocalCSR]:
    """Return the tables with label columns behind those of nodes that may have labels."""
    assert nodes.labels is not None
    assert nodes.split is not None
    made: list[FloatArray | LocalCSR] = []
    for number, table in enumerate(tables):
        labels, split = nodes.labels, nodes.split
        if nodes.types is not None:
            if facts.type_names[number] not in facts.labelled_types:
                made.append(table)
                continue
            of_type = nodes.types == number
            labels, split = labels[of_type], split[of_type]
        columns = label_columns(labels, split, facts.num_classes, dtype)
        if isinstance(table, LocalCSR):
            made.append(table.beside(columns))
        else:
            made.append(np.concatenate([table, columns], axis=1))
    return made
