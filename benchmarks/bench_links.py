"""Link prediction compared with untrained scores, factorisation, and another library.

    python -m benchmarks.bench_links --store debian.h5 --relation depends --json

One rank. A share of a relation's edges is held out and ranked, among all nodes (raw, and filtered:
without the other known targets of the source) or among sampled negatives. Encoders of one width
are trained alike, with Adam on the cross-entropy of an edge among uniform negatives; those of the
other library start with our weights. `factors` are node vectors without a convolution, trained on
every edge of the relation that is not tested. Epochs of all trained methods take turns, so that
load affects them alike. One JSON object per method and seed.
"""

import argparse
import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

import hpcgnn
from benchmarks.columns import Columns, print_columns, ratio, seconds, text
from benchmarks.harness import surroundings
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json
from hpcgnn.graph.context import Context
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.nn import LINK_LOSSES, SCORERS, LinkModel, Scorer
from hpcgnn.sparse import read_adjacency
from hpcgnn.storage import GraphStore
from hpcgnn.train.links.edges import deal_links
from hpcgnn.train.links.objective import LinkObjective
from hpcgnn.train.links.ranking import (
    LinkScores,
    Queries,
    ScoreBlock,
    area_under_curve,
    rank_among_all,
    rank_metrics,
    score_all,
)
from hpcgnn.train.tasks import Step

COLUMNS: Columns = {
    "method": ("method", text),
    "seed": ("seed", text),
    "epoch": ("epoch_s", seconds),
    "MRR": ("mrr", ratio),
    "Hits@10": ("hits10", ratio),
    "raw MRR": ("raw_mrr", ratio),
    "raw Hits@10": ("raw_hits10", ratio),
    "AUC": ("auc", ratio),
}
RATE, WRONG = 0.01, 4
FACTOR_RATE = 0.1
"""Free node vectors, which share no weights, need larger steps."""
Evaluate = Callable[[nn.Module, Scorer], Mapping[str, float]]


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    results = []
    for seed in options.seeds:
        for line in measure(options, seed):
            results.append(line)
            if options.json:
                print_json(line | surroundings("torch", "torch-geometric"))
    if not options.json:
        print_columns(COLUMNS, results)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.bench_links", description=__doc__)
    add = parser.add_argument
    add("--store", required=True, metavar="G.h5")
    add("--relation", default="depends", metavar="R", help="relation whose edges are predicted")
    add("--relations", default="depends,pre-depends,recommends,suggests", metavar="R,...")
    add("--epochs", type=int, default=25, metavar="N")
    add("--width", type=int, default=32, metavar="H")
    add("--threads", type=int, default=1, metavar="N")
    add("--seeds", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2, 3])
    add("--ranking", choices=("all", "drawn"), default="all")
    add("--methods", default="sage,rgcn,factors,pyg-sage,pyg-rgcn,counts", metavar="M,...")
    add("--json", action="store_true", help="print one JSON object per method and seed")
    return parser.parse_args()


