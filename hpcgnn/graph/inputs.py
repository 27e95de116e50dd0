"""Make the models' node inputs, a table for each node type, and scale features."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import SparseFeatures, moments
from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.feature_storage import FeatureStorage
from hpcgnn.graph.label_inputs import label_columns
from hpcgnn.nn import NodeFeatures, TypedRows
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmd import collective
from hpcgnn.storage import NodeBlock, SparseRows, Split
from hpcgnn.typing import FloatArray, GlobalIndices, MakeRows, Mask

_BLOCK_BYTES = 8 << 20
_COLUMNS = 16
ROUNDING = 64
"""A column is constant if its deviation is at most so many units in the last place of its mean."""
_UNEVEN = 30.0
"""Ratio of a column's size to the smallest deviation from which it hides the other column."""


@dataclass(frozen=True, eq=False)
class FeatureScale:
    """Mean and deviation (F,) float64 of the features that a model was trained with."""

    mean: FloatArray
    deviation: FloatArray


def far_columns(features: FloatArray) -> GlobalIndices:
    """Return the columns of features (N, F) that are much larger than the spread of another column.

    A column's size is its root mean square: years, say, are large but vary little. Word indicators
    may be rare or frequent, but all have one size.
    """
    values = features.astype(np.float64)
    spread = values.std(axis=0) if len(values) else np.zeros(features.shape[1])
    varies = spread > 0
    least = _UNEVEN * spread[varies].min(initial=np.inf)
    size = np.sqrt(np.square(values).mean(axis=0)) if len(values) else spread
    return np.flatnonzero(varies & (size > max(1.0, least)))


@collective
def cast_features(
    grid: ProcessGrid, rows: FloatArray, dtype: str, empty: MakeRows = np.empty
) -> FloatArray:
    """Return features (N, F) in the training dtype; the same object if they have it already.

    Raises `CollectiveInputError` if a value is too large for `dtype`, or `empty` fails.
    """
    with agree(grid.world), np.errstate(over="ignore"):
        if rows.dtype == dtype and rows.flags.c_contiguous:
            return rows
        features = empty(rows.shape, dtype)
        for block, wide in zip(_blocks(features), _blocks(rows), strict=True):
            block[:] = wide
            if block.itemsize < wide.itemsize and not np.isfinite(block).all():
                raise InputError(
                    f"a feature is too large for train.dtype = {dtype!r}: scale the features "
                    "before converting them, or set train.dtype=float64"
                )
    return features


