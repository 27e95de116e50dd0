"""Run torch_geometric layers that equal a built-in layer on that layer's operators.

The table `OWN` maps a layer to the aggregation that it uses and a function that computes it. The
functions read the layer's own parameters, so it trains, is saved and is loaded as usual.

Shapes: N input rows, F input columns.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.parameter import UninitializedParameter

from hpcgnn.attention import AdditiveScores, AttentionOperator, DynamicScores
from hpcgnn.autograd import (
    DropoutKey,
    Heads,
    ProductHeads,
    aggregate,
    attend,
    attend_products,
    edge_draw,
    graph_linear,
    relation_linear,
)
from hpcgnn.errors import InputError
from hpcgnn.kernels import EdgeDraw
from hpcgnn.operator import Aggregation, AggregationOperator
from hpcgnn.pyg.edges import Index
from hpcgnn.pyg.row_axis import axis_of, mark
from hpcgnn.spmd import collective
from hpcgnn.typing import LocalIndices


class View(Protocol):
    """The operators of a layer, as `hpcgnn.nn.LayerView` has them."""

    @property
    def operators(self) -> Mapping[Aggregation, AggregationOperator]:
        """The operators from input rows to output rows."""

    @property
    def relation_rows(self) -> tuple[LocalIndices, ...]:
        """The output rows of the rows of aggregations by relation."""

    def own(self, x: Tensor) -> Tensor:
        """Return the input rows of the output nodes."""


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of a layer's call: rows (N, F), edges with their types, and dropout."""

    x: Tensor
    edges: Index
    types: Tensor | None
    num_relations: int
    draw: EdgeDraw | None = None


ViewOf: TypeAlias = Callable[[Aggregation, Call], View]
"""Returns the operators for a call of a layer. Collective."""


@dataclass(frozen=True, eq=False)
class OwnLayer:
    """How a layer runs on operators.

    `run` computes the rows of a layer from its operators and its call. `options` maps attributes of
    the layer to the values that are supported. `then` names the layer's submodule, if any, that is
    applied to the result.
    """

    kind: Aggregation
    run: Callable[[Any, View, Call], Tensor]
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    then: str = ""


def _gcn(layer: Any, view: View, call: Call) -> Tensor:
    operator = view.operators[Aggregation.SYMMETRIC]
    return graph_linear([operator], call.x, [layer.lin.weight], bias=layer.bias)


def _sage(layer: Any, view: View, call: Call) -> Tensor:
    x, operator = call.x, view.operators[Aggregation.MEAN_IN]
    root = [(view.own(x), layer.lin_r.weight)] if layer.root_weight else []
    sources = layer.lin(x).relu() if layer.project else x
    last = layer.lin_l
    out = graph_linear([operator], sources, [last.weight], own=root, bias=last.bias)
    return normalize(out, dim=-1) if layer.normalize else out


def _gin(layer: Any, view: View, call: Call) -> Tensor:
    sums = aggregate(view.operators[Aggregation.SUM_IN], call.x)
    return sums + (1 + layer.eps) * view.own(call.x)


def _gat(layer: Any, view: View, call: Call) -> Tensor:
    targets, weight = view.own(call.x), layer.lin.weight
    by_head = weight.view(layer.heads, layer.out_channels, -1)
    target_map = torch.einsum("hdf,hd->hf", by_head, layer.att_dst[0])
    scores = partial(AdditiveScores, slope=layer.negative_slope, width=layer.out_channels)
    operator = cast("AttentionOperator", view.operators[Aggregation.ATTENTION])
    heads = Heads(operator, scores, average=not layer.concat, draw=call.draw)
    bias = _bias(layer, weight)
    out = attend(call.x, weight, targets, target_map, layer.att_src[0], bias, heads)
    return out if layer.res is None else out + layer.res(targets)


def _gatv2(layer: Any, view: View, call: Call) -> Tensor:
    targets = view.own(call.x)
    # The bias of sources is part of the messages, so dropout of edges applies to it too.
    sources, projection = _affine(call.x, layer.lin_l)
    rows, target_map = _affine(targets, layer.lin_r)
    scores = partial(DynamicScores, slope=layer.negative_slope, width=layer.out_channels)
    operator = cast("AttentionOperator", view.operators[Aggregation.ATTENTION])
    heads = Heads(operator, scores, average=not layer.concat, draw=call.draw)
    bias = _bias(layer, projection)
    out = attend(sources, projection, rows, target_map, layer.att[0], bias, heads)
    return out if layer.res is None else out + layer.res(targets)


def _affine(x: Tensor, layer: Any) -> tuple[Tensor, Tensor]:
    """Return rows and a weight whose product is a linear layer's output, with bias as a column."""
    if layer.bias is None:
        return x, layer.weight
    ones = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
    return ones, torch.cat([layer.weight, layer.bias[:, None]], dim=1)


def _bias(layer: Any, weight: Tensor) -> Tensor:
    width = layer.out_channels * (layer.heads if layer.concat else 1)
    return weight.new_zeros(width) if layer.bias is None else layer.bias


def _transformer(layer: Any, view: View, call: Call) -> Tensor:
    x, targets, by_head = call.x, view.own(call.x), (-1, layer.heads, layer.out_channels)
    pairs = torch.cat([layer.lin_key(x).view(by_head), layer.lin_value(x).view(by_head)], dim=2)
    queries = layer.lin_query(targets) * layer.out_channels**-0.5
    operator = cast("AttentionOperator", view.operators[Aggregation.ATTENTION_IN])
    heads = ProductHeads(operator, call.draw)
    nothing = queries.new_empty(layer.heads, 0)
    out, _ = attend_products(pairs.flatten(1), queries, nothing, heads)
    if not layer.concat:
        out = out.view(by_head).mean(dim=1)
    if not layer.root_weight:
        return out
    skipped = layer.lin_skip(targets)
    if layer.lin_beta is None:
        return out + skipped
    share = layer.lin_beta(torch.cat([out, skipped, out - skipped], dim=-1)).sigmoid()
    return share * skipped + (1 - share) * out