def measure(options: argparse.Namespace, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a result for each method."""
    methods, trained = options.methods.split(","), {}
    encoders = {"sage": "dot", "rgcn": "distmult"}
    graphs = {name: open_links(options, name, scorer) for name, scorer in encoders.items()}
    tasks = {name: link_task(graph) for name, graph in graphs.items()}
    any_task = tasks["rgcn"]
    observed = observed_edges(graphs["rgcn"])
    for name, task in tasks.items():
        if name in methods:
            trained[f"{name} + {encoders[name]}"] = Ours(task, seed, graphs[name].steps)
        if f"pyg-{name}" in methods:
            torch.manual_seed(seed)
            trained[f"PyG {name} + {encoders[name]}"] = Peer(task, observed, name, seed)
    if "factors" in methods:
        torch.manual_seed(seed)
        trained["factors + dot"] = Factors(any_task, options.width)
    spent: dict[str, list[float]] = {name: [] for name in trained}
    for epoch in range(options.epochs):
        for name, method in trained.items():
            began = time.perf_counter()
            method.epoch(seed, epoch)
            spent[name].append(time.perf_counter() - began)
    for name, method in trained.items():
        found = {"epoch_s": float(np.median(spent[name])), **method.evaluate()}
        yield {"method": name, "seed": seed, "epochs": options.epochs, **found}
    if "counts" in methods and seed == options.seeds[0]:
        for name, scores in counts(any_task, observed).items():
            yield {"method": name, "seed": None, "epochs": 0, **judge(any_task, scores)}


def open_links(options: argparse.Namespace, model: str, scorer: str) -> hpcgnn.Graph:
    """Return the graph on one rank."""
    return hpcgnn.open_graph(
        None,
        options.store,
        graph={"relations": options.relations.split(",")},
        model={"name": model, "hidden": options.width, "dropout": 0.2},
        links={
            "relations": [options.relation],
            "scorer": scorer,
            "loss": "cross_entropy",
            "num_negatives": WRONG,
            "ranking": options.ranking,
        },
        train={"task": "links"},
        run={"threads": options.threads},
    )


def link_task(graph: hpcgnn.Graph) -> LinkObjective:
    assert graph.task is not None
    assert isinstance(graph.task.objective, LinkObjective)
    return graph.task.objective


Steps = Callable[[int, int], Iterable[Step]]
"""Returns the steps of an epoch of a seed."""


class Trained(ABC):
    """A module with a scorer, and its optimiser."""

    def __init__(
        self, task: LinkObjective, module: nn.Module, scorer: Scorer, rate: float = RATE
    ) -> None:
        self.task, self.module, self.scorer = task, module, scorer
        self._adam = torch.optim.Adam(module.parameters(), lr=rate)

    def descend(self, loss: Tensor) -> None:
        """Take an optimiser step on a loss."""
        self._adam.zero_grad()
        loss.backward()
        self._adam.step()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the tested edges."""
        self.module.eval()
        found = self.scores()
        self.module.train()
        return judge(self.task, found)

    @abstractmethod
    def epoch(self, seed: int, epoch: int) -> None:
        """Train for an epoch."""

    @abstractmethod
    def scores(self) -> "Found":
        """Return the scores of the tested edges."""


class Ours(Trained):
    """A model of hpcgnn, trained by its own steps."""

    def __init__(self, task: LinkObjective, seed: int, steps: Steps) -> None:
        model = task.make_model(seed)
        super().__init__(task, model, model.scorer)
        self._steps = steps

    def epoch(self, seed: int, epoch: int) -> None:
        """Train for an epoch."""
        for loss_of in self._steps(seed, epoch):
            self.descend(loss_of(self.module))

    def scores(self) -> "Found":
        """Return the scores of the tested edges."""
        assert isinstance(self.module, LinkModel)
        rows = self.module.embed(self.task.graph.view, self.task.graph.features)
        return embedding_scores(self.task, rows, self.scorer)


def edge_loss(
    score: Callable[[Tensor, Tensor], Tensor], edges_2E: Tensor, num_nodes: int
) -> Tensor:
    """Return the loss of edges of one relation, each with uniform negatives."""
    sources, targets = edges_2E
    wrong = torch.randint(num_nodes, (len(sources), WRONG))
    found = score(sources, targets), score(sources[:, None], wrong)
    return LINK_LOSSES["cross_entropy"](*found, 0.0) / len(sources)


class Factors(Trained):
    """Node vectors as sources and as targets: a factorisation of the adjacency matrix."""

    def __init__(self, task: LinkObjective, width: int) -> None:
        num_nodes = task.facts.num_nodes
        module = nn.ParameterList(torch.randn(num_nodes, width) / 10 for _ in range(2))
        super().__init__(task, module, SCORERS["dot"](width, 1), FACTOR_RATE)
        every, tested = task.links.every, ("valid", "test")
        gone = np.concatenate([task.links.shares[name].words for name in tested])
        kept = ~np.isin(every.words, gone)
        self._edges = torch.from_numpy(np.stack([every.sources[kept], every.targets[kept]]))

    def epoch(self, seed: int, epoch: int) -> None:
        """Train for an epoch."""
        rows, others = self.module
        self.descend(edge_loss(lambda a, b: (rows[a] * others[b]).sum(-1), self._edges, len(rows)))

    def scores(self) -> "Found":
        """Return the scores of the tested edges."""
        return two_sided_scores(self.task, *self.module)


class Peer(Trained):
    """The same model in PyTorch Geometric, on the same edges."""

    def __init__(
        self, task: LinkObjective, observed: Mapping[str, Tensor], name: str, seed: int
    ) -> None:
        ours = task.make_model(seed)
        make = PygSAGE if name == "sage" else PygRGCN
        encoder = make(ours.encoder.layers, list(observed.values()))
        super().__init__(task, nn.ModuleList([encoder, ours.scorer]), ours.scorer)
        trained = task.links.shares["train"]
        self._edges = torch.from_numpy(np.stack([trained.sources, trained.targets]))
        self._encoder = encoder

    def epoch(self, seed: int, epoch: int) -> None:
        """Train for an epoch."""
        rows = self._encoder(self.task.graph.features)

        def score(sources: Tensor, targets: Tensor) -> Tensor:
            return self.scorer(rows[sources], rows[targets], torch.zeros_like(sources))

        self.descend(edge_loss(score, self._edges, len(rows)))

    def scores(self) -> "Found":
        """Return the scores of the tested edges."""
        return embedding_scores(self.task, self._encoder(self.task.graph.features), self.scorer)


class PygSAGE(nn.Module):
    """Two layers with means over both directions."""

    def __init__(self, ours: nn.ModuleList, edges: list[Tensor]) -> None:
        super().__init__()
        make = importlib.import_module("torch_geometric.nn").SAGEConv
        union = torch.unique(torch.cat(edges, dim=1), dim=1)
        self._both, self.layers = (union, union.flip(0)), nn.ModuleList()
        for layer in ours:
            width, features = layer.own.weight.shape
            inward = make(features, width)
            outward = make(features, width, root_weight=False, bias=False)
            with torch.no_grad():
                inward.lin_r.weight.copy_(layer.own.weight)
                inward.lin_l.bias.copy_(layer.own.bias)
                for conv, weight in zip((inward, outward), layer.neighbours, strict=True):
                    conv.lin_l.weight.copy_(weight)
            self.layers.append(nn.ModuleList([inward, outward]))

    def forward(self, x: Tensor) -> Tensor:
        """Return the embeddings (N, H) of features (N, F)."""
        for place, layer in enumerate(self.layers):
            if place:
                x = nn.functional.dropout(x.relu(), 0.2, self.training)
            x = sum(conv(x, edges) for conv, edges in zip(layer, self._both, strict=True))
        return x


class PygRGCN(nn.Module):
    """Two layers with a matrix for each relation and each reverse."""

    def __init__(self, ours: nn.ModuleList, edges: list[Tensor]) -> None:
        super().__init__()
        make = importlib.import_module("torch_geometric.nn").RGCNConv
        both = [*edges, *(each.flip(0) for each in edges)]
        self._edges, self.layers = torch.cat(both, dim=1), nn.ModuleList()
        lengths = torch.tensor([each.shape[1] for each in both])
        self._kinds = torch.arange(len(both)).repeat_interleave(lengths)
        for layer in ours:
            conv = make(layer.own.in_features, layer.own.out_features, len(both))
            with torch.no_grad():
                conv.weight.copy_(layer.matrices)
                conv.root.copy_(layer.own.weight.T)
                conv.bias.copy_(layer.own.bias)
            self.layers.append(conv)

    def forward(self, x: Tensor) -> Tensor:
        """Return the embeddings (N, H) of features (N, F)."""
        for place, layer in enumerate(self.layers):
            if place:
                x = nn.functional.dropout(x.relu(), 0.2, self.training)
            x = layer(x, self._edges, self._kinds)
        return x


def observed_edges(graph: hpcgnn.Graph) -> dict[str, Tensor]:
    """Return the edges (2, E) used for aggregation, by relation."""
    grid, row_map, config = graph.grid, graph.local.row_map, graph.config
    with GraphStore.open(config.graph.store) as store:
        _, hidden = deal_links(StoredRows(Context(grid, config), store, row_map))
        found = {}
        for name in config.graph.relations:
            rows = hidden.drop(read_adjacency(grid, store, row_map, [name], undirected=False))
            targets = np.repeat(np.arange(row_map.num_local), np.diff(rows.indptr))
            found[name] = torch.from_numpy(np.stack([rows.columns.astype(np.int64), targets]))
    return found


class Found:
    """Scores of tested edges, of their negatives, and of their sources with all nodes."""

    def __init__(self, edges: np.ndarray, wrong: np.ndarray, blocks: Iterator[ScoreBlock]) -> None:
        self.edges, self.wrong, self.blocks = edges, wrong, blocks


def tested_pairs(task: LinkObjective) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sources, targets (E,) and negatives (E, K) of the tested edges."""
    needed = task.pairs.tested["test"].pairs
    return tuple(needed.rows[each] for each in (needed.sources, needed.targets, needed.wrong))


def embedding_scores(task: LinkObjective, rows: Tensor, scorer: Scorer) -> Found:
    sources, targets, wrong = tested_pairs(task)
    relations = torch.zeros(len(sources), dtype=torch.int64)
    edges = scorer(rows[sources], rows[targets], relations).numpy()
    others = np.concatenate(
        [
            scorer(rows[s][:, None], rows[w], torch.zeros(len(s), 1, dtype=torch.int64)).numpy()
            for s, w in zip(np.array_split(sources, 64), np.array_split(wrong, 64), strict=True)
        ]
    )
    queries = Queries(sources, relations.numpy())
    return Found(edges, others, score_all(task.grid, task.graph.row_map, rows, scorer, queries))


def two_sided_scores(task: LinkObjective, sources_NH: Tensor, targets_NH: Tensor) -> Found:
    def score(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return (sources_NH[sources] * targets_NH[targets]).sum(-1).numpy()

    def against(sources: np.ndarray) -> np.ndarray:
        return (sources_NH[sources] @ targets_NH.T).numpy()

    return found_by(task, score, against)


def found_by(
    task: LinkObjective,
    score: Callable[[np.ndarray, np.ndarray], np.ndarray],
    against: Callable[[np.ndarray], np.ndarray],
) -> Found:
    sources, targets, wrong = tested_pairs(task)
    step = 256

    def blocks() -> Iterator[ScoreBlock]:
        for start in range(0, len(sources), step):
            some = slice(start, min(start + step, len(sources)))
            yield ScoreBlock(some, 0, against(sources[some]))

    others = [
        score(np.repeat(s, w.shape[1]), w.reshape(-1)).reshape(w.shape)
        for s, w in zip(np.array_split(sources, 64), np.array_split(wrong, 64), strict=True)
    ]
    return Found(score(sources, targets), np.concatenate(others), blocks())


def counts(task: LinkObjective, observed: Mapping[str, Tensor]) -> dict[str, Found]:
    """Return the scores of common neighbours, Adamic-Adar, and of a target's popularity.

    They use the edges that a model aggregates over, and those that it is trained on.
    """
    num_nodes, trained = task.facts.num_nodes, task.links.shares["train"]
    ends = [each.numpy() for each in observed.values()]
    ends.append(np.stack([trained.sources, trained.targets]))
    sources, targets = np.concatenate(ends, axis=1)
    directed = sp.csr_matrix((np.ones(len(sources)), (sources, targets)), (num_nodes, num_nodes))
    both = directed + directed.T
    both.data[:] = 1
    degrees = np.asarray(both.sum(axis=1)).reshape(-1)
    weights = sp.diags(1 / np.log(np.maximum(degrees, 2)))
    dependents = np.asarray(directed.sum(axis=0)).reshape(-1)

    def common(weighted: sp.spmatrix) -> Found:
        def score(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return np.asarray(weighted[a].multiply(both[b]).sum(axis=1)).reshape(-1)

        return found_by(task, score, lambda a: (weighted[a] @ both).toarray())

    return {
        "common neighbours": common(both),
        "Adamic-Adar": common((both @ weights).tocsr()),
        "edges of the target": found_by(
            task,
            lambda a, b: dependents[b] + 0 * a,
            lambda a: np.tile(dependents, (len(a), 1)),
        ),
    }


def judge(task: LinkObjective, found: Found) -> dict[str, float]:
    """Return the metrics of scores."""
    grid, tested = task.grid, task.pairs.tested["test"]
    scores = LinkScores.of(grid, found.edges.astype(float), found.wrong.astype(float), "float32")
    values = {"auc": area_under_curve(grid, scores)}
    known = tested.known
    if known is None:
        return values | rank_metrics(grid, scores.ranks())
    raw_ranks, filtered = rank_among_all(found.blocks, tested.edges, scores, known, None)
    raw = rank_metrics(grid, raw_ranks)
    return values | rank_metrics(grid, filtered) | {f"raw_{k}": v for k, v in raw.items()}


if __name__ == "__main__":
    run_command("benchmarks.bench_links", main)
