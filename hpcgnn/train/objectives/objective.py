"""The interface of an objective: what is predicted, its loss, and how models are judged."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self, TypeAlias

from torch import Tensor
from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import ProcessGrid
from hpcgnn.config.config import Config
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import Facts, GraphFacts
from hpcgnn.graph.labelled import Reading
from hpcgnn.graph.local_graph import LocalGraph, LocalRows
from hpcgnn.nn import NodeModel, TrainableModule
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, InstanceStore
from hpcgnn.support import Reasons, Trait
from hpcgnn.train.evaluation import Evaluation
from hpcgnn.train.full.predictions import save_predictions
from hpcgnn.train.kept_products import WholeView
from hpcgnn.train.run.directory import RunDirectory
from hpcgnn.train.sources.source import Examples

StoreKind: TypeAlias = type[GraphStore] | type[InstanceStore]


class About(Protocol):
    """What an objective says of its data and of itself; nothing of it is collective."""

    def describe(self, threads: int) -> str:
        """Return the line that says what is about to run."""
        ...

    def remarks(self) -> list[str]:
        """Return what in this rank's inputs is likely to be a mistake, a line each."""
        return []

    def details(self) -> dict[str, Any]:
        """Return this rank's sizes for the summary."""
        ...

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return keys of summary.json, from the details of all ranks."""
        ...


class Objective(Protocol):
    """What is predicted, by what loss it is learned, and how models are judged.

    `needs` and `lacks` are what it needs of other features of a run, and lacks for them, see
    `hpcgnn.support`; `store` is the kind of store that it reads, and `about` says of itself.
    """

    needs: ClassVar[frozenset[Trait]]
    lacks: ClassVar[Reasons]
    store: ClassVar[StoreKind]
    grid: ProcessGrid
    about: About

    @classmethod
    def load(cls, context: Context, *, with_rows: bool = False) -> tuple[Self, LocalRows | None]:
        """Read this rank's share, and its rows where the source asks for them; collective."""
        ...

    @property
    def facts(self) -> Facts:
        """What is trained on."""
        ...

    def make_model(self, seed: int) -> TrainableModule:
        """Return a new model, equal on all ranks; not collective."""
        ...

    def loss(self, model: Any, step: Any, key: DropoutKey) -> Tensor:
        """Return this rank's share of the loss of a step of the source; collective.

        The shares of a layer of the grid add up to the loss.
        """
        ...

    def evaluate(self, model: Any) -> Evaluation:
        """Return the metrics of `model` on all splits; collective."""
        ...

    def evaluate_kept(self, model: Any) -> dict[str, Any]:
        """Return what an ended seed's line says beside its metrics; collective."""
        return {}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return what a checkpoint keeps beside the model, for predictions; not collective."""
        return {}

    def save_predictions(self, directory: RunDirectory, seed: int) -> None:
        """Write the predictions of the model that `seed` kept; collective."""
        ...


class OnGraph(Objective, Protocol):
    """An objective on one graph of nodes.

    Attributes
    ----------
    graph
        The share of this rank, without its rows.
    reads
        What it reads of the stored graph, see `hpcgnn.graph.load.load_graph`.
    """

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
        # What features were scaled by, where that comes from the graph.
        scales = self.graph.scales.items()
        return {key: value for name, each in scales for key, value in each.tensors(name).items()}


class GraphObjective(OnGraph, Protocol):
    """An objective that learns of some nodes, edges or graphs of a graph, whole or sampled.

    Attributes
    ----------
    whole
        The view that models are judged on.
    saves
        What a run that has ended writes of all nodes, see `hpcgnn.train.full.predictions.infer`.
    """

    needs: ClassVar[frozenset[Trait]] = frozenset()
    store: ClassVar[StoreKind] = GraphStore
    saves: ClassVar[str] = "probabilities"
    examples: Examples
    whole: WholeView

    @collective
    @override
    def save_predictions(self, directory: RunDirectory, seed: int) -> None:
        save_predictions(self.graph, self.make_model, directory, seed, self.saves)
