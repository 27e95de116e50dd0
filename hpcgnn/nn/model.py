"""What every model receives and returns.

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
"""What models lack that do not declare otherwise."""

_WHOLE_ROWS = "its first layer is not known to map features before all else"

EDGE_READER = lacks(
    {
        Trait.GPU: "features of edges are read on CPUs only",
        Trait.EDGE_WEIGHTS: "it reads features of edges in place of weights",
        Trait.ADDED_REVERSES: "reverses that training adds have no features; those of hpcgnn "
        "convert --undirected have",
    }
)
"""What layers lack that read features of edges."""

ACTIVATIONS = ("relu", "elu", "gelu")
"""Names of the functions between layers."""

JUMPING = ("none", "concat", "max")
"""Names of the ways to join the outputs of all layers."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes and options of a model; all ranks build it from the same seed.

    Parameters
    ----------
    num_features, num_classes, hidden
        Widths F, C and H; F is 0 where node types have features of their own.
    num_layers
        At least 1.
    num_relations
        Relations with weights of their own in a typed model, reverses included.
    dropout
        Probability for the input of every layer after the first.
    input_dropout
        Probability for the features.
    norm
        Of every hidden layer's output, before the activation; a name in `NORMS`.
    residual
        Add a layer's own input to its output, before normalisation: as it is where the widths are
        equal, through a learned linear map elsewhere.
    jumping
        One of `JUMPING`: all layers are then hidden, and a linear map of their joined outputs gives
        the logits.
    attention_dropout
        Probability for the coefficient of an edge and head, after the softmax.
    edge_dropout
        Probability for an edge, before the softmax.
    hops
        Aggregation of a layer that has several; 0: the model's own number.
    teleport
        The share of the first rows that every propagation step brings back.
    num_bases
        Matrices that the weights of the relations are combined from; 0: every relation has its own.
    type_features
        The features of each node type; empty for one kind of node.
    input_width
        Columns that the input layers of node types give; 0: `hidden`.
    num_edge_features
        Columns of an edge's features, for models that read them.
    num_edge_outputs
        Columns that are predicted of an edge, by models with states of edges.
    own
        The options that the model's class declares for itself, see `Model.own_options`.
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
        """Columns that the first graph layer reads."""
        return (self.input_width or self.hidden) if self.type_features else self.num_features

    @property
    def num_hidden_layers(self) -> int:
        """Layers whose output is normalised and activated."""
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
    """What layers may need to know about nodes beside their rows.

    `types` (rows,) int64 are None where nodes have one; `edge_means` (rows, F) are the mean
    features of the edges that arrive at a node, zeros without any; None where the model reads none.
    """

    types: Tensor | None = None
    edge_means: Tensor | None = None

    def __getitem__(self, rows: Tensor) -> "NodeTraits":
        """Return those of some nodes."""
        pick = (None if trait is None else trait[rows] for trait in (self.types, self.edge_means))
        return NodeTraits(*pick)


@dataclass(frozen=True, eq=False)
class RowsView:
    """The local share of a graph as something sees it.

    Parameters
    ----------
    operators
        The aggregations that the model asked for, from input rows to output rows.
    node_ids
        (input rows,) int64 original ids; a CuPy array where rows are on a GPU.
    sums
        Adds up an array over the block rows; a layer's, of output rows.
    relation_rows
        Where the rows of aggregations by relation belong: for each relation an int32 array with
        the output row of each of its nodes, in the order of the result, as for `node_ids`.
    traits
        Of the input rows.
    edge_features
        Of the edges, in place of those of the operator.
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
        operator = next(each for kind, each in self.operators.items() if kind.passes_messages)
        assert isinstance(operator, MessageOperator)
        return EdgeInputs(operator, self.edge_features)


RowsT = TypeVar("RowsT", Tensor, NodeTraits)


@dataclass(frozen=True, eq=False)
class LayerView(RowsView):
    """The local share of a graph as one layer sees it.

    `kept` (output rows,) int64 is the position of each output row among the input rows; None when a
    layer returns a row for every input row. `following` are the further aggregations of a layer
    that aggregates several times; `operators` and `kept` are the first one's.
    """

    kept: Tensor | None = None
    following: tuple["LayerView", ...] = ()

    @property
    def steps(self) -> tuple["LayerView", ...]:
        """The aggregations of the layer, one after the other."""
        return (replace(self, following=()), *self.following)

    def own(self, x: Tensor) -> Tensor:
        """Return the input rows of the output nodes."""
        return self.after(0, x)

    def after(self, num_steps: int, x: RowsT) -> RowsT:
        """Return the output nodes' rows of `x`, which holds the rows after so many aggregations."""
        for kept in self._kept_after(num_steps):
            x = x[kept]
        return x

    @property
    def own_traits(self) -> NodeTraits:
        """Those of the output nodes."""
        return self.after(0, self.traits)

    @property
    def output_ids(self) -> GlobalIndices:
        """(output rows,) int64 original ids."""
        ids = self.node_ids
        for kept in self._kept_after(0):
            ids = ids[memory_of(kept).array(kept)]
        return ids

    def _kept_after(self, num_steps: int) -> list[Tensor]:
        steps = (self, *self.following)[num_steps:]
        return [step.kept for step in steps if step.kept is not None]


