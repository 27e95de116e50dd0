"""Layers of exported models as torch_geometric has them; entries of matrices are given to them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from hpcgnn.errors import InputError
from hpcgnn.export.blueprint import Blueprint, Layers, LayerSource, MadeLayer

_NN = "torch_geometric.nn"


def refuse_directed(model: Blueprint, layer: str) -> None:
    """Raise `InputError` where a library's layer cannot tell two directions of edges apart."""
    if model.directed:
        raise InputError(
            f"{model.name} on directed edges: {layer} has no weights for a second direction; "
            "export --to torch"
        )


def refuse_weighted(model: Blueprint, layer: str) -> None:
    """Raise `InputError` where a library's layer takes no weights of edges."""
    if model.weighted:
        raise InputError(
            f"{model.name} with weights of edges: {layer} takes none; export --to torch"
        )


def _gcn(model: Blueprint) -> Layers:
    del model

    def layer(at: LayerSource) -> MadeLayer:
        source = f"GCNConv({at.in_width}, {at.out_width}, normalize=False)"
        return source, {"lin.weight": at["linear.weight"], "bias": at["bias"]}

    call = "layer(x, edges, weights)"
    return Layers(call, ("symmetric",), {"layers": layer}, imports={_NN: "GCNConv"})


def _sage(model: Blueprint) -> Layers:
    weighted, directed = model.weighted, model.directed

    def layer(at: LayerSource) -> MadeLayer:
        widths, near = f"{at.in_width}, {at.out_width}", at["neighbours.0"]
        if weighted:
            names = {"lin_rel.weight": near, "lin_rel.bias": at["own.bias"]}
            return f"GraphConv({widths})", {**names, "lin_root.weight": at["own.weight"]}
        names = {"lin_l.weight": near, "lin_l.bias": at["own.bias"]}
        return f"SAGEConv({widths})", {**names, "lin_r.weight": at["own.weight"]}

    def back(at: LayerSource) -> MadeLayer:
        widths, far = f"{at.in_width}, {at.out_width}", at["neighbours.1"]
        if weighted:
            return f"GCNConv({widths}, normalize=False, bias=False)", {"lin.weight": far}
        return f"SAGEConv({widths}, root_weight=False, bias=False)", {"lin_l.weight": far}

    arguments, name = (", weights", "GraphConv") if weighted else ("", "SAGEConv")
    call = f"layer(x, edges{arguments})"
    if directed:
        call += f" + self.back_layers[place](x, edges.flip(0){', back' * weighted})"
    return Layers(
        call,
        ("mean", "mean_back")[: 1 + directed] if weighted else (),
        {"layers": layer, "back_layers": back} if directed else {"layers": layer},
        imports={_NN: f"GCNConv, {name}" if weighted and directed else name},
    )


def _gat(model: Blueprint) -> Layers:
    heads, dynamic = model.shape.heads, model.name == "gatv2"
    name = "GATv2Conv" if dynamic else "GATConv"

    def layer(at: LayerSource) -> MadeLayer:
        width = at.out_width // heads if at.hidden else at.out_width
        made = (
            f"{name}({at.in_width}, {width}, heads={heads}, concat={at.hidden}, "
            "add_self_loops=False)"
        )
        source, bias = at["source"][None], at["bias"]
        if not dynamic:
            scores = {"att_src": source, "att_dst": at["target"][None]}
            return made, {"lin.weight": at["linear.weight"], **scores, "bias": bias}
        none = torch.zeros(len(at["own.weight"]), dtype=bias.dtype)
        maps = {"lin_l.weight": at["linear.weight"], "lin_r.weight": at["own.weight"]}
        return made, {**maps, "lin_l.bias": none, "lin_r.bias": none, "att": source, "bias": bias}

    return Layers("layer(x, edges)", (), {"layers": layer}, imports={_NN: name})


def _rgcn(model: Blueprint) -> Layers:
    refuse_weighted(model, "RGCNConv")
    shape = model.shape

    def layer(at: LayerSource) -> MadeLayer:
        bases = f", num_bases={shape.num_bases}" if shape.num_bases else ""
        source = f"RGCNConv({at.in_width}, {at.out_width}, {shape.num_relations}{bases})"
        tensors = {
            "weight": at["matrices"],
            "root": at["own.weight"].t(),
            "bias": at["own.bias"],
        }
        return source, {**tensors, "comp": at["coefficients"]} if shape.num_bases else tensors

    return Layers("layer(x, edges, kinds)", (), {"layers": layer}, imports={_NN: "RGCNConv"})


