"""What is exported, and what its counterpart in another library is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.inputs import FeatureScale
from hpcgnn.nn import Model, ModelShape

Tensors: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class Blueprint:
    """A trained model, and what its rows and edges go through before its first layer.

    Parameters
    ----------
    name, kind
        ``model.name`` and its class.
    facts
        Of the graph that it was trained on.
    tensors
        Parameters and buffers under the names of `hpcgnn.nn`, without those of input layers.
    inputs
        Those of the input layers of node types, under their names.
    reverses
        Whether each relation has its reverse as a relation of its own.
    normalize
        ``graph.normalize_features``.
    scale
        Of standardised features.
    num_label_columns
        Columns of labels behind the features.
    origin
        Words that tell where it comes from.
    """

    name: str
    kind: type[Model]
    shape: ModelShape
    facts: GraphFacts
    tensors: Tensors
    inputs: Tensors
    weighted: bool
    reverses: bool
    normalize: str
    scale: FeatureScale | None
    num_label_columns: int
    origin: str

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

    def layer(self, member: str, place: int) -> dict[str, Tensor]:
        """Return the tensors of one of several layers, under the names that it has for them."""
        return under(f"{member}.{place}.", self.tensors)


@dataclass(frozen=True, eq=False)
class LayerSource:
    """A graph layer of a model: its number, its widths, whether others follow, its tensors."""

    number: int
    in_width: int
    out_width: int
    hidden: bool
    tensors: dict[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]


MadeLayer: TypeAlias = tuple[str, Tensors]
"""The expression that makes a layer, and its tensors under its own names."""


@dataclass(frozen=True, eq=False)
class Layers:
    """The counterparts of the graph layers of a model, as source.

    Parameters
    ----------
    call
        The result of a layer: an expression of ``layer``, its number ``place``, the rows ``x``, and
        of what stands in `prepared`. Of models that propagate otherwise see `hpcgnn.export.body`.
    edges
        Forms of the edges that it needs, see `edge_source`.
    members
        Lists of modules by name, those of ``layers`` being ``layer`` in the call.
    modules
        Single modules without tensors: the expressions that make them.
    last_call
        The call of a last layer that ends otherwise than hidden ones.
    prepared
        Lines that run once, behind those of `edge_source`.
    imports
        Names by the module that has them.
    classes
        Source of classes and functions that the library lacks.
    """

    call: str
    edges: tuple[str, ...]
    members: Mapping[str, Callable[[LayerSource], MadeLayer]] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    last_call: str = ""
    prepared: tuple[str, ...] = ()
    imports: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()


def under(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
