"""Link prediction: a step is an epoch, and predicts edges that the graph is read without."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import DropoutKey, fetch_rows
from hpcgnn.comm import agree, raise_on_all
from hpcgnn.config.config import Config
from hpcgnn.config.options import known
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.load import load_graph, share_rows
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import LINK_LOSSES, LinkModel, make_link_model
from hpcgnn.sparse import HiddenEdges
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, H5Predictions, Split
from hpcgnn.train.full.predictions import infer, order_by_id, write_rows
from hpcgnn.train.graph_task import GraphTask
from hpcgnn.train.links.edges import (
    SHARES,
    LinkEdges,
    Numbered,
    Pairs,
    draw_pairs,
    read_links,
    split_links,
)
from hpcgnn.train.links.ranking import Scores, rank_metrics
from hpcgnn.train.metrics import Evaluation
from hpcgnn.train.run.directory import RunDirectory
from hpcgnn.train.run.saved_model import open_saved_model
from hpcgnn.train.task import Step

_BLOCK_BYTES = 64 << 20
# No epoch and no step has it: what tested edges are ranked against stays.
_TESTED = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkFacts(GraphFacts):
    """Sizes of a graph whose edges are predicted; `num_classes` is the width of embeddings."""

    @property
    def metric(self) -> str:
        """The metric that models are chosen by."""
        return "mrr"


class LinkTask(GraphTask):
    """The edges of one rank and the loss over all ranks; see `GraphTask`.

    Parameters
    ----------
    graph
        The share of this rank, without the edges of `links`.
    links
        The edges of this rank of each share.
    num_relations
        The predicted relations.
    """

    @collective
    def __init__(
        self, graph: LocalGraph, config: Config, links: dict[str, LinkEdges], num_relations: int
    ) -> None:
        super().__init__(graph, config)
        self._links, self._num_relations = links, num_relations
        self._options, layer = config.links, self.grid.layer
        counts = [int(layer.allreduce(len(links[name]))) for name in SHARES]
        self.num_links = dict(zip(SHARES, counts, strict=True))
        raise_on_all(self.grid.world, _fault(config, self.num_links))
        rows = np.arange(graph.row_map.start, graph.row_map.stop, dtype=np.int64)
        nodes = Numbered(layer, graph.products.node_ids, rows)
        trained = links["train"]
        self._ends = nodes
        if self._options.negatives == "degree":
            self._ends = Numbered(layer, trained.words, trained.targets)
        seeds = (self._options.ranked, self._options.split_seed, _TESTED)
        self._tested = {name: self._pairs(links[name], nodes, seeds) for name in SHARES[1:]}

    @classmethod
    @collective
    def load(cls, context: Context) -> "LinkTask":
        """Read this rank's share, draw the edges to predict, and take them out of the graph."""
        grid, config = context.grid, context.config
        with agree(grid.world):
            _check_options(config)
            store = GraphStore.open(config.graph.store, grid.world)
        with store:
            row_map = share_rows(grid, config, store, ("features",))
            names = config.links.relations or config.graph.relations or store.relations
            with agree(grid.world):
                for name in names:
                    known(name, store.relations, f"relation in links.relations of {store.path}")
                ids = store.read_original_id(row_map.start, row_map.stop)
            with_split = [name for name in store.relations if store.has_edge_split(name)]
            stored = config.links.stored and not set(names).isdisjoint(with_split)
            # Tested edges of other relations leave the graph too.
            more = [name for name in with_split if stored and name not in names]
            undirected = store.undirected or config.graph.undirected
            edges, pairs = read_links(
                grid, store, row_map, ids, [*names, *more], undirected=undirected, stored=stored
            )
        masks = split_links(edges, pairs, config.links, len(names))
        links = {name: edges.where(mask) for name, mask in masks.items()}
        gone = np.logical_or.reduce(list(masks.values()))
        if edges.parts is not None:
            gone |= (edges.parts == Split.VALID) | (edges.parts == Split.TEST)
        rows, columns = edges.targets[gone], edges.sources[gone]
        hidden = HiddenEdges.between(grid, row_map, rows, columns)
        graph = load_graph(dataclasses.replace(context, hidden=hidden))
        facts = {**vars(graph.facts), "multi_label": False, "class_names": ()}
        facts["num_classes"] = config.links.width or config.model.hidden
        graph = dataclasses.replace(graph, facts=LinkFacts(**facts))
        return cls(graph, config, links, len(names))

    def make_model(self, seed: int) -> LinkModel:
        """Return a new encoder and scorer, equal on all ranks."""
        return make_link_model(
            self.graph.make_model(self._config, seed),
            self._options.scorer,
            width=self.facts.num_classes,
            num_relations=self._num_relations,
            seed=seed,
        )

    def steps(self, seed: int, epoch: int) -> Iterator[Step]:
        """Yield the one step of an epoch."""
        yield partial(self._train_loss, seed, epoch)

    @torch.no_grad()
    @collective
    def evaluate(self, model: Callable[..., Tensor]) -> Evaluation:
        """Return loss, MRR, Hits@k and AUC of the tested edges over all ranks."""
        assert isinstance(model, LinkModel)
        embeddings = model(self.graph.view, self.graph.features, None)
        values: dict[str, float] = {}
        for name, pairs in self._tested.items():
            scores = self._score(model, fetch_rows(embeddings, pairs.request), pairs)
            settled = scores.settled(self.grid, self._config.train.dtype)
            found = rank_metrics(self.grid, settled)
            if found:
                found["loss"] = self._loss(scores) / self.num_links[name]
            values |= {f"{name}_{metric}": value for metric, value in found.items()}
        return Evaluation(values, self.facts.metric)

    @collective
    def save_predictions(self, directory: RunDirectory, seed: int) -> None:
        """Write embeddings of all nodes in original order, by the model that `seed` kept."""
        with agree(self.grid.world):
            saved = open_saved_model(directory.path, seed)
            model = self.make_model(seed)
        saved.load_into(self.grid, model)
        rows = order_by_id(self.grid, infer(self.graph, model, "embeddings"))
        file = H5Predictions(directory.predictions, "embeddings", (), saved.origin())
        write_rows(self.grid, rows, file)

    def describe(self, threads: int) -> str:
        """Return the line that says what is about to run."""
        counts = ", ".join(f"{count} {name}" for name, count in self.num_links.items())
        return f"{super().describe(threads)}; links: {counts}"

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the graph, and how many of its edges were predicted."""
        return {**super().summary(ranks), "links": self.num_links}

    @collective
    def _pairs(self, edges: LinkEdges, ends: Numbered, draw: tuple[int, ...]) -> Pairs:
        return draw_pairs(self.grid, self.graph.row_map, edges, ends, draw)

    @collective
    def _train_loss(self, seed: int, epoch: int, model: LinkModel) -> Tensor:
        draw = (self._options.num_negatives, seed, epoch)
        pairs = self._pairs(self._links["train"], self._ends, draw)
        embeddings = model(self.graph.view, self.graph.features, DropoutKey(seed, epoch))
        rows, put = fetch_rows(embeddings, pairs.request), self.graph.device.tensor
        sources, relations = rows[put(pairs.sources)], put(pairs.relations)
        scores_E = model.scorer(sources, rows[put(pairs.targets)], relations)
        wrong_EK = model.scorer(sources[:, None], rows[put(pairs.wrong)], relations[:, None])
        loss = LINK_LOSSES[self._options.loss](scores_E, wrong_EK, self._options.margin)
        return loss / self.num_links["train"]

    def _score(self, model: LinkModel, rows: Tensor, pairs: Pairs) -> Scores:
        """Return the scores, of blocks of edges whose rows fit into memory."""
        put, num_edges, count = self.graph.device.tensor, len(pairs.sources), pairs.wrong.shape[1]
        step = max(1, _BLOCK_BYTES // max(1, 8 * count * rows.shape[1]))
        edges, wrong = np.empty(num_edges), np.empty((num_edges, count))
        for start in range(0, num_edges, step):
            some = slice(start, start + step)
            sources, relations = rows[put(pairs.sources[some])], put(pairs.relations[some])
            of_edges = model.scorer(sources, rows[put(pairs.targets[some])], relations)
            ends = rows[put(pairs.wrong[some])]
            of_wrong = model.scorer(sources[:, None], ends, relations[:, None])
            edges[some], wrong[some] = of_edges.cpu().numpy(), of_wrong.cpu().numpy()
        return Scores(edges, wrong)

    @collective
    def _loss(self, scores: Scores) -> float:
        loss = LINK_LOSSES[self._options.loss]
        edges, wrong = torch.from_numpy(scores.edges), torch.from_numpy(scores.wrong)
        mine = float(loss(edges, wrong, self._options.margin))
        return float(self.grid.layer.allreduce(mine))


def _check_options(config: Config) -> None:
    for given, key in (
        (config.train.label_augmentation > 0, "train.label_augmentation"),
        (config.train.label_smoothing > 0, "train.label_smoothing"),
        (config.correct_and_smooth.enabled, "correct_and_smooth.enabled"),
    ):
        if given:
            raise InputError(f"{key} does not apply to train.task = 'links'; leave it out")


def _fault(config: Config, counts: dict[str, int]) -> InputError | None:
    if counts["train"] == 0:
        return InputError(
            f"{config.graph.store}: no edge to train on among links.relations; raise links.train"
        )
    if counts["valid"] == 0 and config.train.patience > 0:
        return InputError(
            f"train.patience = {config.train.patience}, but no edge chooses the model; set "
            "train.patience=0 or raise links.valid"
        )
    return None
