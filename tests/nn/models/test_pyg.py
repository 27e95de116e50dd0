"""Layers equal those of PyG in float64 on one rank, outputs and gradients; skips without it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch_geometric.nn as pyg
from torch import Tensor

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.graph.operators import Adjacency, make_operators
from hpcgnn.nn import GraphView, ModelShape, NodeTraits
from hpcgnn.nn.models import SIGN
from hpcgnn.nn.models.gat import GATLayer, GATv2Layer
from hpcgnn.nn.models.gcnii import GCNIILayer
from hpcgnn.nn.models.hgt import HGTLayer
from hpcgnn.nn.models.rgat import RGATLayer
from hpcgnn.nn.models.rgcn import RGCNLayer
from hpcgnn.nn.models.sage import SAGELayer
from hpcgnn.nn.models.transformer import TransformerLayer
from hpcgnn.operator import Aggregation
from hpcgnn.sparse import DistCSR, EdgeFeatures, EdgeRows, PatternRows, stack_relations
from hpcgnn.trace import TraceRecorder
from tests.nn.models.test_rgcn import pattern_rows
from tests.support.matrices import block_row, ugly_matrix

NUM_NODES, WIDTH = 43, 6


def edges_of(matrix: sp.csr_matrix) -> tuple[Tensor, Tensor]:
    """Return (2, edges) sources and targets in PyG's form, and their weights."""
    entries = matrix.tocoo()
    index = np.stack([entries.col, entries.row]).astype(np.int64)
    return torch.from_numpy(index), torch.from_numpy(entries.data)


def view_of(
    grid: ProcessGrid, matrices: Sequence[sp.csr_matrix], *wanted: Aggregation
) -> GraphView:
    """Return the view of the only rank, with a relation for each of several matrices."""
    row_map = RowMap(np.array([0, NUM_NODES]), 0)
    part = block_row(matrices[0], row_map)
    if len(matrices) > 1:
        part = stack_relations(row_map, [pattern_rows(row_map, each) for each in matrices])
    ids = np.arange(NUM_NODES, dtype=np.int64)
    make = make_operators(grid, ExchangeConfig(), TraceRecorder.off())
    return Adjacency(make, part, wanted, np.float64, ids).products().view


def rows(seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(NUM_NODES, WIDTH)))


def with_features(
    grid: ProcessGrid, matrix: sp.csr_matrix, wanted: Aggregation, features: Tensor
) -> GraphView:
    """Return the view of the only rank over edges with features, in the order of `edges_of`."""
    row_map, loops = RowMap(np.array([0, NUM_NODES]), 0), wanted.self_loops
    whole = sp.csr_matrix(matrix + sp.eye_array(NUM_NODES)) if loops else matrix
    rows = PatternRows(whole.indptr.astype(np.int64), whole.indices.astype(np.int64), None)
    index = edges_of(matrix)[0].numpy()
    edges = EdgeRows(index[1], index[0], features.numpy())
    table = EdgeFeatures.of_pattern(grid, row_map, rows, edges, mean_loops=loops)
    part = DistCSR.from_rows(row_map, rows.indptr, rows.columns, table.numbers)
    make = make_operators(grid, ExchangeConfig(), TraceRecorder.off())
    ids = np.arange(NUM_NODES, dtype=np.int64)
    return Adjacency(replace(make, edges=table), part, (wanted,), np.float64, ids).products().view


def compare(ours: Tensor, theirs: Tensor, *pairs: tuple[Tensor, Tensor]) -> None:
    """Compare results, and gradients of pairs of tensors; PyG's may be transposed."""
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    factors = torch.from_numpy(np.random.default_rng(8).normal(size=tuple(ours.shape)))
    sums = (ours * factors).sum(), (theirs * factors).sum()
    mine = torch.autograd.grad(sums[0], [pair[0] for pair in pairs], retain_graph=True)
    others = torch.autograd.grad(sums[1], [pair[1] for pair in pairs], retain_graph=True)
    for one, other, (left, right) in zip(mine, others, pairs, strict=True):
        # PyG's is kept transposed if only its transpose has our values.
        if right.ndim == 2 and torch.equal(left, right.t()):
            other = other.t()
        torch.testing.assert_close(one, other.reshape(one.shape), rtol=1e-10, atol=1e-10)


