"""Models from a user's modules written for one process, such as those of torch_geometric."""

import inspect
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.errors import InputError
from hpcgnn.nn.model import UNKNOWN, GraphView, Model, ModelShape
from hpcgnn.operator import Aggregation
from hpcgnn.pyg import EdgeShare, distributed, mark, prepare
from hpcgnn.spmd import collective
from hpcgnn.support import Reasons, Trait

SIZES: Mapping[str, str] = {
    "in_channels": "first_width",
    "hidden_channels": "hidden",
    "out_channels": "num_classes",
    "num_layers": "num_layers",
    "dropout": "dropout",
    "heads": "heads",
    "edge_dim": "num_edge_features",
}
"""Arguments of torch_geometric's constructors -> fields of `ModelShape`."""

_LACKS: Reasons = {
    **UNKNOWN,
    Trait.CHOSEN_STATISTICS: "its module may average any rows",
    Trait.LAYER_VIEWS: "its module is called with all rows",
    Trait.REPLICAS: "its module runs once for each block row",
    Trait.SIXTEEN_BITS: "its module is torch's, which computes in the type of its weights",
    Trait.INTEGER_PRODUCTS: "its module is torch's, which multiplies by itself",
    Trait.ROUNDED_ROWS: "its edge ids travel as rows",
    Trait.MOVING_EDGES: "its module reads the store's edge features",
}


class ModuleModel(Model):
    """A module that is called with rows of nodes (N, F) and edges (2, E) and returns logits (N, C).

    Edges are `hpcgnn.pyg.Edges`. If the store has edge features, a module whose ``forward`` has the
    argument ``edge_attr`` gets them (E, F), and one with ``edge_weight`` gets the only column.
    """

    aggregations = (Aggregation.MESSAGES,)
    lacks = _LACKS
    averages_rows = True
    made_of: ClassVar[type[nn.Module]]
    """The class of the module."""
    sizes: ClassVar[Mapping[str, str]] = SIZES

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__(shape, directed=directed)
        self.module = self.made_of(**_arguments(type(self), shape))
        if any(isinstance(weight, UninitializedParameter) for weight in self.module.parameters()):
            raise InputError(
                f"model.name: {self.made_of.__name__} has layers without sizes; give them all"
            )
        self.prepare()
        self._reads = inspect.signature(self.module.forward).parameters
        self._shares: WeakKeyDictionary[Any, EdgeShare] = WeakKeyDictionary()

    def prepare(self) -> None:
        """Prepare the module to run over ranks."""
        prepare(self.module)

    @classmethod
    @override
    def aggregations_after_norms(cls, shape: ModelShape) -> int:
        # Its layers may read any rows.
        return 0

    @collective
    @override
    def forward(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        if graph.active:
            raise InputError(f"{self.made_of.__name__} is called with all rows; train on them")
        share = self._share(graph)
        self.module.train(key is not None)
        edge_arguments = self._of_edges(share, x_NF)
        for rows in (x_NF, *edge_arguments.values()):
            mark(rows, 0)
        with distributed(share, key):
            out: Tensor = self.module(x_NF, share.index, **edge_arguments)
        return self.checked(out, len(x_NF))

    def checked(self, out: Tensor, num_rows: int) -> Tensor:
        """Return the output of the module; raises `InputError` if it is not rows of logits."""
        if out.shape != (num_rows, self.shape.num_classes):
            raise InputError(
                f"model.name: {self.made_of.__name__} gives {tuple(out.shape)}, not (nodes, "
                f"classes) = {(num_rows, self.shape.num_classes)}"
            )
        return out

    @collective
    @override
    def embed(self, graph: GraphView, x: Any) -> Tensor:
        raise InputError(
            f"{self.made_of.__name__} is a user's module, whose last layer is not known; predict "
            "probabilities"
        )

    def _share(self, graph: GraphView) -> EdgeShare:
        operator = graph.edges.operator
        if operator not in self._shares:
            self._shares[operator] = EdgeShare.of(operator, graph.node_ids)
        return self._shares[operator]

    def _of_edges(self, share: EdgeShare, x: Tensor) -> dict[str, Tensor]:
        width = self.shape.num_edge_features
        if not width:
            return {}
        features = share.features.to(x.dtype)
        if "edge_attr" in self._reads and getattr(self.module, "supports_edge_attr", True):
            return {"edge_attr": features}
        if "edge_weight" in self._reads and width == 1:
            return {"edge_weight": features[:, 0]}
        raise InputError(
            f"model.name: {self.made_of.__name__} reads no edge_attr, but the store has {width} "
            "features for each edge; convert the graph without them"
        )


def _arguments(model: type[Model], shape: ModelShape) -> dict[str, Any]:
    """Return the arguments for the constructor of a module."""
    assert issubclass(model, ModuleModel)
    arguments = {name: shape.own[name] for name in model.own_options}
    # An empty string stands for None.
    arguments = {name: None if value == "" else value for name, value in arguments.items()}
    for name, size in model.sizes.items():
        if _takes(model.made_of, name):
            arguments[name] = getattr(shape, size)
    if not shape.num_edge_features:
        arguments.pop("edge_dim", None)
    return arguments


def _takes(module_type: type[nn.Module], name: str) -> bool:
    parameters = inspect.signature(module_type).parameters
    passed_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if name == "edge_dim" and passed_on:
        return bool(getattr(module_type, "supports_edge_attr", False))
    return name in parameters


@cache
def model_of(module_type: type[nn.Module]) -> type[ModuleModel]:
    """Return the model of a class of modules; see `derived`."""
    return derived(module_type, ModuleModel)


_ModelT = TypeVar("_ModelT", bound=ModuleModel)


def derived(module_type: type[nn.Module], base: type[_ModelT]) -> type[_ModelT]:
    """Return the model of a class of modules, derived from `base`.

    Its options are the arguments of the constructor whose defaults are numbers, strings or
    booleans, or None for a string.

    Raises `InputError` if the constructor has other required arguments.
    """
    parameters = inspect.signature(module_type).parameters.values()
    own: dict[str, Any] = {}
    for option in parameters:
        if option.name in base.sizes or option.kind in (option.VAR_KEYWORD, option.VAR_POSITIONAL):
            continue
        if isinstance(option.default, (bool, int, float, str)):
            own[option.name] = option.default
        elif option.default is None and "str" in str(option.annotation):
            own[option.name] = ""
        elif option.default is option.empty:
            raise InputError(
                f"model.name: {module_type.__name__} needs {option.name!r}, which no key sets; "
                f"write a class whose constructor takes {', '.join(base.sizes)}, and others with "
                "defaults"
            )
    options = frozenset({"heads"} if _takes(module_type, "heads") else ())
    space = {"made_of": module_type, "own_options": MappingProxyType(own), "options": options}
    return type(module_type.__name__, (base,), {**space, "lacks": base.lacks})
