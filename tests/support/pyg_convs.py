"""Layers of torch_geometric, the arguments of each, and the graph that they run on."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcgnn.comm import ProcessGrid
from hpcgnn.pyg import EdgeShare, distribute
from tests.support.message_edges import NUM_NODES, local_inputs, make_edges

WIDTH, ATTR, TYPES = 4, 3, 2

Make = Callable[[Any], nn.Module]
"""Makes a layer, given the module torch_geometric.nn."""

Case = tuple[Make, str]
"""A layer, and the names of its arguments."""


def mlp(first: int, last: int = 5, norm: bool = False) -> nn.Module:
    """Return a network of one hidden layer."""
    norms = [nn.BatchNorm1d(6)] if norm else []
    return nn.Sequential(nn.Linear(first, 6), *norms, nn.Tanh(), nn.Linear(6, last))


KIND = ("n", "e", "n")
METADATA = (["n"], [KIND, ("n", "f", "n")])

E, W = "x edges", "x edges weight"
A, T = "x edges attr", "x edges type"

CONVS: Mapping[str, Case] = {
    "SimpleConv": (lambda g: g.SimpleConv("mean", combine_root="self_loop"), W),
    "GCNConv": (lambda g: g.GCNConv(WIDTH, 5), W),
    "GCNConv improved": (lambda g: g.GCNConv(WIDTH, 5, improved=True), E),
    "ChebConv": (lambda g: g.ChebConv(WIDTH, 5, K=3), W),
    "SAGEConv": (lambda g: g.SAGEConv(WIDTH, 5, normalize=True), E),
    "SAGEConv max": (
        lambda g: g.SAGEConv((WIDTH, WIDTH), 5, aggr="max", project=True),
        "pair edges",
    ),
    "SAGEConv many": (lambda g: g.SAGEConv(WIDTH, 5, aggr=["std", "mul", "softmax", "min"]), E),
    "GraphConv": (lambda g: g.GraphConv(WIDTH, 5), W),
    "GraphConv back": (lambda g: g.GraphConv(WIDTH, 5, flow="target_to_source"), W),
    "GatedGraphConv": (lambda g: g.GatedGraphConv(5, 3), W),
    "ResGatedGraphConv": (lambda g: g.ResGatedGraphConv(WIDTH, 5, edge_dim=ATTR), A),
    "GATConv": (lambda g: g.GATConv(WIDTH, 5, heads=2), E),
    "GATConv edges": (lambda g: g.GATConv(WIDTH, 5, heads=2, edge_dim=ATTR, residual=True), A),
    "GATv2Conv": (lambda g: g.GATv2Conv(WIDTH, 5, heads=2, edge_dim=ATTR), A),
    "TransformerConv": (
        lambda g: g.TransformerConv(WIDTH, 5, heads=2, beta=True, edge_dim=ATTR),
        A,
    ),
    "AGNNConv": (lambda g: g.AGNNConv(), E),
    "TAGConv": (lambda g: g.TAGConv(WIDTH, 5), W),
    "GINConv": (lambda g: g.GINConv(mlp(WIDTH, norm=True), train_eps=True), E),
    "GINEConv": (lambda g: g.GINEConv(mlp(WIDTH), edge_dim=ATTR), A),
    "ARMAConv": (lambda g: g.ARMAConv(WIDTH, 5, num_stacks=2, num_layers=2), W),
    "SGConv": (lambda g: g.SGConv(WIDTH, 5, K=2), W),
    "SSGConv": (lambda g: g.SSGConv(WIDTH, 5, alpha=0.1, K=2), W),
    "APPNP": (lambda g: g.APPNP(3, 0.1), W),
    "MFConv": (lambda g: g.MFConv(WIDTH, 5), E),
    "RGCNConv": (lambda g: g.RGCNConv(WIDTH, 5, TYPES, num_bases=2), T),
    "FastRGCNConv": (lambda g: g.FastRGCNConv(WIDTH, 5, TYPES), T),
    "RGATConv": (lambda g: g.RGATConv(WIDTH, 5, TYPES, edge_dim=ATTR), "x edges type attr"),
    "SignedConv": (lambda g: g.SignedConv(WIDTH, 5, first_aggr=True), "x edges edges"),
    "DNAConv": (lambda g: g.DNAConv(WIDTH, heads=2), "stack edges weight"),
    "PointNetConv": (lambda g: g.PointNetConv(mlp(WIDTH + 3), mlp(5)), "x pos edges"),
    "GMMConv": (lambda g: g.GMMConv(WIDTH, 5, ATTR, 2), A),
    "NNConv": (lambda g: g.NNConv(WIDTH, 5, mlp(ATTR, WIDTH * 5)), A),
    "CGConv": (lambda g: g.CGConv(WIDTH, ATTR, batch_norm=True), A),
    "EdgeConv": (lambda g: g.EdgeConv(mlp(2 * WIDTH, norm=True)), E),
    "PPFConv": (lambda g: g.PPFConv(mlp(WIDTH + 4), mlp(5)), "x pos normal edges"),
    "FeaStConv": (lambda g: g.FeaStConv(WIDTH, 5, heads=2), E),
    "PointTransformerConv": (lambda g: g.PointTransformerConv(WIDTH, 5), "x pos edges"),
    "LEConv": (lambda g: g.LEConv(WIDTH, 5), W),
    "PNAConv": (
        lambda g: g.PNAConv(
            WIDTH,
            6,
            ["mean", "max", "std", "var"],
            ["identity", "amplification", "attenuation", "linear"],
            torch.bincount(torch.bincount(torch.from_numpy(make_edges()[1]))),
            edge_dim=ATTR,
            towers=2,
        ),
        A,
    ),
    "ClusterGCNConv": (lambda g: g.ClusterGCNConv(WIDTH, 5, diag_lambda=0.2), E),
    "GENConv": (lambda g: g.GENConv(WIDTH, 5, learn_t=True, msg_norm=True, edge_dim=ATTR), A),
    "GENConv power": (lambda g: g.GENConv(WIDTH, 5, aggr="powermean", learn_p=True), E),
    "GCN2Conv": (lambda g: g.GCN2Conv(WIDTH, 0.1, 0.5, 1), "x start edges weight"),
    "WLConvContinuous": (lambda g: g.WLConvContinuous(), W),
    "FiLMConv": (lambda g: g.FiLMConv(WIDTH, 5, TYPES), T),
    "FAConv": (lambda g: g.FAConv(WIDTH), "x start edges"),
    "EGConv": (lambda g: g.EGConv(WIDTH, 6, ["symnorm", "max", "std"], num_heads=2), E),
    "PDNConv": (lambda g: g.PDNConv(WIDTH, 5, ATTR, 6), A),
    "GeneralConv": (lambda g: g.GeneralConv(WIDTH, 5, ATTR, attention=True, heads=2), A),
    "HEATConv": (
        lambda g: g.HEATConv(WIDTH, 5, 3, TYPES, 2, ATTR, 2, heads=2),
        "x edges kind type attr",
    ),
    "HeteroConv": (
        lambda g: g.HeteroConv({KIND: g.GCNConv(WIDTH, 5), ("n", "f", "n"): g.GATConv(WIDTH, 5)}),
        "x_dict edges_dict",
    ),
    "HANConv": (lambda g: g.HANConv(WIDTH, 5, METADATA, heads=1), "x_dict edges_dict"),
    "HypergraphConv": (lambda g: g.HypergraphConv(WIDTH, 5), E),
    "LGConv": (lambda g: g.LGConv(), W),
    "PointGNNConv": (
        lambda g: g.PointGNNConv(mlp(WIDTH, 3), mlp(WIDTH + 3), mlp(5, WIDTH)),
        "x pos edges",
    ),
    "AntiSymmetricConv": (lambda g: g.AntiSymmetricConv(WIDTH, num_iters=2), E),
    "DirGNNConv": (lambda g: g.DirGNNConv(g.SAGEConv(WIDTH, 5)), E),
    "DirGNNConv gcn": (lambda g: g.DirGNNConv(g.GCNConv(WIDTH, 5)), E),
    "MixHopConv": (lambda g: g.MixHopConv(WIDTH, 5), W),
}


WHEN_CALLED = {"SuperGATConv": "it draws negative edges as it trains"}
"""Layers that are refused when they are called or in training, with the reason."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A whole graph and this rank's share of it."""

    share: EdgeShare
    rows: slice
    places: Tensor
    whole: Mapping[str, Any]
    own: Mapping[str, Any]


