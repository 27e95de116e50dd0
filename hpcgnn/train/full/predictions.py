"""Predictions of a trained model for nodes: compute, score, sort by original id, and write them."""

import collections
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import arithmetic
from hpcgnn.comm import ProcessGrid, agree, allreduce_sum, raise_on_all
from hpcgnn.comm.collect_rows import RowStream, in_order
from hpcgnn.comm.row_map import spans
from hpcgnn.errors import InputError, named
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.label_inputs import labelled_nodes
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import NodeModel
from hpcgnn.spmd import collective
from hpcgnn.storage import H5Predictions, RowIds
from hpcgnn.train.evaluation import SPLITS, target_metrics
from hpcgnn.train.multi_label import HALF, LabelRule
from hpcgnn.train.run.saved_model import SavedModel
from hpcgnn.typing import Array, FloatArray, GlobalIndices


@dataclass(frozen=True, eq=False)
class NodeRows:
    """Results for the nodes of one rank, or for other rows: graphs, edges, pairs of nodes.

    `ids` (N,) int64 are original ids, or (N, 3) for edges and pairs, see `RowIds`; `values`
    (N, width) are probabilities or embeddings (float32) or predicted numbers (float64), or (N,)
    scores of pairs (float32); `predicted` are classes (N,) int32, or (N, C) uint8 for a
    multi-label model; None without classes.
    """

    ids: GlobalIndices
    values: FloatArray
    predicted: Array | None = None

    @property
    def columns(self) -> tuple[Array, ...]:
        """The arrays that are not None."""
        arrays = (self.ids, self.values)
        return arrays if self.predicted is None else (*arrays, self.predicted)


@torch.no_grad()
@collective
def infer(
    graph: LocalGraph, model: Callable[..., Tensor], content: str, rule: LabelRule = HALF
) -> NodeRows:
    """Return the probabilities, predicted numbers or embeddings of the local nodes.

    Probabilities are the softmax of the logits, or their sigmoid for a multi-label model, whose
    labels are predicted by `rule`. A regression model gives numbers in the units of the targets.
    Predictions are corrected and smoothed if the configuration asks for it. Embeddings are the
    input of the last layer.
    """
    ids = graph.ids
    if content == "embeddings":
        if not isinstance(model, NodeModel):
            raise InputError("embeddings: only a NodeModel of hpcgnn.nn has them")
        values = model.embed(graph.view, graph.features).float().cpu().numpy()
        return NodeRows(ids, values)
    logits_NC = model(graph.view, graph.features, None)
    if graph.smoother is not None:
        logits_NC = graph.smoother(logits_NC)
    return rows_of(ids, logits_NC, graph.facts, rule)


def rows_of(ids: GlobalIndices, logits_NC: Tensor, facts: GraphFacts, rule: LabelRule) -> NodeRows:
    """Return the predictions that outputs mean for rows with these ids, see `infer`."""
    logits_NC = logits_NC.double().cpu()
    if facts.targets:
        values = logits_NC.numpy() * np.array(facts.target_scales) + np.array(facts.target_means)
        return NodeRows(ids, values)
    if facts.multi_label:
        return NodeRows(
            ids,
            arithmetic().sigmoid(logits_NC).float().numpy(),
            rule.predicted(logits_NC).to(torch.uint8).numpy(),
        )
    probabilities = logits_NC.softmax(dim=1).float().numpy()
    return NodeRows(ids, probabilities, logits_NC.argmax(dim=1).to(torch.int32).numpy())


@collective
def score_rows(graph: LocalGraph, rows: NodeRows) -> dict[str, dict[str, Any]]:
    """Return the scores of predictions by split; {} without labels or classes.

    ``metric`` is accuracy, micro_f1 for a multi-label model, or r2; ``nodes`` counts the labelled
    nodes. A store without a split has one set, ``labelled``.
    """
    labels, predicted = graph.labels, rows.predicted
    if graph.facts.targets and labels is not None and graph.split is not None:
        return _score_targets(graph, rows, labels)
    if labels is None or predicted is None:
        return {}
    labelled = labelled_nodes(labels)
    sets = {"labelled": labelled}
    if graph.split is not None:
        sets = {name: labelled & (graph.split == part) for name, part in SPLITS.items()}
    # For each set: the number of nodes, and the two numbers whose ratio is the metric.
    counts = np.zeros((len(sets), 3), np.int64)
    for row, mask in zip(counts, sets.values(), strict=True):
        truth, guess = labels[mask], predicted[mask]
        row[:] = len(truth), np.count_nonzero(truth == guess), len(truth)
        if labels.ndim == 2:
            # F1 is twice the correct labels, divided by the predicted plus the true ones.
            total = np.count_nonzero(truth) + np.count_nonzero(guess)
            row[1:] = 2 * np.count_nonzero(truth & guess), total
    allreduce_sum(graph.grid.layer, counts)
    return {
        name: {"metric": graph.facts.metric, "value": right / max(whole, 1), "nodes": nodes}
        for name, (nodes, right, whole) in zip(sets, counts.tolist(), strict=True)
        if nodes
    }


