"""The description of a trained model from which its counterpart in another library is made."""

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
    """A trained model, and the preparation of its inputs.

    `tensors` are parameters and buffers under the names of `hpcgnn.nn`, except those of input
    layers of node types, which are in `inputs`, and those after the node encoder, which are in
    `head`. `mirrored` says that the store has each edge in both directions, with equal weights, and
    `unites` that the edges of several relations are united. `reverses` says that each relation has
    its reverse as another relation. `scale` and `edge_scale` are those of standardised features of
    nodes and edges; `num_behind` columns, of labels or frames, follow the features of nodes.
    `facts` are those of the training graph, `pairs` those of predictions for pairs of nodes,
    `frames` those of fields over time, or None; `origin` describes the model's origin.
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
    mirrored: bool
    unites: bool
    reverses: bool
    scale: FeatureScale | None
    edge_scale: FeatureScale | None
    num_behind: int
    frames: "FrameFacts | None"
    origin: str

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.config.model.name

    @property
    def normalize(self) -> str:
        """How features of nodes are scaled."""
        return self.config.graph.normalize_features

    @property
    def scales_edges(self) -> bool:
        """Whether features of edges are scaled."""
        return self.config.graph.normalize_edge_features != "none"

    @property
    def num_given_edges(self) -> int:
        """Number of scaled edge features that layers read, without columns of fields."""
        return (self.shape.num_edge_features - self.num_moving) * self.scales_edges

    def scaled(self, rows: str) -> str:
        """Return the source expression that scales the node features of an expression."""
        return _scaled(rows, self.normalize, "feature")

    def scaled_edges(self, rows: str) -> str:
        """Return the source expression that scales the edge features of an expression."""
        return _scaled(rows, self.config.graph.normalize_edge_features, "edge")

    @property
    def directed(self) -> bool:
        """Whether edges have a direction."""
        return self.facts.directed

    @property
    def num_relations(self) -> int:
        """Number of relations in the input, without added reverses."""
        return len(self.facts.relations) // (1 + self.reverses)

    @property
    def by_relation(self) -> bool:
        """Whether each relation has its own weights."""
        return bool(self.facts.relations)

    @property
    def num_steps(self) -> int:
        """How many aggregations the model does one after the other."""
        return self.kind.num_aggregations(self.shape)

    @property
    def theta(self) -> float:
        """The strength of the linear maps of GCNII."""
        return self.shape.own["theta"]

    @property
    def self_loops(self) -> bool:
        """Whether nodes also aggregate from themselves."""
        return any(a.self_loops for a in self.kind.aggregations)

    @property
    def passes_messages(self) -> bool:
        """Whether every edge has a message, so that edges are used as they are given."""
        return any(a.passes_messages for a in self.kind.aggregations)

    @property
    def num_given(self) -> int:
        """Number of scaled node features, stored and structural, without appended columns."""
        return self.facts.num_features - (self.num_behind if self.frames else 0)

    @property
    def num_moving(self) -> int:
        """Columns of edge features that come from fields."""
        if self.frames is None:
            return 0
        return self.config.fields.history * self.frames.columns.rows.edges.num_read

    @property
    def edge_width(self) -> int:
        """Columns of a frame of edges."""
        return 0 if self.frames is None else self.frames.columns.rows.edges.width

    @property
    def reads_edges(self) -> bool:
        """Whether layers read edge features in addition to products, not as messages."""
        return self.shape.num_edge_features > 0 and not self.passes_messages

    @property
    def num_types(self) -> int:
        """Number of node types; 1 for a graph without types."""
        return max(len(self.facts.type_names), 1)

    @property
    def num_powers(self) -> int:
        """Number of powers of the matrix in a layer of MixHop."""
        return self.num_steps // self.shape.num_layers + 1

    @property
    def hidden_widths(self) -> list[int]:
        """Output width of each map of a perceptron of MeshGraphNet."""
        return [self.shape.hidden] * self.shape.own["maps"]

    @property
    def wide(self) -> bool:
        """Whether the model was trained in float64."""
        return any(value.dtype == torch.float64 for value in self.tensors.values())


@dataclass(frozen=True)
class PairFacts:
    """The relations in which a module predicts pairs, and the number of edge features it uses.

    `symmetric`: predictions do not depend on the order of the ends.
    """

    relations: tuple[str, ...] = ()
    num_features: int = 0
    symmetric: bool = False


@dataclass(frozen=True, eq=False)
class FrameFacts:
    """The columns of fields that a module reads, and their `scales` from the checkpoint."""

    columns: Columns
    scales: Scales

    @property
    def names(self) -> list[str]:
        """The names of all columns of nodes."""
        return [name for field in self.columns.rows.nodes.fields for name in column_names(field)]

    @property
    def edge_names(self) -> list[str]:
        """The names of all columns of edges."""
        return [name for field in self.columns.rows.edges.fields for name in column_names(field)]


def _scaled(rows: str, how: str, buffers: str) -> str:
    if how == "standard":
        scaled = f"({rows} - self.{buffers}_mean) / self.{buffers}_deviation"
        return f"({scaled}).to(next(self.parameters()).dtype)"
    power = {"row": 1, "l2": 2}.get(how)
    return rows if power is None else f"functional.normalize({rows}, p={power}, dim=1)"


def under(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, with the prefix removed."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