class ByNode(nn.Module):
    """A norm, besides edges that give the graph of each node."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.norm(x, *others[:-1])


class Pools(nn.Module):
    """A module that joins the rows of all nodes, as models do."""

    def forward(self, x: Tensor, start: Tensor, edges: Tensor) -> Tensor:
        batch = x.new_zeros(x.size(0), dtype=torch.long)
        groups = x.new_zeros(1, WIDTH).index_add_(0, batch, x)
        joined = x.mean(0) + x.amax(0) - x.sum(0, keepdim=True) + x.std(0) * groups
        joined = joined + torch.einsum("nf,nf->f", x, start) + x.norm(dim=0) + x.max(dim=-2)[0]
        return (x @ (start.t() @ x)).softmax(-1) + joined * (x[:, 0] > 0).any()


NORMS: Mapping[str, Case] = {
    "BatchNorm": (lambda g: ByNode(g.BatchNorm(WIDTH)), "x edges"),
    "GraphNorm": (lambda g: ByNode(g.GraphNorm(WIDTH)), "x edges"),
    "InstanceNorm": (
        lambda g: ByNode(g.InstanceNorm(WIDTH, affine=True, track_running_stats=True)),
        "x edges",
    ),
    "LayerNorm": (lambda g: ByNode(g.LayerNorm(WIDTH)), "x edges"),
    "LayerNorm node": (lambda g: ByNode(g.LayerNorm(WIDTH, mode="node")), "x edges"),
    "PairNorm": (lambda g: ByNode(g.PairNorm()), "x edges"),
    "MeanSubtractionNorm": (lambda g: ByNode(g.MeanSubtractionNorm()), "x edges"),
    "DiffGroupNorm": (lambda g: ByNode(g.DiffGroupNorm(WIDTH, 2)), "x edges"),
    "MessageNorm": (lambda g: ByNode(g.MessageNorm(True)), "x start edges"),
    "pools": (lambda _: Pools(), "x start edges"),
}

BY_NODE, BY_EDGE = ("x", "start", "pos"), ("weight", "attr")


@contextmanager
def doubles() -> Iterator[None]:
    """Make modules with float64 parameters."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def make_problem(grid: ProcessGrid, ends: np.ndarray | None = None) -> Problem:
    """Return the graph; its edges are ordered by target and source, like those of a rank."""
    ends = make_edges() if ends is None else ends
    ends = ends[:, np.lexsort(ends)]
    inputs, rows, places = local_inputs(grid, ends)
    rng = np.random.default_rng(5)
    count = ends.shape[1]

    def draw(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape))

    nodes = {
        "x": draw(NUM_NODES, WIDTH),
        "start": draw(NUM_NODES, WIDTH),
        "pos": draw(NUM_NODES, 3),
        "normal": nn.functional.normalize(draw(NUM_NODES, 3)),
        "kind": torch.from_numpy(rng.integers(0, 3, NUM_NODES)),
        "colour": torch.from_numpy(rng.integers(0, 4, NUM_NODES)),
    }
    edges = {
        "weight": draw(count).abs() + 0.1,
        "attr": draw(count, ATTR),
        "type": torch.from_numpy(rng.integers(0, TYPES, count)),
    }
    share = EdgeShare.of(inputs.operator, np.arange(rows.start, rows.stop))
    order = torch.from_numpy(places)[share.order]
    whole = {**nodes, **edges, "edges": torch.from_numpy(ends)}
    own = {name: value[rows] for name, value in nodes.items()}
    own |= {name: value[order] for name, value in edges.items()}
    return Problem(share, rows, order, whole, {**own, "edges": share.index})