def test_gcnii() -> None:
    matrix = ugly_matrix(NUM_NODES, 3, symmetric=True)
    loops = sp.csr_matrix(matrix + sp.diags_array((matrix.diagonal() == 0).astype(float)))
    index, weight = edges_of(matrix)
    layer = GCNIILayer(WIDTH, teleport=0.3, strength=np.log(0.5 / 4 + 1)).double()
    other = pyg.GCN2Conv(WIDTH, alpha=0.3, theta=0.5, layer=4).double()
    other.weight1.data = layer.linear.weight.data.T.clone()
    x, first = rows(1).requires_grad_(), rows(2).requires_grad_()
    with ProcessGrid.of_this_process() as grid:
        view = view_of(grid, [loops], Aggregation.SYMMETRIC).layer(0)
        found, expected = layer(view, x, first), other(x, first, index, weight)
        compare(found, expected, (x, x), (first, first), (layer.linear.weight, other.weight1))


@pytest.mark.parametrize("num_bases", [0, 2])
def test_rgcn(num_bases: int) -> None:
    matrices = [ugly_matrix(NUM_NODES, seed, weighted=False) for seed in range(3)]
    edges = [edges_of(each)[0] for each in matrices]
    kinds = torch.cat([torch.full((each.shape[1],), kind) for kind, each in enumerate(edges)])
    layer = RGCNLayer(WIDTH, 4, 3, num_bases).double()
    layer.own.bias.data.normal_()
    other = pyg.RGCNConv(WIDTH, 4, 3, num_bases=num_bases or None).double()
    other.weight.data = layer.matrices.data.clone()
    other.root.data, other.bias.data = layer.own.weight.data.T.clone(), layer.own.bias.data
    pairs = [
        (layer.matrices, other.weight),
        (layer.own.bias, other.bias),
        (layer.own.weight, other.root),
    ]
    if layer.coefficients is not None:
        other.comp.data = layer.coefficients.data.clone()
        pairs.append((layer.coefficients, other.comp))
    x = rows(1).requires_grad_()
    with ProcessGrid.of_this_process() as grid:
        view = view_of(grid, matrices, Aggregation.MEAN_BY_RELATION).layer(0)
        compare(layer(view, x), other(x, torch.cat(edges, 1), kinds), (x, x), *pairs)


@pytest.mark.parametrize("average", [False, True])
def test_rgat(average: bool) -> None:
    matrices = [ugly_matrix(NUM_NODES, seed, weighted=False) for seed in range(3)]
    width = 4
    out_width = width if average else HEADS * width
    layer = RGATLayer(WIDTH, out_width, 3, heads=HEADS, average=average).double()
    layer.bias.data.normal_()
    how = {"heads": HEADS, "concat": not average, "add_self_loops": False, "bias": False}
    kinds = [("n", str(number), "n") for number in range(3)]
    other = pyg.HeteroConv({kind: pyg.GATConv(WIDTH, width, **how) for kind in kinds}).double()
    x = rows(1).requires_grad_()
    parts = (layer.maps, layer.source, layer.target)
    for number, kind in enumerate(kinds):
        conv = other.convs[kind]
        names = (conv.lin.weight, conv.att_src, conv.att_dst)
        share([(each[:, number], name) for each, name in zip(parts, names, strict=True)])
    index = {kind: edges_of(each)[0] for kind, each in zip(kinds, matrices, strict=True)}
    expected = other({"n": x}, index)["n"] + layer.bias
    with ProcessGrid.of_this_process() as grid:
        view = view_of(grid, matrices, Aggregation.ATTENTION_MAPPED).layer(0)
        found = layer(view, x)
        compare(found, expected, (x, x), (layer.bias, layer.bias))
    of_ours = torch.autograd.grad(found.square().sum(), parts)
    for number, kind in enumerate(kinds):
        conv = other.convs[kind]
        names = (conv.lin.weight, conv.att_src, conv.att_dst)
        of_theirs = torch.autograd.grad(expected.square().sum(), names, retain_graph=True)
        for one, given in zip(of_ours, of_theirs, strict=True):
            mine = one[:, number].reshape(given.shape)
            torch.testing.assert_close(mine, given, rtol=1e-10, atol=1e-10)


