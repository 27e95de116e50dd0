"""The interface of models: the views that they receive, and the base classes.

Shape suffixes in this package: N local nodes, F input features, H hidden width, C classes.
"""

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.attention import DistributedAttention
from hpcgnn.autograd import (
    DropoutKey,
    EdgeInputs,
    GraphMembers,
    GraphSums,
    edge_draw,
    memory_of,
    rows_at,
)
from hpcgnn.kernels import EdgeDraw
from hpcgnn.messages import MessageOperator
from hpcgnn.nn.norm import NORMS_OVER_NODES
from hpcgnn.operator import Aggregation, AggregationOperator, RankSums
from hpcgnn.sparse import mean_rows
from hpcgnn.spmd import collective
from hpcgnn.support import Reasons, Trait, Traits, lacks, union
from hpcgnn.typing import GlobalIndices, LocalIndices

UNKNOWN: Reasons = {
    Trait.EQUAL_BITS: "its sums are not known to be exact",
    Trait.EXPORTED: "its layers are not written in other libraries",
}
"""The traits that a model lacks unless it declares otherwise."""

_WHOLE_ROWS = "its first layer may not map features first"

EDGE_READER = lacks(
    {
        Trait.GPU: "features of edges are read on CPUs only",
        Trait.EDGE_WEIGHTS: "it reads features of edges in place of weights",
        Trait.ADDED_REVERSES: "reverses that training adds have no features; those of hpcgnn "
        "convert --undirected have",
    }
)
"""The traits that layers with edge features lack."""

