"""What a trained model says about nodes, in the order of the user's own ids."""

import collections
from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.comm import ProcessGrid, agree, allreduce_sum, raise_on_all
from hpcgnn.errors import InputError
from hpcgnn.nn import NodeModel
from hpcgnn.storage import PredictionFile
from hpcgnn.train.collect import RowStream, in_order
from hpcgnn.train.local_graph import LocalGraph
from hpcgnn.typing import Array, FloatArray, GlobalIndices

__all__ = ["NodeRows", "infer", "order_as_asked", "order_by_id", "write_rows"]

_NAMED_IDS = 3


@dataclass(frozen=True, eq=False)
class NodeRows:
    """Results for the nodes of one rank.

    Parameters
    ----------
    ids
        (N,) int64 original ids.
    values
        (N, width) float32 probabilities or embeddings.
    predicted
        (N,) int32 classes, or (N, C) uint8 of a multi-label model; None for embeddings.
    """

    ids: GlobalIndices
    values: FloatArray
    predicted: Array | None = None

    @property
    def columns(self) -> tuple[Array, ...]:
        """The arrays that are there."""
        there = (self.ids, self.values)
        return there if self.predicted is None else (*there, self.predicted)


@torch.no_grad()
def infer(graph: LocalGraph, model: NodeModel, what: str) -> NodeRows:
    """Return the probabilities, or the embeddings, of the local nodes.

    Collective.

    Probabilities are the softmax of the logits, or their sigmoid for a multi-label model; a label
    is predicted where it exceeds one half. Where the configuration asks for it they are corrected
    and smoothed. Embeddings are the input of the last layer.
    """
    ids = graph.products.node_ids
    if what == "embeddings":
        values = model.embed(graph.view, graph.features).float().cpu().numpy()
        return NodeRows(ids, values)
    logits_NC = model(graph.view, graph.features, None)
    if graph.smoother is not None:
        logits_NC = graph.smoother(logits_NC)
    logits_NC = logits_NC.double().cpu()
    if graph.facts.multi_label:
        return NodeRows(
            ids, logits_NC.sigmoid().float().numpy(), (logits_NC > 0).to(torch.uint8).numpy()
        )
    probabilities = logits_NC.softmax(dim=1).float().numpy()
    return NodeRows(ids, probabilities, logits_NC.argmax(dim=1).to(torch.int32).numpy())


def order_by_id(grid: ProcessGrid, rows: NodeRows) -> NodeRows:
    """Return the rows sorted over the ranks of a layer by original id.

    Collective.
    """
    return NodeRows(*in_order(grid.layer, rows.ids, *rows.columns))


def order_as_asked(
    grid: ProcessGrid, rows: NodeRows, asked: GlobalIndices, source: str
) -> NodeRows:
    """Return the rows of the nodes `asked`, in that order; a node may be asked for twice.

    Collective.

    Parameters
    ----------
    grid
        The ranks.
    rows
        Of all nodes.
    asked
        (m,) int64 original ids, equal on all ranks.
    source
        What the ids were looked up in, for the message.

    Raises
    ------
    CollectiveInputError
        When there is no node of such an id.
    """
    by_id = np.argsort(asked, kind="stable")
    first = np.searchsorted(asked[by_id], rows.ids, side="left")
    times = np.searchsorted(asked[by_id], rows.ids, side="right") - first
    chosen = np.repeat(np.arange(len(rows.ids)), times)
    nth = np.arange(len(chosen)) - np.repeat(np.cumsum(times) - times, times)
    places = by_id[np.repeat(first, times) + nth]
    _check_found(grid, asked, places, source)
    return NodeRows(*in_order(grid.layer, places, *(each[chosen] for each in rows.columns)))


def _check_found(grid: ProcessGrid, asked: GlobalIndices, places: Array, source: str) -> None:
    found = np.zeros(len(asked), np.int32)
    found[places] = 1
    allreduce_sum(grid.layer, found)
    missing = asked[found == 0]
    names = ", ".join(str(each) for each in missing[:_NAMED_IDS])
    more = f" and {len(missing) - _NAMED_IDS} more" if len(missing) > _NAMED_IDS else ""
    raise_on_all(
        grid.world,
        InputError(f"--nodes: {source} has no node {names}{more}; give ids of the original graph")
        if len(missing)
        else None,
    )


def write_rows(grid: ProcessGrid, rows: NodeRows, file: PredictionFile) -> None:
    """Write ordered rows to a file, rank after rank, by rank 0.

    Collective.

    Raises
    ------
    CollectiveInputError
        When the file cannot be written.
    """
    # Rank 0 may fail alone inside: leaving the stream releases the ranks that wait to send.
    with agree(grid.world):
        if grid.replica == 0:
            with RowStream(grid.layer, *rows.columns) as stream:
                if grid.rank == 0:
                    _write(stream, file)
                else:
                    collections.deque(stream, maxlen=0)


def _write(stream: RowStream, file: PredictionFile) -> None:
    with file:
        for piece in stream:
            file.append(*piece)