@collective
def _score_targets(graph: LocalGraph, rows: NodeRows, labels: Array) -> dict[str, dict[str, Any]]:
    facts, grid = graph.facts, graph.grid
    if rows.values.shape[1] != labels.shape[1]:
        return {}
    scaled = (rows.values - np.array(facts.target_means)) / np.array(facts.target_scales)
    predicted, truth, split = (torch.from_numpy(array) for array in (scaled, labels, graph.split))
    by_set = target_metrics(grid, predicted, truth, split, facts)
    known = labelled_nodes(labels)
    scores = {}
    for name, metrics in by_set.items():
        count = int(np.count_nonzero(known & (graph.split == SPLITS[name])))
        nodes = int(grid.layer.allreduce(count))
        scores[name] = {"metric": "r2", "value": metrics["r2"], "nodes": nodes, **metrics}
    return scores


@collective
def order_by_id(grid: ProcessGrid, rows: NodeRows) -> NodeRows:
    """Return the rows sorted over the ranks of a layer by original id."""
    return NodeRows(*in_order(grid.layer, rows.ids, *rows.columns))


@collective
def order_as_requested(
    grid: ProcessGrid, rows: NodeRows, requested: GlobalIndices, source: str, what: str
) -> NodeRows:
    """Return the rows of `requested` nodes, in that order; a node may be requested twice.

    `requested` are (m,) int64 original ids, equal on all ranks. The message names `source`, where
    they are looked up, and `what` they are.

    Raises `CollectiveInputError` if an id belongs to no node.
    """
    by_id = np.argsort(requested, kind="stable")
    first = np.searchsorted(requested[by_id], rows.ids, side="left")
    times = np.searchsorted(requested[by_id], rows.ids, side="right") - first
    repeated = np.repeat(np.arange(len(rows.ids)), times)
    positions = by_id[spans(first, times)]
    counts = np.zeros(len(requested), np.int32)
    counts[positions] = 1
    allreduce_sum(grid.layer, counts)
    missing = named(requested[counts == 0].tolist())
    fault = InputError(f"--nodes: {source} has no {what} {missing}; give ids of the original graph")
    raise_on_all(grid.world, fault if missing else None)
    return NodeRows(
        *in_order(grid.layer, positions, *(column[repeated] for column in rows.columns))
    )


@collective
def write_rows(
    grid: ProcessGrid, columns: Sequence[Array], write: Callable[[RowStream], None]
) -> None:
    """Stream ordered rows (m, ...), rank after rank, to rank 0, which writes them in pieces.

    Raises `CollectiveInputError` if the file cannot be written.
    """
    # If rank 0 fails inside, leaving the stream releases the ranks that wait to send.
    with agree(grid.world):
        if grid.replica == grid.group == 0:
            with RowStream(grid.layer, *columns) as stream:
                if grid.rank == 0:
                    write(stream)
                else:
                    collections.deque(stream, maxlen=0)


@collective
def save_rows(
    graph: LocalGraph, model: Callable[..., Tensor], path: Path, saved: SavedModel, what: str
) -> None:
    """Write a saved model's predictions for all nodes, see `infer`, sorted by original id.

    Raises `CollectiveInputError` if the file cannot be written.
    """
    grid, facts = graph.grid, graph.facts
    rows = order_by_id(grid, infer(graph, model, what, saved.rule))
    ids = RowIds(("graph_id" if facts.num_graphs else "node_id",))
    values, names = what, tuple[str, ...]()
    if what == "probabilities":
        names = facts.targets or facts.class_names
        values = "values" if facts.targets else what
    file = H5Predictions(path, values, names, saved.origin(), ids=ids)
    write_rows(grid, rows.columns, file.write)