def _mixhop(model: Blueprint) -> Layers:
    if model.directed:
        raise InputError(
            "mixhop on directed edges: MixHopConv divides by in-degrees on both sides; export --to "
            "torch"
        )
    powers = model.num_steps // model.shape.num_layers + 1
    if model.shape.num_hidden_layers and model.shape.hidden % powers:
        raise InputError(
            f"mixhop of model.hidden = {model.shape.hidden}: the {powers} powers of MixHopConv are "
            "of one width; export --to torch"
        )

    def layer(at: LayerSource) -> MadeLayer:
        width = at.out_width // powers if at.hidden else at.out_width
        source = (
            f"MixHopConv({at.in_width}, {width}, powers={list(range(powers))}, "
            "add_self_loops=False)"
        )
        name = "lins.{}.weight".format  # codespell:ignore lins
        tensors = {name(power): at[f"powers.{power}.weight"] for power in range(powers)}
        bias = at["bias"]
        if not at.hidden:
            # Its powers are added up behind it.
            bias = torch.cat([bias, bias.new_zeros((powers - 1) * width)])
        return source, {**tensors, "bias": bias}

    call = "layer(x, edges, weights)"
    return Layers(
        call,
        ("plain",),
        {"layers": layer},
        last_call=f"{call}.view(num_nodes, {powers}, -1).sum(1)",
        imports={_NN: "MixHopConv"},
    )


def perceptron(at: LayerSource) -> tuple[str, dict[str, torch.Tensor]]:
    """Return the two maps of a GIN layer, as a library's layer takes them."""
    inner = len(at["first.weight"])
    source = (
        f"nn.Sequential(nn.Linear({at.in_width}, {inner}), nn.ReLU(), "
        f"nn.Linear({inner}, {at.out_width}))"
    )
    pairs = (("0", "first"), ("2", "second"))
    fields = ("weight", "bias")
    return source, {
        f"{to}.{field}": at[f"{name}.{field}"] for to, name in pairs for field in fields
    }


def _gin(model: Blueprint) -> Layers:
    refuse_directed(model, "GINConv")
    refuse_weighted(model, "GINConv")

    def layer(at: LayerSource) -> MadeLayer:
        source, maps = perceptron(at)
        tensors = {f"nn.{name}": value for name, value in maps.items()}
        return f"GINConv({source}, train_eps=True)", {**tensors, "eps": at["epsilon"][None]}

    return Layers("layer(x, edges)", (), {"layers": layer}, imports={_NN: "GINConv"})


def _gcnii(model: Blueprint) -> Layers:
    shape, theta = model.shape, model.theta

    def layer(at: LayerSource) -> MadeLayer:
        source = (
            f"GCN2Conv({at.out_width}, {shape.teleport}, {theta}, {at.number + 1}, normalize=False)"
        )
        return source, {"weight1": at["linear.weight"].t()}

    return Layers(
        "layer(x, first, edges, weights)",
        ("symmetric",),
        {"layers": layer},
        imports={_NN: "GCN2Conv"},
    )


def _appnp(model: Blueprint) -> Layers:
    return Layers(
        "self.steps(x, edges, weights)",
        ("symmetric",),
        modules={"steps": f"APPNP({model.num_steps}, {model.shape.teleport}, normalize=False)"},
        imports={_NN: "APPNP"},
    )


def _sign(model: Blueprint) -> Layers:
    back = ", (edges.flip(0), back)" if model.directed else ","
    return Layers(
        "self.product(power, *matrix)",
        ("mean", "mean_back")[: 1 + model.directed],
        modules={"product": 'SimpleConv(aggr="sum")'},
        prepared=(f"matrices = ((edges, weights){back})",),
        imports={_NN: "SimpleConv"},
    )


LAYERS: Mapping[str, Callable[[Blueprint], Layers]] = MappingProxyType(
    {
        "gcn": _gcn,
        "sage": _sage,
        "gat": _gat,
        "gatv2": _gat,
        "rgcn": _rgcn,
        "mixhop": _mixhop,
        "gin": _gin,
        "appnp": _appnp,
        "gcnii": _gcnii,
        "sign": _sign,
    }
)
"""By ``model.name``."""
