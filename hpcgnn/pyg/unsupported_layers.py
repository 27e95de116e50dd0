"""Layers of torch_geometric that run only on one process, with the reasons."""

from collections.abc import Mapping

from torch import nn

from hpcgnn.errors import InputError

_NEIGHBOURS = "it looks for neighbours among all nodes"
_POOLS = "it makes a new graph of the nodes of all ranks"
_LONGEST = "its result depends on the longest list of messages of the whole graph"
_NO_EDGES = "it cannot reduce the messages of a rank without edges"
_ALL_NODES = "its attention reads all nodes"

REFUSED: Mapping[str, str] = {
    "CuGraphGATConv": "it needs cugraph-ops",
    "CuGraphRGCNConv": "it needs cugraph-ops",
    "CuGraphSAGEConv": "it needs cugraph-ops",
    "DynamicEdgeConv": _NEIGHBOURS,
    "FusedGATConv": "it takes edges sorted over all nodes",
    "GPSConv": _ALL_NODES,
    "GravNetConv": _NEIGHBOURS,
    "HGTConv": "it numbers nodes of all types consecutively",
    "MeshCNNConv": "its edges are sides of triangles in a special order",
    "PANConv": "it multiplies whole adjacency matrices",
    "SplineConv": "its kernels in pyg-lib have not been tried",
    "WLConv": "it numbers colours in the order in which a process meets them",
    "XConv": _NEIGHBOURS,
    "GraphSizeNorm": "it counts the nodes of a process",
    "GRUAggregation": _LONGEST,
    "LSTMAggregation": _LONGEST,
    "LCMAggregation": _LONGEST,
    "MLPAggregation": _LONGEST,
    "SetTransformerAggregation": _LONGEST,
    "GraphMultisetTransformer": _LONGEST,
    "SortAggregation": _LONGEST,
    "PatchTransformerAggregation": _LONGEST,
    "EquilibriumAggregation": "it optimises over the messages of a process",
    "QuantileAggregation": _NO_EDGES,
    "TopKPooling": _POOLS,
    "SAGPooling": _POOLS,
    "EdgePooling": _POOLS,
    "ClusterPooling": _POOLS,
    "ASAPooling": _POOLS,
    "PANPooling": _POOLS,
    "MemPooling": _POOLS,
}
"""Class -> reason, for layers that would compute wrong numbers, or fail with an unclear error.
Torch functions without a meaning over ranks are refused when they are called."""


def check_layers(module: nn.Module) -> None:
    """Raise `InputError` if a layer of a module, or a base class of one, is refused."""
    for path, layer in module.named_modules():
        for kind in type(layer).__mro__:
            if kind.__module__.startswith("torch_geometric.") and kind.__name__ in REFUSED:
                where = f" ({path})" if path else ""
                raise InputError(
                    f"{kind.__name__}{where} is not distributed: {REFUSED[kind.__name__]}; use "
                    "another layer, see docs/matrix.md"
                )
