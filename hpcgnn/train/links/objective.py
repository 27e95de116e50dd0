"""The objective of link prediction: score edges that are hidden from the graph."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.autograd import RequestedRows
from hpcgnn.comm import ProcessGrid, raise_on_all
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.labels import Reading
from hpcgnn.graph.load import FEATURES
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.nn import LINK_LOSSES, LinkModel, NodeModel, make_link_model
from hpcgnn.sparse import HiddenEdges
from hpcgnn.spmd import collective
from hpcgnn.support import Reasons, Trait
from hpcgnn.train.cached_products import WholeView
from hpcgnn.train.early_stopping import patience_fault
from hpcgnn.train.evaluation import Evaluation
from hpcgnn.train.full.predictions import NodeRows
from hpcgnn.train.links.edges import SHARES, LinkEdges, Links, deal_links
from hpcgnn.train.links.pairs import (
    BatchedLinks,
    DrawnPairs,
    EnclosedLinks,
    PairExamples,
    Pairs,
    PairSource,
    Tested,
)
from hpcgnn.train.links.ranking import (
    BLOCK_BYTES,
    LinkScores,
    Queries,
    area_under_curve,
    rank_among_all,
    rank_metrics,
    score_all,
)
from hpcgnn.train.links.requested_pairs import RequestedPairs, find_rows, share_of
from hpcgnn.train.multi_label import LabelRule
from hpcgnn.train.objectives.objective import SingleObjective
from hpcgnn.train.objectives.report import GraphReport
from hpcgnn.train.sources.source import StepData


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkFacts(GraphFacts):
    """Facts of a graph whose edges are predicted; `num_classes` is the width of embeddings."""

    @property
    @override
    def outputs(self) -> str:
        return f"embeddings of width {self.num_classes}"

    @property
    @override
    def metric(self) -> str:
        return "mrr"


class LinkObjective(SingleObjective):
    """Learns to tell edges that are hidden from the graph from negatives.

    `graph` is this rank's share, without the edges in the shares of `links`; `relations` are the
    names of the predicted relations.
    """

    lacks: ClassVar[Reasons] = {
        Trait.SOME_EDGES: "it predicts the edges themselves",
        Trait.ACTIVE_SETS: "its pairs may have any node",
        Trait.CLASSES: "it predicts no classes",
        Trait.NUMBERS: "it predicts edges",
        Trait.LABELLED_NODES: "it reads no labels",
        Trait.SEVERAL_LABELS: "it reads no labels",
        Trait.NODE_SPLITS: "its splits are of edges",
        Trait.PLANNED_FROM_DEGREES: "its pairs can only be counted in the graph",
        Trait.PROGRAMS: "it reads one graph",
        Trait.FIELDS: "it predicts edges",
        Trait.PARTS: "edges are drawn from the whole graph, which every host holds",
        Trait.PROBABILITIES: "links have scores and embeddings",
    }
    reads: ClassVar[Reading] = FEATURES
    saves: ClassVar[str] = "embeddings"
    saying: ClassVar[str] = "score"
    pair_features = 0

    @collective
    def __init__(self, graph: LocalGraph, config: Config, links: Links, pairs: PairSource) -> None:
        self.graph, self.grid, self.config = graph, graph.grid, config
        self.links, self.pairs, self._options = links, pairs, config.links
        self.relations = links.names
        self.num_links = _count(self.grid, links)
        self.examples = PairExamples(
            graph.row_map.num_local,
            self.num_links["train"],
            pairs.trained,
            lambda sampled: BatchedLinks(graph.grid, sampled, links, config.links),
            lambda sampled: EnclosedLinks(graph.grid, sampled, links, config.links),
        )
        self.whole = WholeView(graph)
        ends = 2 if self._options.ends == "both" else 1
        edges = {share: count // ends for share, count in self.num_links.items()}
        self.about = GraphReport(graph, config, counted={"links": edges})

    @classmethod
    @collective
    @override
    def draw(cls, context: Context) -> tuple[Links, HiddenEdges | None]:
        with StoredRows.opened(context, cls.reads.fields) as stored:
            links, hidden = deal_links(stored)
        counts = _count(context.grid, links)
        raise_on_all(context.grid.world, _fault(context.config, counts))
        return links, hidden

    @classmethod
    @collective
    @override
    def on(cls, graph: LocalGraph, config: Config, drawn: Links) -> Self:
        ids = graph.products.node_ids
        pairs = DrawnPairs(graph.grid, graph.row_map, ids, drawn, config.links)
        of_task = dataclasses.replace(graph, facts=link_facts(graph.facts, config, drawn.names))
        return cls(of_task, config, drawn, pairs)

    @override
    def make_model(self, seed: int) -> LinkModel:
        encoder = self.graph.make_model(self.config, seed)
        return self.make_part(encoder, self.facts.num_classes, seed)

    @override
    def make_part(self, encoder: NodeModel, width: int, seed: int) -> LinkModel:
        scorer, count = self._options.scorer, len(self.links.names)
        return make_link_model(encoder, scorer, width=width, num_relations=count, seed=seed)

    @collective
    @override
    def loss_of(self, model: LinkModel, outputs: Tensor, step: StepData) -> Tensor:
        assert step.size is not None
        rows = RequestedRows.of(outputs, step.targets.request, self.graph.products.trace)
        scores = self._scores(model, rows, step.targets)
        return LINK_LOSSES[self._options.loss](*scores, self._options.margin) / step.size

    @collective
    @override
    def judge(self, model: LinkModel, outputs: Tensor) -> Evaluation:
        # Loss, MRR, Hits@k and AUC of the validation and test edges over all ranks.
        values: dict[str, float] = {}
        for name, tested in self.pairs.tested.items():
            scores = self.score(model, outputs, tested.pairs)
            metrics = self._metrics(model, outputs, tested, scores)
            if metrics:
                metrics["auc"] = area_under_curve(self.grid, scores)
                metrics["loss"] = self._loss(scores)
            values |= {f"{name}_{metric}": value for metric, value in metrics.items()}
        return Evaluation(values, self.facts.metric)

    def _scores(
        self, model: LinkModel, rows: RequestedRows, pairs: Pairs, chunk: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Return scores (e,) of a chunk of edges, and (e, K) of their negatives, from `rows`."""
        ends = np.concatenate([pairs.targets[chunk, None], pairs.wrong[chunk]], axis=1)
        relations = self.graph.device.tensor(pairs.relations[chunk])
        scores = model.scorer.of_requested(rows, pairs.sources[chunk], ends, relations)
        return scores[:, 0], scores[:, 1:]

    @collective
    def _metrics(
        self, model: LinkModel, embeddings: Tensor, tested: Tested, scores: LinkScores
    ) -> dict[str, float]:
        if tested.known is None:
            return rank_metrics(self.grid, scores.ranks())
        edges = tested.edges
        queries, row_map = Queries(edges.sources, edges.relations), self.graph.row_map
        blocks = score_all(self.grid, row_map, embeddings, model.scorer, queries)
        known, types = tested.known, self.links.types
        raw_ranks, filtered_ranks = rank_among_all(blocks, edges, scores, known, types)
        raw = rank_metrics(self.grid, raw_ranks)
        return rank_metrics(self.grid, filtered_ranks) | {f"raw_{k}": v for k, v in raw.items()}

    @collective
    def score(self, model: LinkModel, embeddings: Tensor, pairs: Pairs) -> LinkScores:
        """Return the scores of pairs, computed in blocks that fit into memory."""
        rows = RequestedRows.of(embeddings, pairs.request, self.graph.products.trace)
        num_edges, count = pairs.wrong.shape
        step = max(1, BLOCK_BYTES // max(1, 8 * max(1, count) * embeddings.shape[1]))
        edge_scores, wrong_scores = np.empty(num_edges), np.empty((num_edges, count))
        for start in range(0, num_edges, step):
            chunk = slice(start, start + step)
            scores = self._scores(model, rows, pairs, chunk)
            edge_scores[chunk], wrong_scores[chunk] = (part.cpu().numpy() for part in scores)
        return LinkScores.of(self.grid, edge_scores, wrong_scores, self.config.train.dtype)

    @torch.no_grad()
    @collective
    def of_pairs(self, model: LinkModel, pairs: RequestedPairs, rule: LabelRule) -> NodeRows:
        """Return this rank's share of the pairs, in their order, with scores (m,) float32.

        The ids are those of the pairs (m, 3). Raises `CollectiveInputError` if a node is unknown.
        """
        ids, row_map = pairs.ids, self.graph.row_map
        share = share_of(self.grid, len(pairs))
        sources, targets = (find_rows(self.graph, ids[:, end])[share] for end in (0, 1))
        edges = LinkEdges(sources, targets, ids[share, 2], np.zeros_like(sources))
        no_negatives = np.empty((len(edges), 0), np.int64)
        needed = Pairs.of(edges, no_negatives, row_map.num_rows).with_request(
            self.grid.layer, row_map
        )
        embeddings = model.embed(self.graph.view, self.graph.features)
        scores = self.score(model, embeddings, needed).edges
        return NodeRows(ids[share], scores.astype(np.float32))

    @collective
    def _loss(self, scores: LinkScores) -> float:
        loss = LINK_LOSSES[self._options.loss]
        edges, wrong = torch.from_numpy(scores.edges), torch.from_numpy(scores.wrong)
        loss_here = float(loss(edges, wrong, self._options.margin))
        # Count the scored edges: a rank rehearsed alone may own none of the edges that it scores.
        total, count = self.grid.layer.allreduce(np.array([loss_here, len(edges)]))
        return float(total / count)


def link_facts(facts: GraphFacts, config: Config, names: Sequence[str] = ()) -> LinkFacts:
    """Return the facts with the embeddings' width in place of the number of classes."""
    embedded = facts.with_embeddings(config.links.width or config.model.hidden)
    content: dict[str, Any] = {**vars(embedded)}
    if config.links.ends == "both" and facts.directed:
        names = names[: len(names) // 2]
    weighted = len(names) > 1 and config.links.scorer != "dot"
    content["predicted"] = tuple(names) if weighted else ()
    return LinkFacts(**content | {"directions": "" if facts.directed else "hashed"})


@collective
def _count(grid: ProcessGrid, links: Links) -> dict[str, int]:
    return {name: int(grid.layer.allreduce(len(links.shares[name]))) for name in SHARES}


def _fault(config: Config, counts: dict[str, int]) -> InputError | None:
    if counts["train"] == 0:
        return InputError(
            f"{config.graph.store}: no edge to train on among links.relations, where self loops "
            "do not count; raise links.train, or take another store"
        )
    links, sampling, size = config.links, config.sampling, counts["train"]
    if links.sampled and sampling.sampler == "neighbour":
        size = min(size, sampling.budget)
    whole, rest = divmod(counts["train"], size)
    if links.negatives == "batch" and rest == 1 and not 0 < sampling.steps <= whole:
        return InputError(
            f"sampling.budget = {size}: of {counts['train']} edges the last batch has one, without "
            "another's target; change it, or take other links.negatives"
        )
    if links.negatives == "batch" and links.num_negatives >= size:
        return InputError(
            f"links.num_negatives = {links.num_negatives}: a batch has {size} edges, so that there "
            f"are {size - 1} other targets; give at most that, or other links.negatives"
        )
    lacks = "no edge chooses the model"
    return patience_fault(config.train, counts["valid"], lacks, "raise links.valid")
