"""Models from torch_geometric modules whose layers run on operators of this package."""

from collections.abc import Hashable, Mapping
from functools import cache
from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.errors import InputError
from hpcgnn.nn.model import UNKNOWN, GraphView, LayerView, ModelShape, weights_from_seed
from hpcgnn.nn.models.pyg import SIZES, ModuleModel, derived
from hpcgnn.operator import Aggregation
from hpcgnn.pyg import (
    Call,
    EdgePlaceholder,
    RowShare,
    builtin_layers,
    distributed,
    mark,
    prepare,
)
from hpcgnn.spmd import collective
from hpcgnn.support import Reasons, Trait
from hpcgnn.typing import Array, GlobalIndices

_LACKS: Reasons = {
    **UNKNOWN,
    Trait.LAYER_VIEWS: "its module may join any rows",
    Trait.SIXTEEN_BITS: "its module is torch's, which computes in the type of its weights",
    Trait.INTEGER_PRODUCTS: "its module is torch's, which multiplies by itself",
    Trait.GPU: "its module runs on CPUs only",
    Trait.EDGE_WEIGHTS: "its layers are called without weights",
}


class _Views(RowShare):
    """The rows of a rank, and the views for the layers of a module, in order."""

    kinds: tuple[Hashable, Hashable] = (None, None)

    def __init__(self, graph: GraphView) -> None:
        self._graph, self._next = graph, 0
        first = graph.layer(0)
        self._ids, self._sums = first.node_ids, graph.sums

    @property
    def types(self) -> Mapping[Hashable, GlobalIndices]:  # type: ignore[override]
        """The ids of the rows of the last layer's output, at first those of the features."""
        return {None: self._ids}

    def view(self, kind: Aggregation, call: Call) -> LayerView:
        """Return the view for the next layer."""
        if self._graph.active and self._next >= len(self._graph.active):
            raise InputError("model.name: its module aggregates more often than it has layers")
        view = self._graph.layer(self._next)
        if kind not in view.operators or not isinstance(call.edges, EdgePlaceholder):
            raise InputError(
                f"model.name: a layer aggregates by {kind.value}, which the class of the module "
                "does not with its defaults"
            )
        if kind.by_relation and call.num_relations != len(view.relation_rows):
            raise InputError(
                f"model.name: a layer has {call.num_relations} relations; the graph has "
                f"{len(view.relation_rows)}"
            )
        self._next, self._ids, self._sums = self._next + 1, view.output_ids, view.sums
        return view

    @collective
    @override
    def sums(self, array: Array) -> None:
        self._sums(array)

    @collective
    @override
    def maxima(self, array: Array) -> None:
        raise InputError(
            "model.name: its module takes maxima over the nodes of all ranks; use 'pyg:' in front"
        )


class OperatorModel(ModuleModel):
    """A module whose message-passing layers all run on operators, see `builtin_layers`.

    It is called with rows of nodes (N, F), a placeholder for edges and, if it has the argument
    ``edge_type``, one for their types, and returns logits (N, C). In directed graphs it reads
    in-edges.
    """

    lacks = _LACKS
    sizes: ClassVar[Mapping[str, str]] = {
        **SIZES,
        "num_relations": "num_relations",
        "num_bases": "num_bases",
    }

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__(shape, directed=directed)
        if directed and Aggregation.SYMMETRIC in self.aggregations:
            raise InputError(
                "model.name: GCNConv scales both ends of a directed edge by in-degrees, and "
                "symmetric aggregation does not; set graph.undirected=true, or use 'pyg:' in front"
            )

    @override
    def prepare(self) -> None:
        self._views: _Views | None = None
        prepare(self.module, self._view_of)

    def _view_of(self, kind: Aggregation, call: Call) -> LayerView:
        assert self._views is not None
        return self._views.view(kind, call)

    @classmethod
    @override
    def num_aggregations(cls, shape: ModelShape) -> int:
        return len(builtin_layers(_module(cls, shape)))

    @classmethod
    @override
    def aggregations_after_norms(cls, shape: ModelShape) -> int:
        module = _module(cls, shape)
        norms = getattr(module, "norms", None)
        # The flow of rows is known only for torch_geometric's layer-by-layer models.
        known = type(module).forward.__module__.startswith("torch_geometric.nn.models.basic_gnn")
        if not known or norms is None or getattr(module, "jk_mode", None) is not None:
            return 0
        by_row = all(_is_by_row(norm) for norm in norms)
        return len(builtin_layers(module)) if by_row else 1

    @collective
    @override
    def forward(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        share = self._views = _Views(graph)
        self.module.train(key is not None)
        edges = EdgePlaceholder.of(share)
        arguments = {"edge_type": edges} if "edge_type" in self._reads else {}
        mark(x_NF, 0)
        try:
            with distributed(share, key):
                out: Tensor = self.module(x_NF, edges, **arguments)
        finally:
            self._views = None
        return self.checked(out, share.num_nodes())


def _is_by_row(norm: nn.Module) -> bool:
    if type(norm).__name__ == "LayerNorm":
        return getattr(norm, "mode", "node") == "node"
    return isinstance(norm, nn.Identity)


def _module(model: type[ModuleModel], shape: ModelShape) -> nn.Module:
    """Return a module of a shape, for inspection."""
    with weights_from_seed(0):
        return model(shape, directed=False).module


@cache
def operator_model_of(kind: type[nn.Module]) -> type[OperatorModel]:
    """Return the model of a class of modules; see `hpcgnn.nn.models.pyg.derived`.

    Its aggregations are those of a small module with the default options.

    Raises `InputError` if a message-passing layer has no equal, or if there is no such layer.
    """
    model = derived(kind, OperatorModel)
    own = dict(model.own_options)
    small = ModelShape(num_features=8, num_classes=8, hidden=8, num_layers=2, heads=1, own=own)
    try:
        module = _module(model, small)
    except Exception as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"model.name: {kind.__name__} raises {type(error).__name__}: {error}"
        ) from error
    layers = builtin_layers(module)
    others = {type(layer).__name__ for layer in module.modules() if hasattr(layer, "propagate")}
    others -= {type(layer).__name__ for layer, _ in layers}
    if others or not layers:
        raise InputError(
            f"model.name: of the layers of {kind.__name__} {', '.join(sorted(others)) or 'none'} "
            "runs on operators; use 'pyg:' in front"
        )
    kinds = {own.kind: None for _, own in layers}
    return type(kind.__name__, (model,), {"aggregations": tuple(kinds), "lacks": _LACKS})