JUMPING = ("none", "concat", "max")
"""Names of the ways to join the outputs of all layers."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes and options of a model; all ranks build it from the same seed.

    Parameters
    ----------
    num_features, num_classes, hidden
        Widths F, C and H; F is 0 if node types have their own features.
    num_layers
        At least 1.
    num_relations
        Number of relations with separate weights in a typed model, including reverses.
    dropout
        Dropout probability of the input of every layer after the first.
    input_dropout
        Dropout probability of the features.
    norm
        Normalisation of every hidden layer's output, before the activation; a name in `NORMS`.
    residual
        Whether to add a layer's own input to its output, before normalisation: unchanged if the
        widths are equal, otherwise through a learned linear map.
    jumping
        One of `JUMPING`; unless it is "none", all layers are hidden, and a linear map of their
        joined outputs gives the logits.
    attention_dropout
        Dropout probability of the coefficient of an edge and head, after the softmax.
    edge_dropout
        Dropout probability of an edge, before the softmax.
    hops
        Number of aggregations of a layer that has several; 0: the model's default.
    teleport
        The share of the first rows that every propagation step adds again.
    num_bases
        Matrices from which the relations' weights are combined; 0: every relation has its own.
    type_features
        Numbers of features of the node types; empty for one kind of node.
    input_width
        Columns of the outputs of node types' input layers; 0: `hidden`.
    num_edge_features
        Columns of an edge's features, for models that read them.
    num_edge_outputs
        Columns predicted for an edge, by models with edge states.
    own
        The options that the model's class declares itself, see `Model.own_options`.
    """

    num_features: int
    num_classes: int
    hidden: int
    num_layers: int
    num_relations: int = 1
    dropout: float = 0.0
    input_dropout: float = 0.0
    norm: str = "none"
    activation: str = "relu"
    residual: bool = False
    jumping: str = "none"
    heads: int = 1
    attention_dropout: float = 0.0
    edge_dropout: float = 0.0
    hops: int = 0
    teleport: float = 0.1
    num_bases: int = 0
    type_features: tuple[int, ...] = ()
    input_width: int = 0
    num_edge_features: int = 0
    num_edge_outputs: int = 0
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first_width(self) -> int:
        """Number of columns that the first graph layer reads."""
        return (self.input_width or self.hidden) if self.type_features else self.num_features

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers whose output is normalised and activated."""
        return self.num_layers - (self.jumping == "none")

    def widths(self) -> list[int]:
        """Return the num_layers + 1 widths, from the first layer's input to the last's output."""
        hidden = [self.hidden] * self.num_hidden_layers
        last = [self.num_classes] if self.jumping == "none" else []
        return [self.first_width, *hidden, *last]

    def dropout_before(self, layer: int) -> float:
        """Return the dropout probability of the input of `layer`."""
        return self.input_dropout if layer == 0 else self.dropout


@dataclass(frozen=True, eq=False)
class NodeTraits:
    """Data of nodes that layers may read beside their rows.

    `types` (rows,) int64 is None if there is one type. `edge_means` (rows, F) are the mean features
    of a node's in-edges, zero without any; None if the model does not read them. If edges are
    sampled, `degrees` (rows,) are the in-degrees in the whole graph, and `mean_log_degree` is the
    mean of log(1 + degree) over its nodes; else None.
    """

    types: Tensor | None = None
    edge_means: Tensor | None = None
    degrees: Tensor | None = None
    mean_log_degree: Tensor | None = None

    def __getitem__(self, rows: Tensor) -> "NodeTraits":
        """Return the data of some nodes."""
        traits = self.types, self.edge_means, self.degrees
        types, means, degrees = (None if trait is None else trait[rows] for trait in traits)
        return NodeTraits(types, means, degrees, self.mean_log_degree)


@dataclass(frozen=True, eq=False)
class RowsView:
    """The local share of a graph for a model or a layer.

    `operators` are the aggregations that the model declares, from input rows to output rows;
    `node_ids` (input rows,) int64 original ids, a CuPy array if rows are on a GPU. `sums` adds up
    an array over the block rows; for a layer, an array of its output rows. `relation_rows` are, for
    each relation, the output rows, int32, of the rows that an aggregation by relation returns for
    it, in order, in the same memory as `node_ids`. `traits` describe the input rows;
    `edge_features` replace those of the operator.
    """

    operators: Mapping[Aggregation, AggregationOperator]
    node_ids: GlobalIndices
    sums: RankSums
    relation_rows: tuple[LocalIndices, ...] = ()
    traits: NodeTraits = NodeTraits()
    edge_features: Tensor | None = field(default=None, kw_only=True)

    @property
    def edges(self) -> EdgeInputs:
        """The edges of a model whose aggregation passes messages."""
        operator = next(o for kind, o in self.operators.items() if kind.passes_messages)
        assert isinstance(operator, MessageOperator)
        return EdgeInputs(operator, self.edge_features)


RowsT = TypeVar("RowsT", Tensor, NodeTraits)


@dataclass(frozen=True, eq=False)
class LayerView(RowsView):
    """The local share of a graph for one layer.

    `output_positions` (output rows,) int64 are the positions of output rows among the input rows;
    None if a layer returns a row for every input row. `following` are the further
    aggregations of a layer that aggregates several times; `operators` and `output_positions` are
    those of the first.
    """

    output_positions: Tensor | None = None
    following: tuple["LayerView", ...] = ()

    @property
    def steps(self) -> tuple["LayerView", ...]:
        """The aggregations of the layer, in order."""
        return (replace(self, following=()), *self.following)

    def own(self, x: Tensor) -> Tensor:
        """Return the input rows of the output nodes."""
        return self.after(0, x)

    def after(self, num_steps: int, x: RowsT) -> RowsT:
        """Return the output nodes' rows of `x`, which are the rows after `num_steps`."""
        for positions in self._positions_after(num_steps):
            x = rows_at(x, positions) if isinstance(x, Tensor) else x[positions]
        return x

    @property
    def own_traits(self) -> NodeTraits:
        """The data of the output nodes."""
        return self.after(0, self.traits)

    @property
    def output_ids(self) -> GlobalIndices:
        """(output rows,) int64 original ids of the output nodes."""
        ids = self.node_ids
        for positions in self._positions_after(0):
            ids = ids[memory_of(positions).array(positions)]
        return ids

    def _positions_after(self, num_steps: int) -> list[Tensor]:
        steps = (self, *self.following)[num_steps:]
        return [step.output_positions for step in steps if step.output_positions is not None]