def test_sign() -> None:
    matrix = ugly_matrix(NUM_NODES, 3, weighted=False)
    forward = edges_of(matrix)[0]
    shape = ModelShape(
        num_features=WIDTH, num_classes=3, hidden=5, num_layers=2, hops=3, activation="elu"
    )
    model, mean = SIGN(shape, directed=True).double(), pyg.SimpleConv("mean")
    x = rows(1).requires_grad_()
    powers = [x]
    for index in (forward, forward.flip(0)):
        power = x
        for _ in range(3):
            power = mean(power, index)
            powers.append(power)
    joined = torch.cat([one(each) for one, each in zip(model.branches, powers, strict=True)], 1)
    expected = model.layers[0](torch.nn.functional.elu(joined))
    with ProcessGrid.of_this_process() as grid:
        view = view_of(grid, [matrix], *SIGN.aggregations)
        both = [(each, each) for each in (x, *model.parameters())]
        compare(model(view, x, None), expected, *both)


HEADS, EDGE_WIDTH = 2, 3


def ugly_edges() -> tuple[sp.csr_matrix, Tensor]:
    """Return a graph with loops, hubs and isolated nodes, and features of its edges."""
    matrix = ugly_matrix(NUM_NODES, 3, weighted=False)
    features = np.random.default_rng(5).normal(size=(matrix.nnz, EDGE_WIDTH))
    return matrix, torch.from_numpy(features)


@pytest.mark.parametrize("kind", [GATLayer, GATv2Layer])
@pytest.mark.parametrize("average", [False, True])
def test_attention_with_features_of_edges(kind: type[GATLayer], average: bool) -> None:
    matrix, features = ugly_edges()
    width, dynamic = 4, kind is GATv2Layer
    out_width = width if average else HEADS * width
    layer = kind(WIDTH, out_width, heads=HEADS, average=average, num_edge_features=EDGE_WIDTH)
    layer.double().bias.data.normal_()
    how = {"heads": HEADS, "concat": not average, "edge_dim": EDGE_WIDTH}
    if dynamic:
        other = pyg.GATv2Conv(WIDTH, width, bias=True, **how).double()
        other.lin_l.bias.data.zero_()
        other.lin_r.bias.data.zero_()
        pairs = [
            (layer.linear.weight, other.lin_l.weight),
            (layer.own.weight, other.lin_r.weight),
            (layer.source, other.att),
        ]
    else:
        other = pyg.GATConv(WIDTH, width, **how).double()
        pairs = [
            (layer.linear.weight, other.lin.weight),
            (layer.source, other.att_src),
            (layer.target, other.att_dst),
            (layer.edge, other.att_edge),
        ]
    pairs += [(layer.edges.weight, other.lin_edge.weight), (layer.bias, other.bias)]
    x = rows(1).requires_grad_()
    with ProcessGrid.of_this_process() as grid:
        view = with_features(grid, matrix, Aggregation.ATTENTION, features).layer(0)
        share(pairs)
        found = layer(view, x)
        compare(found, other(x, edges_of(matrix)[0], features), (x, x), *pairs)


