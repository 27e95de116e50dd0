"""The interface of an objective: its targets, its loss, and how it evaluates models."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.config.config import Config
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import Facts, GraphFacts
from hpcgnn.graph.labels import Reading
from hpcgnn.graph.load import load_graph
from hpcgnn.graph.local_graph import LocalGraph, LocalRows
from hpcgnn.nn import EmbeddingModel, NodeModel, TrainableModule
from hpcgnn.sparse import HiddenEdges
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, InstanceStore
from hpcgnn.support import Reasons, Trait
from hpcgnn.train.cached_products import WholeView
from hpcgnn.train.evaluation import Evaluation
from hpcgnn.train.full.predictions import save_rows
from hpcgnn.train.run.directory import RunDirectory
from hpcgnn.train.run.saved_model import SavedModel, open_saved_model
from hpcgnn.train.sources.source import Examples, StepData, WholeExamples

StoreKind: TypeAlias = type[GraphStore] | type[InstanceStore]


class About(Protocol):
    """An objective's reports on its data and itself; no method is collective."""

    def describe(self, threads: int) -> str:
        """Return the line that announces the run."""

    def remarks(self) -> list[str]:
        """Return likely mistakes in this rank's inputs, one line each."""
        return []

    def details(self) -> dict[str, Any]:
        """Return this rank's sizes for the summary."""

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return entries of summary.json, from the details of all ranks."""


class Objective(Protocol):
    """Defines the targets of a run, their loss, and how models are evaluated.

    `needs` and `lacks` are the traits that it requires of other features, and does not offer to
    them, see `hpcgnn.support`; `store` is the type of store it reads, `about` reports on it.
    """

    needs: ClassVar[frozenset[Trait]] = frozenset()
    lacks: ClassVar[Reasons]
    store: ClassVar[StoreKind]
    grid: ProcessGrid
    about: About

    @classmethod
    def load(cls, context: Context, *, with_rows: bool = False) -> tuple[Self, LocalRows | None]:
        """Read this rank's share, and its rows if the source needs them; collective."""

    @property
    def facts(self) -> Facts:
        """The facts about the training data."""

    @property
    def metric(self) -> str:
        """The metric that models are chosen by and that a run reports."""
        return self.facts.metric

    def make_model(self, seed: int) -> TrainableModule:
        """Return a new model, equal on all ranks; not collective."""

    def loss(self, model: Any, step: Any, key: DropoutKey) -> Tensor:
        """Return this rank's share of the loss of a step of the source; collective.

        The shares of a layer of the grid add up to the loss.
        """

    def evaluate(self, model: Any) -> Evaluation:
        """Return the metrics of `model` on all splits; collective."""

    def evaluate_kept(self, model: Any) -> dict[str, Any]:
        """Return results of a finished seed's kept model beside its metrics; collective."""
        return {}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return tensors that checkpoints keep for predictions; not collective."""
        return {}

    def state(self) -> Mapping[str, Any]:
        """Return entries of a checkpoint's JSON state beside `facts`; not collective."""
        return {}

    def save_predictions(self, directory: RunDirectory, seed: int) -> None:
        """Write the predictions of the model that `seed` kept; collective."""


class OnGraph(Objective, Protocol):
    """An objective on one graph of nodes.

    `graph` is the share of this rank, without its rows; `reads` tells what to read from the store,
    see `hpcgnn.graph.load.load_graph`.
    """

    store: ClassVar[StoreKind] = GraphStore
    reads: ClassVar[Reading]
    config: Config
    graph: LocalGraph

    @property
    @override
    def facts(self) -> GraphFacts:
        return self.graph.facts

    @override
    def make_model(self, seed: int) -> NodeModel:
        return self.graph.make_model(self.config, seed)

    @override
    def tensors(self) -> Mapping[str, Tensor]:
        return self.graph.scales.tensors()


class GraphObjective(OnGraph, Protocol):
    """An objective that trains on some nodes, edges or graphs of one graph.

    Models are evaluated on the view `whole`; `saves` names the predictions of all nodes that a
    finished run writes, see `hpcgnn.train.full.predictions.infer`.
    """

    saves: ClassVar[str] = "probabilities"
    examples: WholeExamples
    whole: WholeView

    @classmethod
    @collective
    def draw(cls, context: Context) -> tuple[Any, HiddenEdges | None]:
        """Return the targets, as far as they are known before the graph is read.

        Also return the edges to hide when the graph is read, if any.
        """
        return None, None

    @classmethod
    @collective
    def on(cls, graph: LocalGraph, config: Config, drawn: Any) -> Self:
        """Return the objective on a graph that was read without the edges hidden by `draw`."""

    @classmethod
    @collective
    @override
    def load(cls, context: Context, *, with_rows: bool = False) -> tuple[Self, LocalRows | None]:
        drawn, hidden = cls.draw(context)
        graph = load_graph(replace(context, hidden=hidden), cls.reads, with_rows=with_rows)
        return cls.on(replace(graph, rows=None), context.config, drawn), graph.rows

    @collective
    @override
    def loss(self, model: Any, step: StepData, key: DropoutKey) -> Tensor:
        return self.loss_of(model, model(step.view, step.features, key), step)

    @collective
    def loss_of(self, model: Any, outputs: Tensor, step: StepData) -> Tensor:
        """Return this rank's share of the loss of the model's `outputs` in a step."""

    @torch.no_grad()
    @collective
    @override
    def evaluate(self, model: Any) -> Evaluation:
        return self.judge(model, self.whole.outputs(model))

    @collective
    def judge(self, model: Any, outputs: Tensor) -> Evaluation:
        """Return the metrics, on all splits, of the model's `outputs` for the whole graph."""

    @collective
    @override
    def save_predictions(self, directory: RunDirectory, seed: int) -> None:
        # Read the model from disk: an earlier session may have trained this seed.
        with agree(self.grid.world):
            saved = open_saved_model(directory.path, seed)
        self.write(directory.predictions, saved, saved.model(self.grid, self.make_model))

    @collective
    def write(self, path: Path, saved: SavedModel, model: Any) -> None:
        """Write the predictions of all nodes by a saved model.

        Raises `CollectiveInputError` if the file cannot be written.
        """
        save_rows(self.graph, model, path, saved, self.saves)


class SingleObjective(GraphObjective, Protocol):
    """One task: its graph may be sampled, and it may share an encoder with other tasks."""

    examples: Examples

    def make_part(self, encoder: NodeModel, width: int, seed: int) -> EmbeddingModel:
        """Return a model that predicts from embeddings (N, `width`), the outputs of `encoder`."""
