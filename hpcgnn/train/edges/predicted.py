"""A rank's edges with labels to predict, and the facts about the graph that follow from them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcgnn.comm import ProcessGrid, agree, allreduce_sum
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.labels import TargetScale
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.graph.targets import Targets, target_scale
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.train.early_stopping import patience_fault
from hpcgnn.train.edges.labelled import (
    EdgeLabels,
    EdgeTargets,
    LabelledEdges,
    find_labels,
    num_features,
    read_examples,
)
from hpcgnn.train.links.edges import SHARES
from hpcgnn.typing import Array


@dataclass(frozen=True, eq=False)
class PredictedEdges:
    """The edges of a rank that are predicted, and their labels.

    `trained` are the targets of the training split, `judged` those of all edges. `scale` is that of
    numbers; None for classes. `width` is the number of features that the decoder reads.
    """

    labels: EdgeLabels
    scale: TargetScale | None
    edges: LabelledEdges
    trained: EdgeTargets
    judged: EdgeTargets
    width: int
    symmetric: bool


@collective
def read_predicted(stored: StoredRows) -> PredictedEdges:
    """Return this rank's labelled edges, with requests for the rows that predict them.

    Raises `CollectiveInputError` if the store has no labels, or unsuitable ones.
    """
    grid, store, options = stored.context.grid, stored.store, stored.context.config.edges
    with agree(grid.world):
        labels = find_labels(store, options.relations)
        width = num_features(store, labels.relations, read=options.features)
    edges, scale = read_examples(stored, labels, width), None
    if labels.kind == "numbers":
        where, targets = f"{store.path}: the labels of edges", Targets(labels.names, edges.labels)
        scale = TargetScale(labels.names, *target_scale(grid, where, targets, edges.split))
        scaled = (edges.labels - np.array(scale.means)) / np.array(scale.deviations)
        edges = replace(edges, labels=scaled)
    trained = edges[edges.split == Split.TRAIN].with_request(grid.layer, stored.row_map)
    judged = edges.with_request(grid.layer, stored.row_map)
    return PredictedEdges(labels, scale, edges, trained, judged, width, store.undirected)


def encoder_facts(facts: GraphFacts, config: Config) -> GraphFacts:
    """Return the facts with the embeddings' width in place of the number of classes."""
    return facts.with_embeddings(config.edges.width or config.model.hidden)


def edge_facts(facts: GraphFacts, predicted: PredictedEdges) -> GraphFacts:
    """Return the facts with the edges' classes or numbers in place of those of nodes."""
    names, scale = predicted.labels.names, predicted.scale
    content: dict[str, Any] = {**vars(facts.with_embeddings(len(names)))}
    content["multi_label"] = predicted.labels.kind == "several"
    if len(predicted.labels.relations) > 1:
        content["predicted"] = predicted.labels.relations
    if scale is None:
        content["class_names"] = names
    else:
        content |= {"targets": names, "target_means": scale.means}
        content["target_scales"] = scale.deviations
    return GraphFacts(**content)


@collective
def count_splits(grid: ProcessGrid, split: Array) -> dict[str, int]:
    """Return the number of edges of each split over all ranks."""
    counts = np.bincount(split, minlength=len(Split)).astype(np.int64)
    allreduce_sum(grid.layer, counts)
    return {name: int(counts[Split[name.upper()]]) for name in SHARES}


def fault_of(config: Config, counts: dict[str, int]) -> InputError | None:
    """Return the fault of a run with these numbers of edges by split; None if it can train."""
    if counts["train"] == 0:
        return InputError(
            f"{config.graph.store}: no labelled edge is in the training split; raise edges.train, "
            "or convert with another split of edges"
        )
    lacks = "no labelled edge chooses the model"
    return patience_fault(config.train, counts["valid"], lacks, "raise edges.valid")
