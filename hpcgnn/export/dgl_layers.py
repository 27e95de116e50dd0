"""Layers of exported models as DGL has them; entries of matrices are given to them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hpcgnn.export.blueprint import Blueprint, Layers, LayerSource, MadeLayer
from hpcgnn.export.pyg_layers import perceptron, refuse_directed

_NN = "dgl.nn"
_GRAPH = "graph = dgl.graph((edges[0], edges[1]), num_nodes=num_nodes)"


def _gcn(model: Blueprint) -> Layers:
    del model

    def layer(at: LayerSource) -> MadeLayer:
        source = f'GraphConv({at.in_width}, {at.out_width}, norm="none")'
        return source, {"weight": at["linear.weight"].t(), "bias": at["bias"]}

    return Layers(
        "layer(graph, x, edge_weight=weights)",
        ("symmetric",),
        {"layers": layer},
        prepared=(_GRAPH,),
        imports={_NN: "GraphConv"},
    )


def _sage(model: Blueprint) -> Layers:
    weighted, directed = model.weighted, model.directed

    def layer(at: LayerSource) -> MadeLayer:
        tensors = {
            "fc_neigh.weight": at["neighbours.0"],
            "fc_self.weight": at["own.weight"],
            "fc_self.bias": at["own.bias"],
        }
        return f'SAGEConv({at.in_width}, {at.out_width}, "mean")', tensors

    def back(at: LayerSource) -> MadeLayer:
        source = (
            f'GraphConv({at.in_width}, {at.out_width}, norm="none", bias=False, '
            "allow_zero_in_degree=True)"
        )
        return source, {"weight": at["neighbours.1"].t()}

    prepared = [_GRAPH]
    if weighted:
        # SAGEConv divides by the number of neighbours.
        prepared.append("weights = weights * graph.in_degrees()[edges[1]]")
    call = f"layer(graph, x{', edge_weight=weights' * weighted})"
    if directed:
        prepared.append("back_graph = dgl.graph((edges[1], edges[0]), num_nodes=num_nodes)")
        call += " + self.back_layers[place](back_graph, x, edge_weight=back)"
    forms = (*["mean"] * weighted, *["mean_back"] * directed)
    return Layers(
        call,
        forms,
        {"layers": layer, "back_layers": back} if directed else {"layers": layer},
        prepared=tuple(prepared),
        imports={_NN: "GraphConv, SAGEConv" if directed else "SAGEConv"},
    )


def _gat(model: Blueprint) -> Layers:
    heads, dynamic = model.shape.heads, model.name == "gatv2"
    name = "GATv2Conv" if dynamic else "GATConv"

    def layer(at: LayerSource) -> MadeLayer:
        width = at.out_width // heads if at.hidden else at.out_width
        made = f"{name}({at.in_width}, {width}, {heads}, bias=False)"
        source = at["source"][None]
        if dynamic:
            maps = {"fc_src.weight": at["linear.weight"], "fc_dst.weight": at["own.weight"]}
            return made, {**maps, "attn": source}
        scores = {"attn_l": source, "attn_r": at["target"][None]}
        return made, {"fc.weight": at["linear.weight"], **scores}

    def bias(at: LayerSource) -> MadeLayer:
        return f"nn.Parameter(torch.zeros({at.out_width}))", {"": at["bias"]}

    call, ending = "layer(graph, x).{} + self.biases[place]", ("flatten(1)", "mean(1)")
    return Layers(
        call.format(ending[0]),
        (),
        {"layers": layer, "biases": bias},
        last_call=call.format(ending[1]),
        prepared=(_GRAPH,),
        imports={_NN: name},
    )


def _rgcn(model: Blueprint) -> Layers:
    shape = model.shape

    def layer(at: LayerSource) -> MadeLayer:
        bases = f', regularizer="basis", num_bases={shape.num_bases}' if shape.num_bases else ""
        source = f"RelGraphConv({at.in_width}, {at.out_width}, {shape.num_relations}{bases})"
        tensors = {
            "linear_r.W": at["matrices"],
            "loop_weight": at["own.weight"].t(),
            "h_bias": at["own.bias"],
        }
        if shape.num_bases:
            tensors["linear_r.coeff"] = at["coefficients"]
        return source, tensors

    return Layers(
        "layer(graph, x, kinds, weights[:, None])",
        ("mean",),
        {"layers": layer},
        prepared=(_GRAPH,),
        imports={_NN: "RelGraphConv"},
    )


def _gin(model: Blueprint) -> Layers:
    refuse_directed(model, "GINConv")

    def layer(at: LayerSource) -> MadeLayer:
        source, maps = perceptron(at)
        tensors = {f"apply_func.{name}": value for name, value in maps.items()}
        return f"GINConv({source}, learn_eps=True)", {**tensors, "eps": at["epsilon"][None]}

    weights = ", edge_weight=weights" * model.weighted
    return Layers(
        f"layer(graph, x{weights})",
        ("plain",) if model.weighted else (),
        {"layers": layer},
        prepared=(_GRAPH,),
        imports={_NN: "GINConv"},
    )


def _gcnii(model: Blueprint) -> Layers:
    shape, theta = model.shape, model.theta

    def layer(at: LayerSource) -> MadeLayer:
        source = (
            f"GCN2Conv({at.out_width}, {at.number + 1}, alpha={shape.teleport}, lambda_={theta}, "
            "bias=False)"
        )
        return source, {"weight1": at["linear.weight"].t()}

    # Weights that are given are scaled by the degrees of both ends, as ours are.
    return Layers(
        "layer(graph, x, first, edge_weight=weights)",
        ("plain",),
        {"layers": layer},
        prepared=(_GRAPH,),
        imports={_NN: "GCN2Conv"},
    )


def _appnp(model: Blueprint) -> Layers:
    return Layers(
        "self.steps(graph, x, edge_weight=weights)",
        ("plain",),
        modules={"steps": f"APPNPConv({model.num_steps}, {model.shape.teleport})"},
        prepared=(_GRAPH,),
        imports={_NN: "APPNPConv"},
    )


def _sign(model: Blueprint) -> Layers:
    back = ", (dgl.reverse(graph), back)" if model.directed else ","
    return Layers(
        "dgl.ops.u_mul_e_sum(matrix[0], power, matrix[1])",
        ("mean", "mean_back")[: 1 + model.directed],
        prepared=(_GRAPH, f"matrices = ((graph, weights){back})"),
    )


LAYERS: Mapping[str, Callable[[Blueprint], Layers]] = MappingProxyType(
    {
        "gcn": _gcn,
        "sage": _sage,
        "gat": _gat,
        "gatv2": _gat,
        "rgcn": _rgcn,
        "gin": _gin,
        "appnp": _appnp,
        "gcnii": _gcnii,
        "sign": _sign,
    }
)
"""By ``model.name``."""
