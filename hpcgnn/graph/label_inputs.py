"""Labels of training nodes as inputs: masked label prediction (Shi et al., IJCAI 2021).

Every epoch hides the labels of some training nodes and predicts these from the labels of the
others; inference gives the model the labels of all training nodes. Which labels are hidden depends
only on the seed, the epoch and the node's original id, so it is the same on any number of ranks and
after a resume.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from hpcgnn import kernels
from hpcgnn.autograd import DropoutKey, SparseFeatures
from hpcgnn.comm import ProcessGrid, allreduce_sum
from hpcgnn.comm.row_map import spans
from hpcgnn.config.config import Config
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.nn import NodeFeatures, TypedRows
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.typing import Array, FloatArray, GlobalIndices, Mask

_LAYER = -1
"""The layer number for this random draw; layers of models count from 0."""


def training_mask(labels: Array, split: Array) -> Mask:
    """Return a mask (N,) of labelled training nodes; `labels` as in `labelled_nodes`."""
    trains: Mask = split == Split.TRAIN
    return trains & labelled_nodes(labels)


def labelled_nodes(labels: Array) -> Mask:
    """Return a mask (N,) of nodes that have a label, or at least one number to predict.

    Labels are (N,) classes with -1 for none, (N, C) zeros and ones, or (N, T) numbers with NaN for
    missing.
    """
    if labels.dtype.kind == "f":
        return np.array(~np.isnan(labels).all(axis=1), np.bool_)
    if labels.ndim == 2:
        return np.ones(len(labels), np.bool_)
    return labels >= 0


def label_columns(
    labels: Array, split: Array, num_classes: int, dtype: np.dtype[np.generic]
) -> FloatArray:
    """Return the labels of the training nodes as (N, C) zeros and ones; other rows are zero."""
    trains = training_mask(labels, split)
    columns = np.zeros((len(split), num_classes), dtype)
    if labels.ndim == 2:
        columns[trains] = labels[trains]
    else:
        columns[trains, labels[trains]] = 1
    return columns


class HiddenLabels:
    """Chooses and hides the labels that an epoch predicts.

    The last C columns of `features` are labels, with node types only for types that training nodes
    have; they are changed in place. `rows` and `node_ids` (T,) int64 are the rows of the training
    nodes and their original ids; a `share` of their labels, in (0, 1), stays visible.
    """

    def __init__(
        self,
        features: NodeFeatures,
        rows: Tensor,
        node_ids: GlobalIndices,
        num_classes: int,
        share: float,
    ) -> None:
        self._ids, self._share = np.ascontiguousarray(node_ids), share
        self._device = rows.device
        self._tables = [
            _entries(table, table_rows, chosen, num_classes)
            if isinstance(table, SparseFeatures)
            else _Labels(table[:, table.shape[1] - num_classes :], table_rows, chosen)
            for table, table_rows, chosen in _tables(features, rows)
            if len(table_rows)
        ]
        tables = [table for table, *_ in _tables(features, rows)]
        self._sparse = [each.matrix for each in tables if isinstance(each, SparseFeatures)]

    def draw(self, key: DropoutKey) -> Tensor:
        """Hide labels in the features; return the mask (T,) of the training nodes to predict."""
        visible = torch.from_numpy(_visible(self._ids, self._share, key)).to(self._device)
        for table in self._tables:
            table.show(visible)
        for matrix in self._sparse:
            matrix.values_changed()
        return ~visible


def _visible(node_ids: GlobalIndices, share: float, key: DropoutKey) -> Mask:
    """Return a mask (n,) of nodes whose labels stay visible, from original ids (n,) int64."""
    ones = np.ones((len(node_ids), 1), np.float32)
    kept = np.empty_like(ones)
    kernels.dropout_rows(ones, node_ids, key.at(_LAYER).word(), 1 - share, kept)
    return kept[:, 0] > 0


@dataclass(frozen=True)
class LabelInputs:
    """Label columns after the features of sampled nodes; an epoch shows a `share` of the labels.

    With node types, only types with numbers in `types` have such columns.
    """

    share: float
    num_classes: int
    types: Sequence[int]

    @classmethod
    def of(cls, config: Config, facts: GraphFacts) -> Self | None:
        """Return the label inputs of a configuration; None without label augmentation."""
        share, types = config.train.label_augmentation, facts.labelled_types
        numbers = tuple(map(facts.type_names.index, types))
        return cls(share, facts.num_classes, numbers) if share > 0 else None

    def shown(self, node_ids: GlobalIndices, seeds: tuple[int, int]) -> Mask:
        """Return a mask (n,) of visible labels, from original ids (n,), run's seed and epoch."""
        return _visible(node_ids, self.share, DropoutKey(*seeds))

    def hide(self, features: NodeFeatures, node_ids: GlobalIndices, seeds: tuple[int, int]) -> None:
        """Remove hidden labels from the features of n nodes on the CPU, in place."""
        rows = torch.arange(len(features))
        if isinstance(features, TypedRows):
            rows = rows[torch.isin(features.types, torch.tensor(self.types))]
        ids = node_ids[rows.numpy()]
        HiddenLabels(features, rows, ids, self.num_classes, self.share).draw(DropoutKey(*seeds))


class _Labels:
    """The labels of some training nodes, in the columns of one table of features.

    `rows` are their rows in the columns, and `chosen` their indices among the training nodes.
    """

    def __init__(self, columns: Tensor, rows: Tensor, chosen: Tensor | slice) -> None:
        self._columns, self._rows, self._chosen = columns, rows, chosen
        self._labels = columns[rows]

    def show(self, visible: Tensor) -> None:
        """Leave only the visible labels in the columns."""
        visible_rows = visible[self._chosen, None].to(self._labels.dtype)
        self._columns[self._rows] = self._labels * visible_rows


def _entries(
    table: SparseFeatures, table_rows: Tensor, chosen: Tensor | slice, num_classes: int
) -> _Labels:
    """Return the labels in sparse rows, whose entries are the non-zeros only."""
    stored, rows = table.matrix, table_rows.numpy()
    counts = np.diff(stored.indptr)[rows]
    entries = spans(stored.indptr[rows], counts)
    are_labels = stored.indices[entries] >= stored.shape[1] - num_classes
    numbers = torch.arange(len(rows)) if isinstance(chosen, slice) else chosen
    owners = torch.repeat_interleave(numbers, torch.from_numpy(counts))
    mask = torch.from_numpy(are_labels)
    values = torch.from_numpy(stored.values)[:, None]
    return _Labels(values, torch.from_numpy(entries)[mask], owners[mask])


def _tables(
    features: NodeFeatures, rows: Tensor
) -> Iterable[tuple[Tensor, Tensor, Tensor | slice]]:
    """Return each table, its rows of training nodes, and their indices among all training nodes."""
    if isinstance(features, TypedRows):
        return features.by_type(rows)
    return [(features, rows, slice(None))]


@collective
def labelled_types(
    grid: ProcessGrid, names: Sequence[str], types: Array | None, trains: Mask
) -> tuple[str, ...]:
    """Return the node types that have labelled training nodes, the same on all ranks.

    `types` (N,) are those of local nodes, `trains` (N,) is a mask of labelled training nodes.
    """
    if types is None:
        return ()
    counts = np.bincount(types[trains], minlength=len(names)).astype(np.int64)
    allreduce_sum(grid.layer, counts)
    return tuple(name for name, count in zip(names, counts, strict=True) if count > 0)