class Scales:
    """Scales of features by name: of a node type, or of a relation's edges, see `of_edges`.

    `known` are those of a trained model; if None, each is measured on the graph at first use.
    `length` is that by which positions are divided, if known.
    """

    LENGTH = "length"
    """The name of the length in checkpoints."""

    def __init__(
        self, known: Mapping[str, FeatureScale] | None = None, length: float | None = None
    ) -> None:
        self._scales, self._measures = dict(known or {}), known is None
        self.length = length

    @staticmethod
    def of_edges(relation: str) -> str:
        """Return the name of the features of a relation's edges."""
        return f"{_OF_EDGES}{relation}"

    @staticmethod
    def is_of_edges(name: str) -> bool:
        """Tell whether a name is one of `of_edges`."""
        return name.startswith(_OF_EDGES)

    def of_relations(self) -> list[FeatureScale]:
        """Return the scales of edge features, relation by relation."""
        return [scale for name, scale in self._scales.items() if self.is_of_edges(name)]

    def get(self, name: str) -> FeatureScale | None:
        """Return the scale of a name, or None."""
        return self._scales.get(name)

    @collective
    def take(
        self,
        grid: ProcessGrid,
        name: str,
        features: FloatArray,
        measured: Callable[[], Mask | None],
    ) -> FeatureScale:
        """Return the scale of features (N, F).

        If it is measured, `measured()` returns a mask (N,) of the rows to use, or None for all.
        Raises `CollectiveInputError` if the trained model's scale does not fit the features.
        """
        if self._measures and name not in self._scales:
            self._scales[name] = _measure(grid, features, measured())
        scale = self._scales.get(name)
        with agree(grid.world):
            if scale is None or {len(scale.mean), len(scale.deviation)} != {features.shape[1]}:
                owner = name.removeprefix(_OF_EDGES)
                of_owner = f" of {owner!r}" if owner else ""
                raise InputError(
                    f"the model was not trained on {features.shape[1]} scaled features{of_owner}; "
                    "convert the graph like the one it was trained on"
                )
        assert scale is not None
        return scale

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for checkpoints."""
        length = self.length
        tensors = (
            {} if length is None else {self.LENGTH: torch.tensor([length], dtype=torch.float64)}
        )
        for name, scale in self._scales.items():
            prefix = f"{name}." if name else ""
            tensors[f"{prefix}mean"] = torch.from_numpy(scale.mean)
            tensors[f"{prefix}deviation"] = torch.from_numpy(scale.deviation)
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Scales":
        """Return the scales of a trained model from their `tensors`."""
        by_name: dict[str, dict[str, FloatArray]] = {}
        length = None
        for key, value in tensors.items():
            if key == cls.LENGTH:
                length = float(value)
                continue
            name, _, field = key.rpartition(".")
            by_name.setdefault(name, {})[field] = value.numpy()
        pairs = by_name.items()
        known = {name: FeatureScale(pair["mean"], pair["deviation"]) for name, pair in pairs}
        return cls(known, length)


_OF_EDGES = "-> "


@dataclass(frozen=True, eq=False)
class Scaling:
    """Scales features for models.

    `how` is ``graph.normalize_features`` or ``graph.normalize_edge_features``: none, row (sum of
    absolute values), l2, or standard, which uses `scales`. `dtype` is the training dtype; `empty`
    allocates arrays.
    """

    grid: ProcessGrid
    how: str
    scales: Scales
    dtype: str
    empty: MakeRows = np.empty

    @collective
    def __call__(
        self, name: str, rows: FloatArray, measured: Callable[[], Mask | None]
    ) -> FloatArray:
        """Return features (N, F), perhaps scaled in place; arguments as in `Scales.take`.

        Raises `CollectiveInputError` if a value is too large for the training dtype.
        """
        how = self.how if rows.shape[1] else "none"
        # Scale float64 before the cast: differences of values far from 0 vanish in float32.
        wide = how != "none" and rows.dtype == np.float64
        features = cast_features(self.grid, rows, "float64" if wide else self.dtype, self.empty)
        if how == "standard":
            scale = self.scales.take(self.grid, name, features, measured)
            divisor = np.where(scale.deviation > 0, scale.deviation, 1)
            for block in _blocks(features):
                block[:] = (block - scale.mean) / divisor
        elif how != "none":
            for block in _blocks(features):
                norms = np.linalg.norm(block.astype(np.float64), 1 if how == "row" else 2, axis=1)
                block[:] = block / np.where(norms > 0, norms, 1)[:, None]
        return cast_features(self.grid, features, self.dtype, self.empty)


@collective
def _measure(grid: ProcessGrid, features: FloatArray, rows: Mask | None) -> FeatureScale:
    if rows is not None:
        # Nothing of a type without training nodes is trained, but all of it is evaluated.
        count = np.array([np.count_nonzero(rows)], np.float64)
        grid.sum_over_blocks(count)
        rows = rows if count[0] else None
    # Some columns at a time, the same on all ranks: all in float64 would triple the memory.
    scale = FeatureScale(np.zeros(features.shape[1]), np.zeros(features.shape[1]))
    for start in range(0, features.shape[1], _COLUMNS):
        some = slice(start, start + _COLUMNS)
        columns = features[:, some] if rows is None else features[:, some][rows]
        wide = torch.from_numpy(np.ascontiguousarray(columns, np.float64))
        mean, variance, _ = moments(wide, grid.sum_over_blocks)
        deviation = variance.sqrt()
        # The deviation of a constant column is only rounding of its mean.
        deviation[deviation <= ROUNDING * torch.finfo(wide.dtype).eps * mean.abs()] = 0
        scale.mean[some], scale.deviation[some] = mean.numpy(), deviation.numpy()
    return scale


def _blocks(features: FloatArray) -> Iterator[FloatArray]:
    """Yield views of rows: float64 intermediates of all rows would triple the memory."""
    rows = max(1, _BLOCK_BYTES // max(1, 8 * features.shape[1]))
    for start in range(0, len(features), rows):
        yield features[start : start + rows]


@collective
def make_inputs(
    grid: ProcessGrid, config: Config, facts: GraphFacts, nodes: NodeBlock, scales: Scales
) -> NodeFeatures:
    """Return the node features for models.

    They are on the CPU, in the training dtype or in bfloat16. With label augmentation, C columns
    with the labels of training nodes follow the features, except for node types without labelled
    training nodes on any rank. Standardised features are scaled by `scales`. Sparse rows stay
    sparse.

    Raises `CollectiveInputError` if a value is too large for the training dtype.
    """
    names, widths = facts.type_names or ("",), facts.type_features or (facts.num_features,)
    inductive = config.train.inductive or facts.num_graphs > 0
    storage = FeatureStorage(config.graph.features_dir)
    how, dtype = config.graph.normalize_features, config.train.dtype
    scaling = Scaling(grid, how, scales, dtype, storage.empty)
    tables: list[FloatArray | LocalCSR] = []
    for number, (name, rows, width) in enumerate(zip(names, _rows(nodes), widths, strict=True)):
        if isinstance(rows, SparseRows):
            tables.append(_sparse_table(scaling, rows, width))
            continue
        measured = partial(_training_rows, nodes, number) if inductive else lambda: None
        tables.append(scaling(name, rows, measured))
    if config.train.label_augmentation > 0:
        with agree(grid.world):
            tables = _with_labels(tables, facts, nodes, config)
    parts: list[Tensor] = []
    while tables:
        # One at a time, so that only one table is in memory in both formats.
        table = tables.pop(0)
        if isinstance(table, LocalCSR):
            parts.append(SparseFeatures.of(table, config.train.precision))
            continue
        with agree(grid.world):
            parts.append(storage.tensor(table, narrow=config.train.precision == "bfloat16"))
        del table
    if nodes.types is None:
        return parts[0]
    typed = TypedRows.in_order(parts, torch.from_numpy(nodes.types))
    if config.model.embeddings:
        typed = replace(typed, numbers=typed.part_rows)
    return typed


def _rows(nodes: NodeBlock) -> Sequence[FloatArray | SparseRows]:
    """Return the features of each type, or of all nodes in a graph without types."""
    if nodes.types is not None:
        sparse = nodes.sparse_of_types or [None] * len(nodes.type_features)
        pairs = zip(sparse, nodes.type_features, strict=True)
        return [dense if rows is None else rows for rows, dense in pairs]
    rows = nodes.features if nodes.sparse is None else nodes.sparse
    assert rows is not None
    return [rows]


@collective
def _sparse_table(scaling: Scaling, rows: SparseRows, width: int) -> LocalCSR:
    """Return sparse features in the training dtype, with rows scaled like dense ones."""
    values = cast_features(scaling.grid, rows.values[:, None], scaling.dtype)[:, 0]
    table = LocalCSR(rows.indptr, rows.indices, values, (len(rows.indptr) - 1, width))
    if scaling.how in ("row", "l2"):
        numbers, wide = table.entry_rows(), np.abs(values.astype(np.float64))
        by_row = scaling.how == "row"
        norms = np.bincount(numbers, wide if by_row else np.square(wide), table.shape[0])
        norms = norms if by_row else np.sqrt(norms)
        values[:] = values / np.where(norms > 0, norms, 1)[numbers]
    return table


def _training_rows(nodes: NodeBlock, number: int) -> Mask | None:
    """Return a mask of a type's training nodes; None if the store has no split."""
    if nodes.split is None:
        return None
    trains: Mask = nodes.split == Split.TRAIN
    return trains if nodes.types is None else trains[nodes.types == number]


def _with_labels(
    tables: Sequence[FloatArray | LocalCSR],
    facts: GraphFacts,
    nodes: NodeBlock,
    config: Config,
) -> list[FloatArray | LocalCSR]:
    """Append label columns to the tables of nodes that may have labels."""
    assert nodes.labels is not None
    assert nodes.split is not None
    extended: list[FloatArray | LocalCSR] = []
    for number, table in enumerate(tables):
        labels, split = nodes.labels, nodes.split
        if nodes.types is not None:
            if facts.type_names[number] not in facts.labelled_types:
                extended.append(table)
                continue
            of_type = nodes.types == number
            labels, split = labels[of_type], split[of_type]
        columns = label_columns(labels, split, facts.num_classes, np.dtype(config.train.dtype))
        if isinstance(table, LocalCSR):
            extended.append(table.beside(columns))
        else:
            extended.append(FeatureStorage(config.graph.features_dir).beside([table, columns]))
    return extended
