"""Labels of training nodes as inputs: masked label prediction (Shi et al., IJCAI 2021).

Every epoch hides the labels of some training nodes and predicts those from the labels of the
others; inference gives the model the labels of all training nodes. Which labels are hidden is a
function of the seed, the epoch and the node's original id, so it is the same at any number of
ranks and after a resume.
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

_PLACE = -1
"""The place of this draw: layers count from 0."""


def training_mask(labels: Array, split: Array) -> Mask:
    """Return the labelled training nodes, (N,), by labels as of `labelled_nodes` and roles (N,)."""
    trains: Mask = split == Split.TRAIN
    return trains & labelled_nodes(labels)


def labelled_nodes(labels: Array) -> Mask:
    """Return (N,) whether a node has labels that count, or some number to predict.

    Labels are (N,) classes with -1 for none, or (N, C) zeros and ones, or numbers, NaN where
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

    The last C columns of `features` are labels, of node types those that training nodes have; they
    are changed in place. `rows` and `node_ids` (T,) int64 are the rows of the training nodes and
    their original ids, of whose labels the `share`, in (0, 1), stays visible.
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
            _entries(table, places, chosen, num_classes)
            if isinstance(table, SparseFeatures)
            else _Labels(table[:, table.shape[1] - num_classes :], places, chosen)
            for table, places, chosen in _tables(features, rows)
            if len(places)
        ]

    def draw(self, key: DropoutKey) -> Tensor:
        """Hide labels in the features; return the mask (T,) of the training nodes to predict."""
        visible = torch.from_numpy(_visible(self._ids, self._share, key)).to(self._device)
        for each in self._tables:
            each.show(visible)
        return ~visible


def _visible(node_ids: GlobalIndices, share: float, key: DropoutKey) -> Mask:
    """Return (n,) whose labels are shown, of nodes by their original ids (n,) int64."""
    ones = np.ones((len(node_ids), 1), np.float32)
    kept = np.empty_like(ones)
    kernels.dropout_rows(ones, node_ids, key.at(_PLACE).word(), 1 - share, kept)
    shown: Mask = kept[:, 0] > 0
    return shown


@dataclass(frozen=True)
class LabelInputs:
    """Labels behind the features of nodes that are sampled; an epoch shows a share of them.

    Of node types those of the numbers `types` have such columns.
    """

    share: float
    num_classes: int
    types: Sequence[int]

    @classmethod
    def of(cls, config: Config, facts: GraphFacts) -> Self | None:
        """Return what a configuration has of them; None without any."""
        share, types = (
            config.train.label_augmentation,
            map(facts.type_names.index, facts.labelled_types),
        )
        return cls(share, facts.num_classes, tuple(types)) if share > 0 else None

    def shown(self, node_ids: GlobalIndices, seeds: tuple[int, int]) -> Mask:
        """Return (n,) whose labels are inputs, by original ids (n,), run's seed and epoch."""
        return _visible(node_ids, self.share, DropoutKey(*seeds))

    def hide(self, features: NodeFeatures, node_ids: GlobalIndices, seeds: tuple[int, int]) -> None:
        """Take the labels that are not shown out of features (n,) on the CPU, in place."""
        rows = torch.arange(len(features))
        if isinstance(features, TypedRows):
            rows = rows[torch.isin(features.types, torch.tensor(self.types))]
        ids = node_ids[rows.numpy()]
        HiddenLabels(features, rows, ids, self.num_classes, self.share).draw(DropoutKey(*seeds))


class _Labels:
    """The labels of some training nodes, in columns of one table of features.

    `places` are rows of the columns, and `chosen` says of which of the training nodes each is.
    """

    def __init__(self, columns: Tensor, places: Tensor, chosen: Tensor | slice) -> None:
        self._columns, self._places, self._chosen = columns, places, chosen
        self._labels = columns[places]

    def show(self, visible: Tensor) -> None:
        """Leave only the visible labels in the columns."""
        visible_rows = visible[self._chosen, None].to(self._labels.dtype)
        self._columns[self._places] = self._labels * visible_rows


def _entries(
    table: SparseFeatures, places: Tensor, chosen: Tensor | slice, num_classes: int
) -> _Labels:
    """Return the labels that are entries of sparse rows, whose zeros have none."""
    stored, rows = table.matrix, places.numpy()
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
    """Return tables, the places of training nodes there, and which of these they are."""
    if isinstance(features, TypedRows):
        return features.by_type(rows)
    return [(features, rows, slice(None))]


@collective
def labelled_types(
    grid: ProcessGrid, names: Sequence[str], types: Array | None, trains: Mask
) -> tuple[str, ...]:
    """Return the node types that have labelled training nodes, the same on all ranks.

    `types` (N,) are those of local nodes, `trains` (N,) says which are labelled training nodes.
    """
    if types is None:
        return ()
    counts = np.bincount(types[trains], minlength=len(names)).astype(np.int64)
    allreduce_sum(grid.layer, counts)
    return tuple(name for name, count in zip(names, counts, strict=True) if count > 0)
