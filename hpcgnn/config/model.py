"""The configuration's section on the model."""

from dataclasses import dataclass, field, fields
from types import GenericAlias
from typing import Any

from hpcgnn.autograd import ACTIVATIONS
from hpcgnn.config.options import (
    Chance,
    Count,
    Natural,
    Share,
    check_values,
    choice,
    known,
    option,
    typed,
)
from hpcgnn.errors import InputError
from hpcgnn.nn import (
    EDGE_READER,
    JUMPING,
    MODELS,
    NORMS,
    NORMS_OVER_NODES,
    ModelShape,
    find_model,
)
from hpcgnn.support import NOT_WRITTEN, Trait, Traits, lacks, needs, union

_MODEL_SIZES = (
    "name",
    "hidden",
    "num_layers",
    "dropout",
    "input_dropout",
    "input_width",
    "embeddings",
    "options",
)
_NO_SIZES = ("name", "embeddings", "edge_features", "options")
"""Options that are not passed on as sizes; what nodes and edges have depends on the graph."""

_DROPS_EDGES = lacks({Trait.EQUAL_BITS: "each rank draws it for its own edges"})


def _traits_of_model(name: str) -> Traits:
    # Whatever a user's model declares, export knows the layers of `MODELS` alone.
    return union(find_model(name).traits(), lacks({} if name in MODELS else NOT_WRITTEN))


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The model and its sizes."""

    name: str = option(
        "sage",
        f"{', '.join(MODELS)}, or package.module:Class for your own model",
        values=tuple(MODELS),
        traits=_traits_of_model,
    )
    hidden: Count = option(128, "width of hidden layers")
    num_layers: Count = option(2, "number of layers")
    dropout: Chance = option(0.5, "probability, for the input of every layer but the first")
    input_dropout: Chance = option(
        0.0, "probability, for the features; with node types, for the output of input layers"
    )
    input_width: Natural = option(
        0,
        "width of the input layers of node types; 0: model.hidden",
        traits=needs(Trait.NODE_TYPES),
    )
    embeddings: bool = option(
        False,
        "learn a vector for each node of types without features",
        traits=needs(
            Trait.ONE_GRAPH,
            Trait.NODE_VECTORS,
            Trait.BARE_NODES,
            lacks={Trait.SOME_EDGES: "a node that comes later has no vector"},
        ),
    )
    norm: str = option(
        "none",
        "normalisation of every hidden layer: none, batch, layer, or graph (each graph separately "
        "if graphs are predicted)",
        values=tuple(NORMS),
        traits=dict.fromkeys(
            NORMS_OVER_NODES,
            lacks({Trait.GROUP_STATISTICS: "its statistics are of all samples of a step"}),
        ),
    )
    activation: str = option(
        "relu", f"between layers: {', '.join(ACTIVATIONS)}", values=tuple(ACTIVATIONS)
    )
    residual: bool = option(False, "add a layer's own input to its output, before the norm")
    jumping: str = option(
        "none",
        "none; concat or max: a linear map of all layers' outputs gives the logits",
        values=JUMPING,
    )
    heads: Count = option(1, "attention heads of a layer")
    attention_dropout: Chance = option(
        0.0, "probability, for the coefficient of an edge and head", traits=_DROPS_EDGES
    )
    edge_dropout: Chance = option(
        0.0, "probability, for an edge before the softmax", traits=_DROPS_EDGES
    )
    edge_features: bool = option(
        False,
        "attention, or messages, read the stored features of edges",
        traits=union(EDGE_READER, needs(Trait.EDGE_FEATURES, Trait.STORED_EDGE_FEATURES)),
    )
    hops: Natural = option(0, "aggregations in a layer that has several; 0: the model's default")
    teleport: Share = option(0.1, "share of the first rows in each propagation step, in [0, 1]")
    num_bases: Natural = option(
        0, "basis matrices for the weights of relations; 0: each relation has its own"
    )
    options: dict[str, Any] = field(
        default_factory=dict,
        metadata={"meaning": "table of the options that your own model declares"},
    )

    def __post_init__(self) -> None:
        if ":" not in self.name:
            choice("model.name", self.name, (*MODELS, "MODULE:CLASS"))
        kind = find_model(self.name)
        self._check_heeded()
        check_values("model", self, but=("name",))
        # The number of relations is unknown here; it is checked when the graph is read.
        bases = max(self.num_bases, 1)
        shape = self.shape(num_features=1, num_classes=1, num_relations=bases)
        kind.check(shape)

    def shape(
        self,
        *,
        num_features: int,
        num_classes: int,
        num_relations: int = 1,
        type_features: tuple[int, ...] = (),
        num_edge_features: int = 0,
        num_edge_outputs: int = 0,
    ) -> ModelShape:
        """Return the sizes and options of the model on a graph with these sizes."""
        names = [key.name for key in fields(self) if key.name not in _NO_SIZES]
        options = {name: getattr(self, name) for name in names}
        return ModelShape(
            num_features=num_features,
            num_classes=num_classes,
            num_relations=num_relations,
            type_features=type_features,
            num_edge_features=num_edge_features,
            num_edge_outputs=num_edge_outputs,
            own=self.own_options(),
            **options,
        )

    def own_options(self) -> dict[str, Any]:
        """Return the options that the model's class declares, by default with their defaults.

        Raises `InputError` if an option is not declared, naming the nearest, or has another type
        than its default.
        """
        declared = find_model(self.name).own_options
        if self.options and not declared:
            raise InputError(f"model.options: {self.name} has no options of its own; leave it out")
        options = {}
        for key, value in self.options.items():
            known(key, declared, f"key in [model.options] of {self.name}")
            options[key] = typed(f"model.options.{key}", value, _hint(declared[key]))
        return {**declared, **options}

    def _check_heeded(self) -> None:
        """Refuse an option that the model would ignore."""
        heeded = {*_MODEL_SIZES, *find_model(self.name).options}
        for key in fields(self):
            value = getattr(self, key.name)
            if key.name not in heeded and value != key.default:
                models = [name for name, kind in MODELS.items() if key.name in kind.options]
                raise InputError(
                    f"model.{key.name} = {value!r}: {self.name} has no such option; leave it out, "
                    f"or choose model.name = {' or '.join(models)}"
                )


def _hint(default: Any) -> Any:
    """Return the type of values that replace a default."""
    return GenericAlias(tuple, type(default[0])) if isinstance(default, tuple) else type(default)
