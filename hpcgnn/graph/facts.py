"""Facts about the graph that a model is trained on, stored in checkpoints."""

import typing
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Self

import numpy as np

from hpcgnn.config.config import Config
from hpcgnn.config.run_features import trains_on_restricted_rows
from hpcgnn.errors import InputError, instead_of
from hpcgnn.nn import ModelShape, find_model
from hpcgnn.storage import FieldInfo, GraphStore, NodeBlock, NodeType


@dataclass(frozen=True, kw_only=True)
class Facts(ABC):
    """Facts about the training data, equal on all ranks and stored in checkpoints.

    `fingerprint` covers the store and the file of targets; a run resumes only if it is the same.
    """

    name: str
    fingerprint: str

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the facts in a checkpoint.

        Raises `InputError` if one is missing, unknown, or of another type.
        """
        hints = typing.get_type_hints(cls)
        built: dict[str, Any] = {}
        for name, value in values.items():
            hint = hints.get(name)
            if typing.get_origin(hint) is tuple and isinstance(value, list):
                kinds, built[name] = {type(part) for part in value}, tuple(value)
                hint = typing.get_args(hint)[0]
            else:
                kinds, built[name] = {type(value)}, value
            if not kinds <= {hint}:
                raise InputError(f"has {name} = {value!r} of its graph")
        # Older checkpoints lack facts that have defaults.
        for fact in fields(cls):
            if fact.default is MISSING and fact.name not in values:
                raise InputError(f"has no {fact.name} of its graph")
        return cls(**built)

    @property
    @abstractmethod
    def metric(self) -> str:
        """The metric for choosing the best model."""


@dataclass(frozen=True, kw_only=True)
class GraphFacts(Facts):
    """Sizes of the graph, equal on all ranks.

    `relations` are those that the model distinguishes. With node types, `num_features` is 0, and
    `type_features` has the features of each; `labelled_types` have labelled training nodes.
    `num_edge_features` is 0 unless the model reads them. In regression `targets` count as classes,
    and are scaled by `target_means` and `target_scales`; names of the `num_edge_outputs` columns
    predicted for edges follow those for nodes. `num_graphs` is 0 unless each graph is predicted as
    a whole. `directions` tells how the direction of each link was chosen, if links of an undirected
    graph are predicted; it is also empty in checkpoints of old versions, whose target was always
    the higher id. `units` of times and of the fields in use are NAME=UNIT each. `predicted` are the
    relations whose edges are predicted, in the order of the weights that the model has for each of
    several. Checkpoints of versions that did not store names of features, units or predicted
    relations have none.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    multi_label: bool
    directed: bool
    num_parts: int
    class_names: tuple[str, ...]
    relations: tuple[str, ...] = ()
    type_names: tuple[str, ...] = ()
    type_nodes: tuple[int, ...] = ()
    type_features: tuple[int, ...] = ()
    labelled_types: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    target_means: tuple[float, ...] = ()
    target_scales: tuple[float, ...] = ()
    num_edge_features: int = 0
    feature_names: tuple[str, ...] = ()
    edge_feature_names: tuple[str, ...] = ()
    num_edge_outputs: int = 0
    num_graphs: int = 0
    directions: str = ""
    units: tuple[str, ...] = ()
    step_length: float = 0.0
    inputs: tuple[str, ...] = ()
    predicted: tuple[str, ...] = ()

    def with_embeddings(self, width: int) -> "GraphFacts":
        """Return the facts of a model whose outputs are node embeddings of some width."""
        content: dict[str, Any] = {**vars(self), "multi_label": False, "num_classes": width}
        names: tuple[str, ...] = ()
        content |= {"class_names": names, "targets": names}
        return GraphFacts(**content | {"target_means": (), "target_scales": ()})

    @property
    def bare_types(self) -> tuple[int, ...]:
        """Numbers of the node types without features."""
        return tuple(t for t, width in enumerate(self.type_features) if width == 0)

    @property
    def outputs(self) -> str:
        """What a model of these facts computes for each node, as "3 classes"."""
        count = self.num_classes + self.num_edge_outputs
        return f"{count} {'targets' if self.targets else 'classes'}"

    @property
    def metric(self) -> str:
        """The metric for choosing the best model."""
        if self.targets:
            return "r2"
        return "micro_f1" if self.multi_label else "accuracy"


def node_types_of(config: Config, store: GraphStore) -> tuple[NodeType, ...]:
    """Return the node types for training.

    A graph without types and without features counts as one type without features, whose nodes have
    learned embeddings.
    """
    if store.node_types or _has_features(config, store):
        return store.node_types
    return (NodeType("node", store.num_nodes, 0, None),)


