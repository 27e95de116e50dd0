"""The objective of labelled edges: predict classes, several labels or numbers of edges."""

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.autograd import RequestedRows
from hpcgnn.comm import ProcessGrid, agree, raise_on_all
from hpcgnn.comm.collect_rows import in_order, in_order_of_ends
from hpcgnn.config.config import Config
from hpcgnn.console import number
from hpcgnn.errors import InputError, named
from hpcgnn.graph.context import Context
from hpcgnn.graph.edge_inputs import scaled_edges
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.labels import Reading, TargetScale
from hpcgnn.graph.load import FEATURES
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.stored_rows import StoredRows, check_relations
from hpcgnn.nn import EdgeModel, MeanLoss, NodeModel, make_edge_model
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, H5Predictions, RowIds, Split
from hpcgnn.support import Reasons, Trait
from hpcgnn.train.cached_products import WholeView
from hpcgnn.train.edges.labelled import (
    BatchedEdges,
    EdgeLabels,
    EdgeTargets,
    EnclosedEdges,
    LabelledEdges,
    num_features,
    read_labelled,
    relations_to_predict,
    stored_features,
)
from hpcgnn.train.edges.predicted import (
    PredictedEdges,
    count_splits,
    edge_facts,
    encoder_facts,
    fault_of,
    read_predicted,
)
from hpcgnn.train.evaluation import Evaluation
from hpcgnn.train.full.predictions import NodeRows, rows_of, write_rows
from hpcgnn.train.label_metrics import loss_of, score
from hpcgnn.train.links.edges import LinkEdges
from hpcgnn.train.links.pairs import PairExamples
from hpcgnn.train.links.requested_pairs import RequestedPairs, find_rows
from hpcgnn.train.multi_label import LabelRule
from hpcgnn.train.objectives.objective import SingleObjective
from hpcgnn.train.objectives.report import GraphReport
from hpcgnn.train.run.saved_model import SavedModel, load_saved_graph, require_equal
from hpcgnn.train.sources.source import StepData
from hpcgnn.typing import FloatArray, GlobalIndices

_BLOCK_EDGES = 1 << 16
"""Edges to predict at a time when there is no backward pass."""