@dataclass(frozen=True, eq=False)
class GraphView(RowsView):
    """The local share of a graph as a model sees it: its rows are all local nodes.

    `active` has a view for each aggregation of the model, one after the other, when only the
    outputs of some nodes are wanted; otherwise it is empty, and every layer sees all local nodes.
    `members` are the nodes that the model's outputs are of, where graphs are predicted as a whole.
    """

    active: tuple[LayerView, ...] = ()
    members: GraphMembers | None = None

    def of_graphs(self, members: GraphMembers) -> "GraphView":
        """Return the view of graphs that are predicted as a whole; no edge joins two of them."""
        sums = GraphSums(self.sums, members)
        # So that all layers have the same nodes.
        active = tuple(replace(layer, sums=sums) for layer in self.active)
        return replace(self, members=members, sums=sums, active=active)

    @collective
    def with_edge_columns(self, rows: Tensor, targets: GlobalIndices) -> "GraphView":
        """Return the view of edges with more features, which the model reads behind theirs.

        `rows` (E, any width) are of the local edges, in the order of the store, `targets` (E,)
        int64 the local rows that they end at.
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
        """The view of a layer that sees all local nodes."""
        return LayerView(**{item.name: getattr(self, item.name) for item in fields(RowsView)})


class TrainableModule(nn.Module, ABC):
    """What the training loop can train."""

    @abstractmethod
    def input_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the first layer, which may decay apart from the others."""

    def own_rows(self) -> Mapping[str, str]:
        """Return the parameters and buffers that have a row for each of some nodes of this rank.

        Ranks hold other rows of these, and equal copies of all other parameters. The values are
        names of buffers with the original ids of the nodes, which are among the keys.
        """
        return {}


