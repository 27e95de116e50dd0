"""What all training of node models on one graph has in common: model, evaluation, and reports."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from hpcgnn.config.config import Config
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.inputs import far_columns
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import NodeModel, TypedRows
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore
from hpcgnn.support import NOTHING, Reasons, Trait
from hpcgnn.train.evaluation import Evaluator
from hpcgnn.train.full.predictions import save_predictions
from hpcgnn.train.metrics import Evaluation
from hpcgnn.train.run.directory import RunDirectory
from hpcgnn.train.task import Step, StoreKind

_LOOKED_AT = 4096


class GraphTask(ABC):
    """A `Task` on one graph; subclasses say what a step is, and what a model is judged by."""

    store: ClassVar[StoreKind] = GraphStore
    needs: ClassVar[frozenset[Trait]] = frozenset()
    lacks: ClassVar[Reasons] = NOTHING

    @collective
    def __init__(self, graph: LocalGraph, config: Config) -> None:
        self.graph, self.grid, self._config = graph, graph.grid, config

    @classmethod
    @abstractmethod
    @collective
    def load(cls, context: Context) -> "GraphTask":
        """Read this rank's share and prepare to train on it."""

    @abstractmethod
    def steps(self, seed: int, epoch: int) -> Iterable[Step]:
        """Yield the steps of an epoch."""

    @property
    def facts(self) -> GraphFacts:
        """Sizes of the whole graph."""
        return self.graph.facts

    def make_model(self, seed: int) -> NodeModel:
        """Return a new model, equal on all ranks."""
        return self.graph.make_model(self._config, seed)

    @abstractmethod
    @collective
    def evaluate(self, model: Callable[..., Tensor]) -> Evaluation:
        """Return the metrics of `model` on all splits of the whole graph."""

    @collective
    def evaluate_kept(self, model: Callable[..., Tensor]) -> dict[str, Any]:
        """Return what an ended seed's line says beside its metrics."""
        return {}

    @abstractmethod
    @collective
    def save_predictions(self, directory: RunDirectory, seed: int) -> None:
        """Write what the model that `seed` kept says of all nodes, in original order."""

    def tensors(self) -> Mapping[str, Tensor]:
        """Return what the features were scaled by, where that comes from the graph."""
        scales = self.graph.scales.items()
        return {key: value for name, each in scales for key, value in each.tensors(name).items()}

    def describe(self, threads: int) -> str:
        """Return the line that says what is about to run."""
        config = self._config
        facts, grid = self.facts, self.grid
        edges = "directed edges" if facts.directed else "edges"
        wanted = f"{facts.num_classes} {'targets' if facts.targets else 'classes'}"
        return (
            f"{config.model.name} on {facts.name}: {_sizes(facts)}, "
            f"{facts.num_edges} {edges}, {_features(facts)}, {wanted}; "
            f"{grid.size} ranks with {threads} threads, {facts.num_parts} parts, "
            f"{config.exchange.method} exchange, {config.exchange.schedule} schedule, "
            f"replication {grid.replication}, {config.train.dtype}{_rows_format(config)}"
        )

    def remarks(self) -> list[str]:
        """Return the columns of features that drown others, by the first nodes of this rank."""
        if self._config.graph.normalize_features != "none":
            return []
        features = self.graph.features
        tables = features.parts if isinstance(features, TypedRows) else (features,)
        said = []
        for name, table in zip(self.facts.type_names or ("",), tables, strict=True):
            values = table[:_LOOKED_AT].float().cpu().numpy()
            if len(columns := far_columns(values)):
                size = float(np.abs(values[:, columns[0]]).mean())
                of_type = f" of {name}" if name else ""
                said.append(
                    f"features{of_type}: column {columns[0] + 1} is about {size:.4g}, "
                    f"{len(columns)} of {values.shape[1]} columns outweigh others or what they "
                    "differ by; "
                    "graph.normalize_features=standard brings all to one scale"
                )
        return said

    def rank_details(self) -> dict[str, Any]:
        """Return sizes of this rank's share."""
        buffers = self.grid.buffers
        sizes = {"ghost_bytes_max": buffers.ghosts.peak, "buffer_bytes": buffers.num_bytes}
        return {**sizes, **self.graph.details}

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the keys of the summary that tell of the graph and how its rows moved."""
        facts, exchange = self.facts, self._config.exchange
        sent, received, pairs = (
            [rank[f"exchange_{key}_rows"] for rank in ranks] for key in ("send", "recv", "max_pair")
        )
        return {
            "parts": facts.num_parts,
            "exchange": exchange.method,
            "replication": exchange.replication,
            "schedule": exchange.schedule,
            "prefetch": exchange.prefetch,
            "graph": {
                "name": facts.name,
                "num_nodes": facts.num_nodes,
                "num_graphs": facts.num_graphs,
                "num_edges": facts.num_edges,
                "directed": facts.directed,
                "num_features": facts.num_features,
                "node_types": _node_types(facts),
                "num_classes": facts.num_classes,
                "fingerprint": facts.fingerprint,
            },
            "exchange_rows": {
                "total": sum(sent),
                "max_send": max(sent, default=0),
                "max_recv": max(received, default=0),
                "max_pair": max(pairs, default=0),
            },
            "ghost_bytes_max": max((rank["ghost_bytes_max"] for rank in ranks), default=0),
        }


NODES: Reasons = MappingProxyType(
    {
        Trait.PAIRS: "it predicts no links",
        Trait.PROGRAMS: "it reads one graph, or many as one",
    }
)
"""What tasks lack whose predictions are of nodes, or of graphs."""


class ClassTask(GraphTask):
    """Classes of nodes: a `GraphTask` on a graph with labels and split.

    Raises
    ------
    CollectiveInputError
        As `Evaluator`.
    """

    @collective
    def __init__(self, graph: LocalGraph, config: Config) -> None:
        super().__init__(graph, config)
        self.evaluator = Evaluator(graph, config)

    @collective
    def evaluate(self, model: Callable[..., Tensor]) -> Evaluation:
        """Return the metrics of `model` on all splits of the whole graph."""
        return self.evaluator.evaluate(model)

    @collective
    def evaluate_kept(self, model: Callable[..., Tensor]) -> dict[str, Any]:
        """Return the metrics of the corrected and smoothed predictions, where that is on."""
        return self.evaluator.evaluate_kept(model)

    @collective
    def save_predictions(self, directory: RunDirectory, seed: int) -> None:
        """Write probabilities of all nodes in original order, by the model that `seed` kept."""
        save_predictions(self.graph, directory, seed)

    def rank_details(self) -> dict[str, Any]:
        """Return sizes of this rank's share, and of the products that it keeps."""
        return {**super().rank_details(), "kept_bytes": self.evaluator.kept.num_bytes}


def _sizes(facts: GraphFacts) -> str:
    graphs = f" in {facts.num_graphs} graphs" if facts.num_graphs else ""
    return f"{facts.num_nodes} nodes{graphs}"


def _rows_format(config: Config) -> str:
    return "" if config.train.precision == "float32" else f" with {config.train.precision} rows"


def _features(facts: GraphFacts) -> str:
    if not facts.type_names:
        return f"{facts.num_features} features"
    widths = zip(facts.type_names, facts.type_features, strict=True)
    return "features of " + ", ".join(f"{name} {width}" for name, width in widths)


def _node_types(facts: GraphFacts) -> list[dict[str, Any]]:
    columns = facts.type_names, facts.type_nodes, facts.type_features
    keys = ("name", "num_nodes", "num_features")
    return [dict(zip(keys, each, strict=True)) for each in zip(*columns, strict=True)]