class EdgeObjective(SingleObjective):
    """Learns labels or numbers of edges, each from its two nodes and its features.

    `relations` are the names of those whose edges are predicted; `pair_features` is the number of
    edge features that predictions use.
    """

    lacks: ClassVar[Reasons] = {
        Trait.SOME_EDGES: "its split is of edges, not of nodes",
        Trait.ACTIVE_SETS: "its edges may have any node",
        Trait.NUMBERS: "its numbers are of edges",
        Trait.LABELLED_NODES: "its labels are of edges",
        Trait.NODE_SPLITS: "its splits are of edges",
        Trait.PLANNED_FROM_DEGREES: "its edges can only be counted in the graph",
        Trait.PROGRAMS: "it reads one graph",
        Trait.FIELDS: "it predicts edges",
        Trait.PARTS: "edges are drawn from the whole graph, which every host holds",
        Trait.FOUND_PAIRS: "it labels edges, and does not find likely ones",
        Trait.CHOSEN_ROWS: "an edge has two nodes; give --pairs",
    }
    reads: ClassVar[Reading] = FEATURES

    @property
    def saying(self) -> str:
        """The name of the predictions in files."""
        return "values" if self.facts.targets else self.saves

    @collective
    def __init__(self, graph: LocalGraph, config: Config, predicted: PredictedEdges) -> None:
        self._predicted, self._facts = predicted, edge_facts(graph.facts, predicted)
        self.relations, self.pair_features = predicted.labels.relations, predicted.width
        encoder = encoder_facts(graph.facts, config)
        self.graph, self.grid, self.config = replace(graph, facts=encoder), graph.grid, config
        edges = predicted.edges
        self.num_edges = count_splits(self.grid, edges.split)
        trained = edges[edges.split == Split.TRAIN]
        self.examples = PairExamples(
            graph.row_map.num_local,
            self.num_edges["train"],
            lambda _seed, _epoch: predicted.trained,
            lambda sampled: BatchedEdges(graph.grid, sampled, trained),
            lambda sampled: EnclosedEdges(graph.grid, sampled, trained),
        )
        self.whole = WholeView(self.graph)
        counted = {"labelled edges": self.num_edges}
        self.about = GraphReport(replace(graph, facts=self._facts), config, counted=counted)

    @classmethod
    @collective
    @override
    def draw(cls, context: Context) -> tuple[PredictedEdges, None]:
        with StoredRows.opened(context, cls.reads.fields) as stored:
            predicted = read_predicted(stored)
        counts = count_splits(context.grid, predicted.edges.split)
        raise_on_all(context.grid.world, fault_of(context.config, counts))
        return predicted, None

    @classmethod
    @collective
    @override
    def on(cls, graph: LocalGraph, config: Config, drawn: PredictedEdges) -> Self:
        return cls(graph, config, drawn)

    @property
    @override
    def facts(self) -> GraphFacts:
        return self._facts

    @override
    def make_model(self, seed: int) -> EdgeModel:
        encoder = self.graph.make_model(self.config, seed)
        return self.make_part(encoder, self.graph.facts.num_classes, seed)

    @override
    def make_part(self, encoder: NodeModel, width: int, seed: int) -> EdgeModel:
        return make_edge_model(
            encoder,
            (
                width,
                self.pair_features,
                self.config.edges.hidden or self.config.model.hidden,
                self.facts.num_classes,
                len(self.relations),
            ),
            symmetric=self._predicted.symmetric,
            seed=seed,
        )

    @collective
    @override
    def loss_of(self, model: EdgeModel, outputs: Tensor, step: StepData) -> Tensor:
        assert step.size is not None
        targets: EdgeTargets = step.targets
        rows = RequestedRows.of(outputs, targets.pairs.request, self.graph.products.trace)
        logits = self._decode(model, model.decoder.ends(rows), targets)
        labels = self._labels(targets)
        loss = MeanLoss(step.size, self.config.train.label_smoothing)
        return loss_of(self.facts, loss, logits, labels)

    @collective
    @override
    def judge(self, model: EdgeModel, outputs: Tensor) -> Evaluation:
        judged, facts = self._predicted.judged, self.facts
        logits = self.predict(model, outputs, judged)
        labels, device = self._labels(judged), self.graph.device
        split = device.tensor(self._predicted.edges.split)
        threshold = self.config.train.threshold
        return score(self.grid, logits, labels, split, facts, threshold)

    @torch.no_grad()
    @collective
    def predict(self, model: EdgeModel, embeddings: Tensor, needed: EdgeTargets) -> Tensor:
        """Return the logits (E, C) of edges, or their scaled numbers."""
        rows = RequestedRows.of(embeddings, needed.pairs.request, self.graph.products.trace)
        ends = model.decoder.ends(rows)
        parts = [
            self._decode(model, ends, needed, slice(start, start + _BLOCK_EDGES))
            for start in range(0, max(len(needed), 1), _BLOCK_EDGES)
        ]
        return torch.cat(parts)

    def _decode(
        self,
        model: EdgeModel,
        ends: tuple[RequestedRows, RequestedRows],
        needed: EdgeTargets,
        chunk: slice = slice(None),
    ) -> Tensor:
        pairs, device = needed.pairs, self.graph.device
        features = needed.features[chunk]
        logits: Tensor = model.decoder(
            ends,
            (pairs.sources[chunk], pairs.targets[chunk]),
            device.tensor(pairs.relations[chunk]),
            device.tensor(features) if features.shape[1] else None,
        )
        return logits

    def _labels(self, needed: EdgeTargets) -> Tensor:
        # Classes stay int64; other labels take the dtype of the outputs.
        labels = self.graph.device.tensor(needed.labels)
        if needed.labels.ndim == 1:
            return labels
        return labels.to(getattr(torch, self.config.train.dtype))

    @collective
    @override
    def write(self, path: Path, saved: SavedModel, model: EdgeModel) -> None:
        names, ids = self.facts.targets or self.facts.class_names, RowIds.of_pairs(self.relations)
        file = H5Predictions(path, self.saying, names, saved.origin(), ids=ids)
        write_rows(self.grid, self.of_all(model, saved.rule).columns, file.write)

    @collective
    def of_all(self, model: EdgeModel, rule: LabelRule) -> NodeRows:
        """Return a model's predictions for all edges, labelled or not, in order.

        Ids are (E, 3): original ids of sources and targets, and numbers of relations.
        """
        edges, ends, needed = self.read_all()
        ids = np.column_stack([ends, edges.edges.relations])
        predicted = self._said(model, needed, ids, rule)
        return NodeRows(*in_order_of_ends(self.grid, *predicted.columns))

    @collective
    def read_all(self) -> tuple[LabelledEdges, GlobalIndices, EdgeTargets]:
        """Return this rank's edges without labels, their ends' original ids, and their targets."""
        labels = self._predicted.labels
        with self._stored() as stored:
            edges, ends = read_labelled(stored, labels, self.pair_features, with_labels=False)
        return edges, ends, edges.with_request(self.grid.layer, self.graph.row_map)

    @collective
    def of_pairs(self, model: EdgeModel, pairs: RequestedPairs, rule: LabelRule) -> NodeRows:
        """Return a model's predictions for pairs, with given features or those of stored edges.

        Rows are distributed over the ranks in the order of the request; ids are those of the pairs
        (m, 3). Raises `CollectiveInputError` if a pair has no features, or a node is unknown.
        """
        row_map, ids = self.graph.row_map, pairs.ids
        sources, targets = (find_rows(self.graph, ids[:, end]) for end in (0, 1))
        (local,) = np.nonzero(row_map.is_local(targets))
        zeros = np.zeros(len(local), np.int64)
        edges = LinkEdges(sources[local], targets[local], ids[local, 2], zeros, zeros)
        if pairs.features is not None or not self.pair_features:
            raw = np.zeros((len(ids), 0)) if pairs.features is None else pairs.features
            features = self._as_read(raw[local], edges)
        else:
            with self._stored() as stored:
                features, is_stored = stored_features(
                    stored, self.relations, self.pair_features, edges
                )
            self._check_stored(ids, local[~is_stored])
        needed = LabelledEdges(edges, zeros - 1, features).with_request(self.grid.layer, row_map)
        rows = self._said(model, needed, ids[local], rule)
        return NodeRows(*in_order(self.grid.layer, local, *rows.columns))

    @collective
    def _as_read(self, raw: FloatArray, edges: LinkEdges) -> FloatArray:
        """Return user-given features (n, F) of edges, scaled like those of the store."""
        features = np.empty(raw.shape, self.config.train.dtype)
        with self._stored() as stored:
            for number, name in enumerate(self.relations):
                in_relation = edges.relations == number
                features[in_relation] = scaled_edges(stored, name, raw[in_relation])
        return features

    @collective
    def _check_stored(self, ids: GlobalIndices, missing: GlobalIndices) -> None:
        """Raise `CollectiveInputError` if any rank has indices of `missing` pairs."""
        numbers = np.sort(np.concatenate(self.grid.layer.allgather(missing)))
        edges = named([f"{source} -> {target}" for source, target, _ in ids[numbers].tolist()])
        fault = InputError(
            f"--pairs: {self.facts.name} has no edge {edges} to take features from; add "
            f"{number(self.pair_features, 'column')} of features, or leave these pairs out"
        )
        raise_on_all(self.grid.world, fault if edges else None)

    @torch.no_grad()
    @collective
    def _said(
        self, model: EdgeModel, needed: EdgeTargets, ids: GlobalIndices, rule: LabelRule
    ) -> NodeRows:
        embeddings = model.embed(self.graph.view, self.graph.features)
        return rows_of(ids, self.predict(model, embeddings, needed), self.facts, rule)

    @collective
    def _stored(self) -> AbstractContextManager[StoredRows]:
        context = Context(self.grid, self.config, scales=self.graph.scales)
        return StoredRows.opened(context, (), self.graph.row_map)

    @classmethod
    @collective
    def for_predictions(cls, grid: ProcessGrid, saved: SavedModel) -> "EdgeObjective":
        """Return the objective on the graph of a saved model, whose edges need no labels.

        Raises `CollectiveInputError` if the graph does not fit the model.
        """
        graph, config = load_saved_graph(grid, saved), saved.config
        facts, options = graph.facts, config.edges
        with agree(grid.world), GraphStore.open(config.graph.store) as store:
            # The order of the model's weights, which that of another store need not be.
            names = relations_to_predict(store, options.relations or saved.trained.predicted)
            check_relations("edges.relations", names, store)
            width, symmetric = num_features(store, names, read=options.features), store.undirected
            of_model = saved.checkpoint.best
            read = of_model["decoder.first.weight"].shape[1]
            read -= 2 * (options.width or config.model.hidden)
            require_equal(store.path, "features of an edge to predict", width, read)
            count = len(of_model["decoder.relations"]) + 1
            require_equal(store.path, "number of predicted relations", len(names), count)
        scale, kind = None, "several" if facts.multi_label else "classes"
        if facts.targets:
            scale = TargetScale(facts.targets, facts.target_means, facts.target_scales)
            kind = "numbers"
        labels = EdgeLabels(names, facts.targets or facts.class_names, kind)
        no_edges = LabelledEdges.none(config.train.dtype)
        needed = no_edges.needing(graph.row_map.num_rows)
        predicted = PredictedEdges(labels, scale, no_edges, needed, needed, width, symmetric)
        return cls(graph, config, predicted)