def _has_features(config: Config, store: GraphStore) -> bool:
    of_nodes = store.has_features or config.graph.num_structural > 0
    predicts = bool(config.fields.targets or config.fields.edge_targets)
    return of_nodes or (predicts and not store.node_types)


def typed_nodes(config: Config, store: GraphStore, nodes: NodeBlock) -> NodeBlock:
    """Return the nodes of a block with the types of `node_types_of`."""
    if store.node_types:
        return nodes
    none = np.empty((nodes.stop - nodes.start, 0), np.float32)
    if not _has_features(config, store):
        return replace(nodes, types=np.zeros(len(none), np.uint8), type_features=(none,))
    if nodes.features is None and nodes.sparse is None:
        return replace(nodes, features=none)
    return nodes


def check_features(config: Config, store: GraphStore) -> None:
    """Raise `InputError` with the possible remedies if the nodes have no inputs of any kind."""
    if not (_has_features(config, store) or store.node_types or config.model.embeddings):
        raise InputError(
            f"{store.path} has no node features: add some with hpcgnn convert --nodes FILE, derive "
            "them from the graph with graph.structure=degree, projection or spectral, or learn a "
            "vector for each node with model.embeddings=true"
        )


def chosen_fields(config: Config, store: GraphStore, *, of_edges: bool) -> list[FieldInfo]:
    """Return the fields of nodes or of edges that a run reads: targets, then other inputs.

    Raises `InputError` with the configuration key for a field that the store lacks.
    """
    options, kinds = config.fields, [("nodes", "", store.fields)]
    kinds.insert(not of_edges, ("edges", "edge_", store.edge_fields))
    (kind, prefix, known), (other_kind, other_prefix, others) = kinds
    for key in ("targets", "inputs"):
        for name in getattr(options, prefix + key):
            if name not in known:
                remedy = f"{name!r} is a field of {other_kind}: use fields.{other_prefix}{key}"
                if name not in others:
                    remedy = instead_of(name, known, f"hpcgnn inspect {store.path}")
                raise InputError(
                    f"fields.{prefix}{key}: {store.path} has no field {name!r} of {kind}; {remedy}"
                )
    return [known[name] for name in (options.edge_names if of_edges else options.names)]


def num_edge_features(config: Config, store: GraphStore) -> int:
    """Return how many columns of edge features the model reads, 0 if it reads none.

    Raises `InputError` if relations have different numbers of columns.
    """
    aggregations, by_position = find_model(config.model.name).aggregations, 0
    reads = any(a.passes_messages for a in aggregations) or config.reads_edges
    if config.graph.positions == "relative":
        by_position = len(store.box) + 1
    if not reads:
        return 0
    known = {info.name: info for info in chosen_fields(config, store, of_edges=True)}
    moving = sum(known[name].num_columns for name in config.fields.read_of_edges)
    moving *= config.fields.history
    relations = config.graph.relations or store.relations
    # Custom messages need no stored features: their edges have features of width 0.
    stored = stored_edge_features(store, relations, "choose graph.relations with equal ones")
    return stored + by_position + moving


def stored_edge_features(store: GraphStore, relations: Iterable[str], remedy: str) -> int:
    """Return the number of features of an edge of any of `relations`.

    Raises `InputError` with the `remedy` if they have different numbers.
    """
    widths = {relation: store.edge_features(relation)[0] for relation in relations}
    if len(set(widths.values())) > 1:
        shown = ", ".join(f"{relation} {width}" for relation, width in widths.items())
        raise InputError(
            f"{store.path}: relations have unequal numbers of edge features ({shown}); {remedy}"
        )
    return next(iter(widths.values()))


def restricted_aggregations(config: Config, shape: ModelShape) -> int:
    """Return how many of a model's last aggregations are restricted to rows that the loss needs."""
    model = find_model(config.model.name)
    if trains_on_restricted_rows(config):
        return model.num_aggregations(shape)
    if config.exchange.active_sets is False:
        return 0
    return model.aggregations_after_norms(shape)


def shape_for(config: Config, facts: GraphFacts) -> ModelShape:
    """Return the sizes and options of the configuration's model for a graph.

    Raises `InputError` if options of the model do not fit the graph.
    """
    model = config.model
    label_width = facts.num_classes if config.train.label_augmentation > 0 else 0
    shape = model.shape(
        num_features=0 if facts.type_names else facts.num_features + label_width,
        num_classes=(
            config.graphs.width or model.hidden if facts.num_graphs else facts.num_classes
        ),
        num_relations=max(len(facts.relations), 1),
        num_edge_features=facts.num_edge_features,
        num_edge_outputs=facts.num_edge_outputs,
        type_features=tuple(
            width + label_width * (name in facts.labelled_types)
            for name, width in zip(facts.type_names, facts.type_features, strict=True)
        ),
    )
    find_model(model.name).check(shape)
    return shape