def _rgcn(layer: Any, view: View, call: Call) -> Tensor:
    root, weights = view.own(call.x), layer.weight
    if layer.num_bases is not None:
        weights = torch.einsum("rb,bfo->rfo", layer.comp, weights)
    # Always use new memory, since the relations add to it in place.
    rows = root.new_zeros(len(root), layer.out_channels)
    rows = rows if layer.root is None else rows + root @ layer.root
    rows = rows if layer.bias is None else rows + layer.bias
    operator = view.operators[Aggregation.MEAN_BY_RELATION]
    return relation_linear(operator, view.relation_rows, call.x, weights, rows)


_SUMS = {"aggr": ("add", "sum")}
_ATTENDS = _SUMS | {"add_self_loops": (True,), "edge_dim": (None,)}
_BY_RELATION = OwnLayer(
    Aggregation.MEAN_BY_RELATION, _rgcn, {"aggr": ("mean",), "num_blocks": (None,)}
)

OWN: Mapping[str, OwnLayer] = {
    "GCNConv": OwnLayer(
        Aggregation.SYMMETRIC,
        _gcn,
        _SUMS | {"improved": (False,), "normalize": (True,), "add_self_loops": (True,)},
    ),
    "SAGEConv": OwnLayer(Aggregation.MEAN_IN, _sage, {"aggr": ("mean",)}),
    "GINConv": OwnLayer(Aggregation.SUM_IN, _gin, _SUMS, then="nn"),
    "GATConv": OwnLayer(Aggregation.ATTENTION, _gat, _ATTENDS | {"lin_src": (None,)}),
    "GATv2Conv": OwnLayer(Aggregation.ATTENTION, _gatv2, _ATTENDS),
    "TransformerConv": OwnLayer(
        Aggregation.ATTENTION_IN, _transformer, _SUMS | {"edge_dim": (None,)}
    ),
    "RGCNConv": _BY_RELATION,
    "FastRGCNConv": _BY_RELATION,
}
"""Class name in torch_geometric -> how the layer runs on operators."""


def builtin_layers(module: nn.Module) -> list[tuple[nn.Module, OwnLayer]]:
    """Return the layers of a module that run on operators, each with its `OwnLayer`.

    Raises `InputError` if one of them has an unsupported option, or has no sizes yet.
    """
    pairs = []
    for path, layer in module.named_modules():
        name, options = type(layer).__name__, layer.__dict__
        if name not in OWN or not type(layer).__module__.startswith("torch_geometric."):
            continue
        own = OWN[name]
        for key, values in {**own.options, "flow": ("source_to_target",)}.items():
            value = options.get(key, layer._modules.get(key))
            if value not in values:
                raise InputError(
                    f"{name} ({path or 'module'}): {key} = {value} has no equal among the layers "
                    "of hpcgnn; run the module without kernels"
                )
        if any(isinstance(parameter, UninitializedParameter) for parameter in layer.parameters()):
            raise InputError(
                f"{name} ({path or 'module'}) has no sizes before its first call; give in_channels"
            )
        pairs.append((layer, own))
    return pairs


def run_on_operators(
    module: nn.Module, view_of: ViewOf, draws: Callable[[], DropoutKey | None]
) -> None:
    """Make the layers of a module that have an equal run on operators; see `builtin_layers`.

    `draws` returns the key of the next dropout of coefficients.
    """
    for layer, own in builtin_layers(module):
        if isinstance(layer.forward, partial):
            # Of an earlier call.
            del layer.forward
        # torch calls an attribute of the instance in place of its class's method.
        layer.forward = partial(_run, layer, own, inspect.signature(layer.forward), view_of, draws)


@collective
def _run(
    layer: Any,
    own: OwnLayer,
    signature: inspect.Signature,
    view_of: ViewOf,
    draws: Callable[[], DropoutKey | None],
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    call = _call(layer, own, signature.bind(*args, **kwargs).arguments, draws)
    aggregation = own.kind
    with torch._C.DisableTorchFunction():
        rows = own.run(layer, view_of(aggregation, call), call)
    rows = mark(rows, 0)
    return getattr(layer, own.then)(rows) if own.then else rows


def _call(
    layer: Any,
    own: OwnLayer,
    arguments: dict[str, Any],
    draws: Callable[[], DropoutKey | None],
) -> Call:
    name, x, edges = type(layer).__name__, arguments.pop("x"), arguments.pop("edge_index")
    types = arguments.pop("edge_type", None)
    for key, value in arguments.items():
        if value is not None:
            raise InputError(f"{name}: on operators of hpcgnn it takes no {key}; leave it out")
    if not isinstance(x, Tensor) or x.dim() != 2 or axis_of(x) != 0 or not x.is_floating_point():
        raise InputError(
            f"{name}: on operators of hpcgnn it takes rows (nodes, columns) of one type of nodes"
        )
    if not isinstance(edges, Index):
        raise InputError(f"{name}: on operators of hpcgnn it takes the edges of the graph")
    draw = None
    if getattr(layer, "dropout", 0.0) and layer.training:
        draw = edge_draw(draws(), layer.dropout, 0.0)
    relations = layer.num_relations if own.kind.by_relation else 1
    return Call(x, edges, types, relations, draw)