def call(module: nn.Module, words: str, given: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """Return a module's rows for some arguments, and these arguments; floats need gradients."""
    wanted = {*BY_NODE, *BY_EDGE}
    used = {
        name: value.clone().requires_grad_() if name in wanted else value
        for name, value in given.items()
    }
    used["pair"] = (used["x"], used["x"])
    used["stack"] = torch.stack([used["x"], used["start"]], 1)
    used["x_dict"] = {"n": used["x"]}
    used["edges_dict"] = dict.fromkeys(METADATA[1], used["edges"])
    out = module(*(used[name] for name in words.split()))
    out = out["n"] if isinstance(out, dict) else out
    return (out[0] if isinstance(out, tuple) else out), used


def differences(
    problem: Problem,
    make: Callable[[], nn.Module],
    words: str,
    over_ranks: Callable[[nn.Module], nn.Module] = distribute,
) -> list[str]:
    """Return which rows and gradients of a module over ranks differ from those in one process."""
    torch.manual_seed(1)
    alone = make()
    torch.manual_seed(1)
    module = over_ranks(make())
    out, whole = call(alone, words, problem.whole)
    factor = torch.from_numpy(np.random.default_rng(1).normal(size=out.shape))
    mine, own = call(module, words, problem.own)
    pairs = {"result": (mine, out[problem.rows])}
    if out.requires_grad:
        (out * factor).sum().backward()
        (mine * factor[problem.rows]).sum().backward()
    for names, places in ((BY_NODE, problem.rows), (BY_EDGE, problem.places)):
        pairs |= {name: (_gradient(own[name]), _gradient(whole[name])[places]) for name in names}
    for (name, ours), theirs in zip(module.named_parameters(), alone.parameters(), strict=True):
        total = _gradient(ours).numpy().copy()
        problem.share.sums(total)
        pairs[name] = torch.from_numpy(total), _gradient(theirs)
    for (name, ours), theirs in zip(module.named_buffers(), alone.buffers(), strict=True):
        pairs[name] = ours, theirs
    limits = {"rtol": 1e-10, "atol": 1e-10, "equal_nan": True}
    return [name for name, pair in pairs.items() if not torch.allclose(*pair, **limits)]


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