@dataclass(frozen=True, eq=False)
class GraphView(RowsView):
    """The local share of a graph for a model; its rows are all local nodes.

    If only the outputs of some nodes are needed, `active` has a view for each aggregation of the
    model, in order; otherwise it is empty, and every layer computes all local nodes. `members` maps
    nodes to graphs if graphs are predicted as a whole.
    """

    active: tuple[LayerView, ...] = ()
    members: GraphMembers | None = None

    def of_graphs(self, members: GraphMembers) -> "GraphView":
        """Return the view for predicting whole graphs, between which there are no edges."""
        sums = GraphSums(self.sums, members)
        # With whole graphs, all layers have the same nodes.
        active = tuple(replace(layer, sums=sums) for layer in self.active)
        return replace(self, members=members, sums=sums, active=active)

    @collective
    def with_edge_columns(self, rows: Tensor, targets: GlobalIndices) -> "GraphView":
        """Return the view with further features appended to those of the edges.

        `rows` (E, any width) are those of the local edges, in the order of the store, and `targets`
        (E,) int64 the local rows at which they end.
        """
        if any(kind.passes_messages for kind in self.operators):
            return replace(self, edge_features=self.edges.with_columns(rows))
        means = self.traits.edge_means
        if means is not None:
            columns = rows.numpy()
            more = torch.from_numpy(mean_rows(targets, columns, len(means), columns.dtype))
            means = torch.cat([means, more.to(means.dtype)], dim=1)
            return replace(self, traits=replace(self.traits, edge_means=means))
        operators: dict[Aggregation, AggregationOperator] = {}
        for aggregation, operator in self.operators.items():
            assert isinstance(operator, DistributedAttention)
            operators[aggregation] = operator.with_edge_columns(rows.numpy())
        return replace(self, operators=operators)

    def layer(self, index: int, steps: int = 1) -> LayerView:
        """Return the view of a layer of a model whose layers aggregate `steps` times."""
        if self.active:
            first, *following = self.active[index * steps : (index + 1) * steps]
        else:
            first, following = self._whole, [self._whole] * (steps - 1)
        if not following:
            return first
        return replace(first, following=tuple(following), sums=following[-1].sums)

    @cached_property
    def _whole(self) -> LayerView:
        """The view of a layer that computes all local nodes."""
        return LayerView(**{item.name: getattr(self, item.name) for item in fields(RowsView)})


class TrainableModule(nn.Module, ABC):
    """A module that the training loop can train."""

    def own_rows(self) -> Mapping[str, str]:
        """Return the names of parameters and buffers that have a row for each of some own nodes.

        Each rank holds different rows of these, and equal copies of all other parameters. Values
        are the names of the buffers with the nodes' original ids, which are keys as well.
        """
        return {}


