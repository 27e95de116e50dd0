"""What is exported, and what its counterpart in another library is made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from hpcgnn.config.config import Config
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.inputs import FeatureScale
from hpcgnn.nn import Model, ModelShape
from hpcgnn.train.fields.dynamics import Scales
from hpcgnn.train.fields.frames import Columns, column_names

Tensors: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class Blueprint:
    """A trained model, and what its rows and edges go through before its first layer.

    `tensors` are parameters and buffers under the names of `hpcgnn.nn`, without those of input
    layers of node types, which are in `inputs`, and of what stands behind an encoder of nodes,
    which are in `head`. `reverses`: each relation has its reverse as a relation of its own. `scale`
    and `edge_scale` are those of standardised features of nodes and edges; behind those of nodes
    stand `num_behind` columns, of labels or frames. `facts` are of the graph that it was trained
    on, `pairs` of what is predicted of pairs of nodes, `frames` of fields in time, None without;
    `origin` are words that tell where it comes from.
    """

    config: Config
    kind: type[Model]
    shape: ModelShape
    facts: GraphFacts
    pairs: "PairFacts"
    tensors: Tensors
    inputs: Tensors
    head: Tensors
    weighted: bool
    reverses: bool
    scale: FeatureScale | None
    edge_scale: FeatureScale | None
    num_behind: int
    frames: "FrameFacts | None"
    origin: str

    @property
    def name(self) -> str:
        """The model's name."""
        return self.config.model.name

    @property
    def normalize(self) -> str:
        """How features are scaled."""
        return self.config.graph.normalize_features

    @property
    def scales_edges(self) -> bool:
        """Whether features of edges are scaled."""
        return self.config.graph.normalize_edge_features != "none"

    @property
    def num_given_edges(self) -> int:
        """Those that layers read and are scaled: without columns of fields in time."""
        return (self.shape.num_edge_features - self.num_moving) * self.scales_edges

    def scaled(self, rows: str) -> str:
        """Return the expression of features of nodes, of an expression of those that are given."""
        return _scaled(rows, self.normalize, "feature")

    def scaled_edges(self, rows: str) -> str:
        """Return that of features of edges."""
        return _scaled(rows, self.config.graph.normalize_edge_features, "edge")

    @property
    def directed(self) -> bool:
        """Whether edges have a direction."""
        return self.facts.directed

    @property
    def num_relations(self) -> int:
        """Relations of the input, without the reverses that are relations of their own."""
        return len(self.facts.relations) // (1 + self.reverses)

    @property
    def by_relation(self) -> bool:
        """Whether relations have weights of their own."""
        return bool(self.facts.relations)

    @property
    def num_steps(self) -> int:
        """How many times in a row the model aggregates."""
        return self.kind.num_aggregations(self.shape)

    @property
    def theta(self) -> float:
        """How strong the maps of GCNII are."""
        return self.shape.own["theta"]

    @property
    def self_loops(self) -> bool:
        """Whether nodes aggregate from themselves, too."""
        return any(a.self_loops for a in self.kind.aggregations)

    @property
    def passes_messages(self) -> bool:
        """Whether every edge has a message, so that edges are taken as they are given."""
        return any(a.passes_messages for a in self.kind.aggregations)

    @property
    def num_given(self) -> int:
        """Features that are scaled: those of nodes and of the graph, without columns behind."""
        return self.facts.num_features - (self.num_behind if self.frames else 0)

    @property
    def num_moving(self) -> int:
        """Columns of the edges' features that are of fields in time."""
        if self.frames is None:
            return 0
        return self.config.fields.history * self.frames.columns.rows.edges.num_read

    @property
    def edge_width(self) -> int:
        """Columns of frames of edges."""
        return 0 if self.frames is None else self.frames.columns.rows.edges.width

    @property
    def reads_edges(self) -> bool:
        """Whether layers read features of edges beside their own products."""
        return self.shape.num_edge_features > 0 and not self.passes_messages

    @property
    def num_types(self) -> int:
        """Node types, of which there is one without any."""
        return max(len(self.facts.type_names), 1)

    @property
    def num_powers(self) -> int:
        """Powers of the matrix in a layer of MixHop."""
        return self.num_steps // self.shape.num_layers + 1

    @property
    def hidden_widths(self) -> list[int]:
        """Columns behind each map of a perceptron of MeshGraphNet."""
        return [self.shape.hidden] * self.shape.own["maps"]

    @property
    def wide(self) -> bool:
        """Whether it was trained in float64."""
        return any(value.dtype == torch.float64 for value in self.tensors.values())


@dataclass(frozen=True)
class PairFacts:
    """What a module predicts of pairs: of which relations, from how many features of an edge.

    `symmetric`: in both orders of the ends.
    """

    relations: tuple[str, ...] = ()
    num_features: int = 0
    symmetric: bool = False


@dataclass(frozen=True, eq=False)
class FrameFacts:
    """What a module reads of fields in time: its columns, and the `scales` of checkpoints."""

    columns: Columns
    scales: Scales

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [name for each in self.columns.rows.nodes.fields for name in column_names(each)]

    @property
    def edge_names(self) -> list[str]:
        """The names of all columns of edges."""
        return [name for each in self.columns.rows.edges.fields for name in column_names(each)]


def _scaled(rows: str, how: str, buffers: str) -> str:
    if how == "standard":
        moved = f"({rows} - self.{buffers}_mean) / self.{buffers}_deviation"
        return f"({moved}).to(next(self.parameters()).dtype)"
    power = {"row": 1, "l2": 2}.get(how)
    return rows if power is None else f"functional.normalize({rows}, p={power}, dim=1)"


def under(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