def share(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Set the parameters of PyG's layer to ours."""
    for mine, theirs in pairs:
        theirs.data = mine.data.reshape(theirs.shape).clone()


def split_pairs(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maps of keys and of values, from maps that have both for each head."""
    both = weight.view(HEADS, 2, -1, *weight.shape[1:])
    return both[:, 0].flatten(0, 1), both[:, 1].flatten(0, 1)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("edge_width", [0, EDGE_WIDTH])
def test_transformer(gated: bool, average: bool, edge_width: int) -> None:
    matrix, features = ugly_edges()
    width = 4
    layer = TransformerLayer(
        WIDTH,
        width if average else HEADS * width,
        heads=HEADS,
        average=average,
        gated=gated,
        num_edge_features=edge_width,
    ).double()
    other = pyg.TransformerConv(
        WIDTH,
        width,
        heads=HEADS,
        concat=not average,
        beta=gated,
        edge_dim=edge_width or None,
    ).double()
    pairs = [(layer.queries.weight, other.lin_query.weight)]
    pairs += [(layer.queries.bias, other.lin_query.bias)]
    pairs += [(layer.own.weight, other.lin_skip.weight), (layer.own.bias, other.lin_skip.bias)]
    if layer.gate is not None:
        pairs.append((layer.gate.weight, other.lin_beta.weight))
    if layer.edges is not None:
        pairs.append((layer.edges.weight, other.lin_edge.weight))
    share(pairs)
    maps = [other.lin_key, other.lin_value]
    for name in ("weight", "bias"):
        for one, data in zip(maps, split_pairs(getattr(layer.pairs, name)), strict=True):
            getattr(one, name).data = data.detach().clone()
    x = rows(1).requires_grad_()
    with ProcessGrid.of_this_process() as grid:
        if edge_width:
            view = with_features(grid, matrix, Aggregation.ATTENTION_IN, features).layer(0)
        else:
            view = view_of(grid, [matrix], Aggregation.ATTENTION_IN).layer(0)
        found = layer(view, x)
        index = edges_of(matrix)[0]
        expected = other(x, index, features) if edge_width else other(x, index)
        compare(found, expected, (x, x), *pairs)
        compare_pairs(found, expected, layer.pairs, maps)


def compare_pairs(
    found: Tensor, expected: Tensor, pairs: torch.nn.Linear, maps: list[torch.nn.Linear]
) -> None:
    """Compare the gradients of the maps of keys and values, which are one map in our layer."""
    for name in ("weight", "bias"):
        (mine,) = torch.autograd.grad(found.sum(), [getattr(pairs, name)], retain_graph=True)
        theirs = torch.autograd.grad(
            expected.sum(), [getattr(one, name) for one in maps], retain_graph=True
        )
        for one, other in zip(split_pairs(mine), theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_messages_with_features_of_edges() -> None:
    matrix, features = ugly_edges()
    layer = SAGELayer(WIDTH, 4, directed=False, num_edge_features=EDGE_WIDTH).double()
    layer.own.bias.data.normal_()
    x = rows(1).requires_grad_()
    index = edges_of(matrix)[0]
    edges = EdgeRows(index[1].numpy(), index[0].numpy(), features.numpy())
    means = torch.from_numpy(edges.means(NUM_NODES, np.float64))
    mapped = x @ layer.neighbours[0].T
    messages = mapped[index[0]] + features @ layer.edges.weight.T
    expected = pyg.MeanAggregation()(messages, index[1], dim_size=NUM_NODES)
    with ProcessGrid.of_this_process() as grid:
        view = view_of(grid, [matrix], Aggregation.MEAN_IN)
        found = layer(replace(view, traits=NodeTraits(edge_means=means)).layer(0), x)
        both = [(each, each) for each in (x, *layer.parameters())]
        compare(found, expected + layer.own(x), *both)


@pytest.mark.parametrize("num_types", [1, 2])
def test_hgt(num_types: int) -> None:
    width = 8
    matrices = [ugly_matrix(NUM_NODES, seed, weighted=False) for seed in range(4)]
    types = np.arange(NUM_NODES) % num_types
    places = [np.flatnonzero(types == kind) for kind in range(num_types)]
    # A relation has edges between two types, which may be equal; its other edges are removed.
    ends = [(number % num_types, number // 2 % num_types) for number in range(4)]
    for number, (source, target) in enumerate(ends):
        kept = matrices[number].multiply((types == target)[:, None] & (types == source)[None])
        matrices[number] = sp.csr_matrix(kept)
        matrices[number].eliminate_zeros()
    names = [(f"t{source}", f"r{n}", f"t{target}") for n, (source, target) in enumerate(ends)]
    layer = HGTLayer(width, heads=HEADS, num_relations=4, num_types=num_types).double()
    layer.priors.data.uniform_(0.5, 1.5)
    layer.skip.data.uniform_(-1, 1)
    metadata = [f"t{kind}" for kind in range(num_types)], names
    other = pyg.HGTConv(width, width, metadata, heads=HEADS).double()
    for mine, theirs in ((layer.keys, other.k_rel), (layer.messages, other.v_rel)):
        theirs.weight.data = mine.data.transpose(0, 1).reshape(theirs.weight.shape).clone()
    for number, name in enumerate(names):
        other.p_rel["__".join(name)].data = layer.priors.data[number][None].clone()
    for kind in range(num_types):
        other.skip[f"t{kind}"].data = layer.skip.data[kind : kind + 1].clone()
        other.out_lin.lins[f"t{kind}"].load_state_dict(layer.out.maps[kind].state_dict())
        joint = other.kqv_lin.lins[f"t{kind}"]
        queries, both = layer.queries.maps[kind], layer.pairs.maps[kind]
        for part in ("weight", "bias"):
            keys, values = split_pairs(getattr(both, part).data)
            data = torch.cat([keys, getattr(queries, part).data, values])
            getattr(joint, part).data = data
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(NUM_NODES, width)))
    x.requires_grad_()
    numbers = np.empty(NUM_NODES, np.int64)
    for place in places:
        numbers[place] = np.arange(len(place))
    edges = {}
    for name, matrix, (source, target) in zip(names, matrices, ends, strict=True):
        index = edges_of(matrix)[0].numpy()
        assert (types[index[0]] == source).all()
        assert (types[index[1]] == target).all()
        edges[name] = torch.from_numpy(numbers[index])
    parts = {f"t{kind}": x[place] for kind, place in enumerate(places)}
    by_type = other(parts, edges)
    expected = torch.zeros_like(x)
    for kind, place in enumerate(places):
        expected = expected.index_copy(0, torch.from_numpy(place), by_type[f"t{kind}"])
    with ProcessGrid.of_this_process() as grid:
        view = view_of(grid, matrices, Aggregation.ATTENTION_BY_RELATION)
        traits = NodeTraits(torch.from_numpy(types) if num_types > 1 else None)
        view = replace(view, traits=traits)
        found = layer(view.layer(0), x)
        pairs = [(layer.queries.maps[0].weight, other.kqv_lin.lins["t0"].weight)]
        compare(found, expected, (x, x))
        factor = torch.from_numpy(np.random.default_rng(2).normal(size=tuple(found.shape)))
        ours = (layer.keys, layer.messages, layer.priors, layer.skip, pairs[0][0])
        mine = torch.autograd.grad((found * factor).sum(), ours)
        priors = [other.p_rel["__".join(name)] for name in names]
        skips = [other.skip[f"t{kind}"] for kind in range(num_types)]
        its = (other.k_rel.weight, other.v_rel.weight, *priors, *skips, pairs[0][1])
        theirs = torch.autograd.grad((expected * factor).sum(), its)
        wanted = [
            theirs[0].view(HEADS, 4, *layer.keys.shape[2:]).transpose(0, 1),
            theirs[1].view(HEADS, 4, *layer.keys.shape[2:]).transpose(0, 1),
            torch.cat(theirs[2:6]),
            torch.cat(theirs[6:-1]),
            theirs[-1][width : 2 * width],
        ]
        for one, each in zip(mine, wanted, strict=True):
            torch.testing.assert_close(one, each, rtol=1e-10, atol=1e-10)