class NodeModel(TrainableModule):
    """A model with outputs for nodes, called with a graph, features and a key of dropout masks."""

    @abstractmethod
    @collective
    def embed(self, graph: GraphView, x: Any) -> Tensor:
        """Return the input of the last layer (N, H), without dropout."""

    @collective
    def with_edges(
        self, graph: GraphView, x: Any, key: DropoutKey | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the outputs for nodes, and for edges (E, any width) in the store's order.

        The latter are None if nothing is predicted for edges.
        """
        return self(graph, x, key), None


class EncoderModel(NodeModel):
    """A model on top of the logits of another."""

    def __init__(self, encoder: NodeModel) -> None:
        super().__init__()
        self.encoder = encoder

    @override
    def own_rows(self) -> Mapping[str, str]:
        own = self.encoder.own_rows()
        return {f"encoder.{name}": f"encoder.{ids}" for name, ids in own.items()}


class EmbeddingModel(EncoderModel):
    """A model of nodes or pairs of nodes whose embeddings are the logits of its encoder.

    `head` names the module that reads the embeddings.
    """

    head: ClassVar[str]

    def __init__(self, encoder: NodeModel, head: nn.Module | None = None) -> None:
        super().__init__(encoder)
        if head is not None:
            self.add_module(self.head, head)

    @classmethod
    def with_new_head(
        cls, encoder: NodeModel, seed: int, make_head: Callable[[], nn.Module]
    ) -> Self:
        """Return the model with a head whose weights are drawn from `seed`, equal on all ranks.

        torch's global generator is not changed.
        """
        like = next(encoder.parameters())
        with weights_from_seed(seed):
            head = make_head()
        return cls(encoder, head.to(like.device, like.dtype))

    @collective
    def forward(self, graph: GraphView, x: Any, key: DropoutKey | None) -> Tensor:
        """Return the outputs of the local nodes; see `outputs`."""
        return self.outputs(self.encoder(graph, x, key))

    def outputs(self, embeddings_NH: Tensor) -> Tensor:
        """Return the outputs for an objective; objectives of pairs take the embeddings (N, H)."""
        return embeddings_NH

    @collective
    @override
    def embed(self, graph: GraphView, x: Any) -> Tensor:
        return self.encoder(graph, x, None)


@contextlib.contextmanager
def weights_from_seed(seed: int) -> Iterator[None]:
    """Draw the weights of modules made inside the block from `seed`, equal on all ranks.

    They are drawn in float64, so that all precisions start from the same values. torch's global
    generator and default dtype are restored.
    """
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Nodes may have no features if edges have some.
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        torch.default_generator.manual_seed(seed)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


class Model(NodeModel):
    """A model of one kind of node; subclasses declare `aggregations` and implement `forward`.

    `directed` tells whether the graph has a second direction to aggregate along.
    """

    aggregations: ClassVar[tuple[Aggregation, ...]] = ()
    options: ClassVar[frozenset[str]] = frozenset()
    """Fields of `ModelShape` that the model uses, beside the sizes and dropout."""
    needs: ClassVar[frozenset[Trait]] = frozenset()
    """The traits that the model needs of other features of a run, see `hpcgnn.support`."""
    lacks: ClassVar[Reasons] = UNKNOWN
    """The traits that it lacks, with reasons. Neither is inherited, as the layers of a subclass may
    differ; a subclass that does not declare them gets the defaults of this class."""
    default_hops: ClassVar[int] = 1
    """Number of consecutive aggregations of a layer, unless ``model.hops`` is set."""
    propagates_once: ClassVar[bool] = False
    """Whether the model aggregates outside of its layers, not in each of them."""
    takes_sparse: ClassVar[bool] = False
    """Whether features may be sparse: the model maps them first or makes them dense."""
    has_edge_states: ClassVar[bool] = False
    """Whether edges have states, from which outputs for edges are computed; see `with_edges`."""
    averages_rows: ClassVar[bool] = False
    """Whether layers read a mean over the nodes of all ranks, as norms over nodes do. It comes from
    `hpcgnn.autograd.moments`, which count only chosen rows if training is on some."""
    own_options: ClassVar[Mapping[str, Any]] = {}
    """Options that no other model has, with defaults that determine their types. They are the keys
    of ``[model.options]`` and are passed to the model in ``shape.own``."""

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__()
        self.shape, self.directed = shape, directed

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, default in (("needs", frozenset()), ("lacks", UNKNOWN)):
            if name not in vars(cls):
                setattr(cls, name, default)

    @classmethod
    def traits(cls) -> Traits:
        """Return the traits that the model and its aggregations declare."""
        first = {} if cls.takes_sparse else {Trait.SPARSE_FEATURES: _WHOLE_ROWS}
        messages = any(a.passes_messages for a in cls.aggregations)
        reads_edges = messages or "edge_features" in cls.options
        edges = {} if reads_edges else {Trait.EDGE_FEATURES: "it reads no features of edges"}
        states = {} if cls.has_edge_states else {Trait.EDGE_OUTPUTS: "its edges have no states"}
        return union(cls, lacks({**first, **edges, **states}), *cls.aggregations)

    @classmethod
    def steps_per_layer(cls, shape: ModelShape) -> int:
        """Return the number of consecutive aggregations of a layer."""
        return shape.hops or cls.default_hops

    @classmethod
    def num_aggregations(cls, shape: ModelShape) -> int:
        """Return the number of consecutive aggregations of the model, its receptive field."""
        return cls.steps_per_layer(shape) if cls.propagates_once else shape.num_layers

    @classmethod
    def aggregations_after_norms(cls, shape: ModelShape) -> int:
        """Return the number of last aggregations that come after all norms over nodes.

        In these, rows that are not read can be left out. Rows of earlier aggregations count in the
        norms' statistics and get gradients from them.
        """
        return 0 if shape.norm in NORMS_OVER_NODES else cls.num_aggregations(shape)

    @classmethod
    def num_feature_products(cls, shape: ModelShape) -> int:
        """Return the number of consecutive aggregations of unchanged features."""
        return 0

    @classmethod
    def check(cls, shape: ModelShape) -> None:
        """Raise an `InputError`, naming a remedy, if options are incompatible."""
        del shape

    def edges_left_out(self, draw: DropoutKey | None) -> EdgeDraw | None:
        """Return the dropout of a layer's attention, of edges and of weights after the softmax."""
        return edge_draw(draw, self.shape.attention_dropout, self.shape.edge_dropout)

    @abstractmethod
    @collective
    def forward(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        """Return logits (N, C), or those of the last active layer's output rows.

        `x_NF` are features of the local nodes, or of the first active layer's input rows. `key` is
        the key of dropout masks; None: the model is evaluated.
        """

    @abstractmethod
    @collective
    def embed(self, graph: GraphView, x_NF: Tensor) -> Tensor:
        """Return the input of the last layer (N, H), without dropout."""


class HiddenModel(Model):
    """A model with one method for the input of its last layer, with and without dropout."""

    @abstractmethod
    @collective
    def last_input(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        """Return the input of the last layer (N, H); without `key` there is no dropout."""

    @collective
    @override
    def embed(self, graph: GraphView, x_NF: Tensor) -> Tensor:
        return self.last_input(graph, x_NF, None)