class NodeModel(TrainableModule):
    """What tells the class of nodes, called with a graph, features and a draw of dropout masks."""

    @abstractmethod
    @collective
    def embed(self, graph: GraphView, x: Any) -> Tensor:
        """Return the input of the last layer (N, H), without dropout."""

    @collective
    def with_edges(
        self, graph: GraphView, x: Any, key: DropoutKey | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return what the model gives of nodes, and of edges (E, any width) as the store has them.

        None where nothing is predicted of edges.
        """
        return self(graph, x, key), None


class EncoderModel(NodeModel):
    """A model that goes on with the logits of another."""

    def __init__(self, encoder: NodeModel) -> None:
        super().__init__()
        self.encoder = encoder

    @override
    def input_parameters(self) -> list[nn.Parameter]:
        return self.encoder.input_parameters()

    @override
    def own_rows(self) -> Mapping[str, str]:
        own = self.encoder.own_rows()
        return {f"encoder.{name}": f"encoder.{ids}" for name, ids in own.items()}


class EmbeddingModel(EncoderModel):
    """A model of nodes, or of pairs of them, whose embeddings are the logits of its encoder.

    `head` names the module that goes on with them.
    """

    head: ClassVar[str]

    def __init__(self, encoder: NodeModel, head: nn.Module | None = None) -> None:
        super().__init__(encoder)
        if head is not None:
            self.add_module(self.head, head)

    @classmethod
    def drawn(cls, encoder: NodeModel, seed: int, make_head: Callable[[], nn.Module]) -> Self:
        """Return the model with a head whose weights are drawn of `seed`, equal on all ranks.

        torch's global generator is left as it was.
        """
        like = next(encoder.parameters())
        with drawn_from(seed):
            head = make_head()
        return cls(encoder, head.to(like.device, like.dtype))

    @collective
    def forward(self, graph: GraphView, x: Any, key: DropoutKey | None) -> Tensor:
        """Return the outputs of the local nodes, see `outputs`."""
        return self.outputs(self.encoder(graph, x, key))

    def outputs(self, embeddings_NH: Tensor) -> Tensor:
        """Return what an objective compares: of pairs the embeddings (N, H) of their ends."""
        return embeddings_NH

    @collective
    @override
    def embed(self, graph: GraphView, x: Any) -> Tensor:
        return self.encoder(graph, x, None)


@contextlib.contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Draw the weights of modules that are made in here, equal on all ranks.

    They are drawn in float64, so that all precisions start from the same values. torch's global
    generator and default type are left as they were.
    """
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Nodes may have no features where edges have some.
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        torch.default_generator.manual_seed(seed)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


class Model(NodeModel):
    """A model of one kind of node; subclasses name their `aggregations` and implement `forward`.

    `directed` says whether the graph has a second direction to aggregate along.
    """

    aggregations: ClassVar[tuple[Aggregation, ...]] = ()
    options: ClassVar[frozenset[str]] = frozenset()
    """Fields of `ModelShape` beside the sizes and dropout that the model heeds."""
    needs: ClassVar[frozenset[Trait]] = frozenset()
    """What the model needs of other features of a run, see `hpcgnn.support`."""
    lacks: ClassVar[Reasons] = UNKNOWN
    """What it lacks for them, with reasons. A subclass inherits neither, since its layers may be
    others; one that does not declare it has what a model of unknown layers lacks."""
    default_hops: ClassVar[int] = 1
    """How many times in a row a layer aggregates, unless ``model.hops`` says."""
    propagates_once: ClassVar[bool] = False
    """Whether it aggregates beside its layers, and not in each of them."""
    takes_sparse: ClassVar[bool] = False
    """Whether features may be sparse: they are mapped before all else, or written out."""
    has_edge_states: ClassVar[bool] = False
    """Whether edges have states, from which something of them is predicted; see `with_edges`."""
    averages_rows: ClassVar[bool] = False
    """Whether layers read a mean over the nodes of all ranks, as norms over nodes do: by
    `hpcgnn.autograd.moments`, which count chosen rows where only some are trained on."""
    own_options: ClassVar[Mapping[str, Any]] = {}
    """Options that no other model has, with their defaults, which say their types; they are the
    keys of ``[model.options]``, and the model finds them in ``shape.own``."""

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__()
        self.shape, self.directed = shape, directed

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, careful in (("needs", frozenset()), ("lacks", UNKNOWN)):
            if name not in vars(cls):
                setattr(cls, name, careful)

    @classmethod
    def traits(cls) -> Traits:
        """Return what the model and its aggregations declare."""
        first = {} if cls.takes_sparse else {Trait.SPARSE_FEATURES: _WHOLE_ROWS}
        messages = any(a.passes_messages for a in cls.aggregations)
        reads_edges = messages or "edge_features" in cls.options
        edges = {} if reads_edges else {Trait.EDGE_FEATURES: "it reads no features of edges"}
        states = {} if cls.has_edge_states else {Trait.EDGE_OUTPUTS: "its edges have no states"}
        return union(cls, lacks({**first, **edges, **states}), *cls.aggregations)

    @classmethod
    def steps_per_layer(cls, shape: ModelShape) -> int:
        """Return how many times in a row a layer aggregates."""
        return shape.hops or cls.default_hops

    @classmethod
    def num_aggregations(cls, shape: ModelShape) -> int:
        """Return how many times in a row the model aggregates: how far a node sees."""
        return cls.steps_per_layer(shape) if cls.propagates_once else shape.num_layers

    @classmethod
    def aggregations_after_norms(cls, shape: ModelShape) -> int:
        """Return how many of the last aggregations come after all norms over nodes.

        Rows of these that nobody reads change nothing; of those before, they count in the
        statistics, and have gradients from there.
        """
        return 0 if shape.norm in NORMS_OVER_NODES else cls.num_aggregations(shape)

    @classmethod
    def num_feature_products(cls, shape: ModelShape) -> int:
        """Return how many times in a row the model aggregates the features as they are."""
        return 0

    @classmethod
    def check(cls, shape: ModelShape) -> None:
        """Raise an `InputError`, naming a remedy, when options do not fit each other."""
        del shape

    def edges_left_out(self, draw: DropoutKey | None) -> EdgeDraw | None:
        """Return what the attention of a layer leaves out: edges, and weights after the softmax."""
        return edge_draw(draw, self.shape.attention_dropout, self.shape.edge_dropout)

    @abstractmethod
    @collective
    def forward(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        """Return logits: (N, C), or those of the last active layer's output rows.

        `x_NF` are features of the local nodes, or of the first active layer's input rows. Without
        the draw of dropout masks, `key`, the model is evaluated.
        """

    @abstractmethod
    @collective
    def embed(self, graph: GraphView, x_NF: Tensor) -> Tensor:
        """Return the input of the last layer (N, H), without dropout."""


class HiddenModel(Model):
    """A model that computes the input of its last layer alike with dropout and without."""

    @abstractmethod
    @collective
    def last_input(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        """Return the input of the last layer (N, H); without `key` there is no dropout."""

    @collective
    @override
    def embed(self, graph: GraphView, x_NF: Tensor) -> Tensor:
        return self.last_input(graph, x_NF, None)
