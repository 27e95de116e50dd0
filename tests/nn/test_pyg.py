"""Layers equal those of PyG in float64 on one rank, outputs and gradients; skips without it."""

from collections.abc import Sequence

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.graph.products import AdjacencyProducts, make_operators
from hpcgnn.nn import SIGN, GraphView, ModelShape
from hpcgnn.nn.gcnii import GCNIILayer
from hpcgnn.nn.rgcn import RGCNLayer
from hpcgnn.operator import Aggregation
from hpcgnn.sparse import stack_relations
from hpcgnn.trace import TraceRecorder
from tests.nn.test_rgcn import pattern_rows
from tests.support.matrices import block_row, ugly_matrix

pyg = pytest.importorskip("torch_geometric.nn")

NUM_NODES, WIDTH = 43, 6


def edges_of(matrix: sp.csr_matrix) -> tuple[Tensor, Tensor]:
    """Return (2, edges) sources and targets as PyG has them, and their weights."""
    entries = matrix.tocoo()
    index = np.stack([entries.col, entries.row]).astype(np.int64)
    return torch.from_numpy(index), torch.from_numpy(entries.data)


def view_of(
    grid: ProcessGrid, matrices: Sequence[sp.csr_matrix], *wanted: Aggregation
) -> GraphView:
    """Return the view of the one rank; of several matrices a relation for each."""
    row_map = RowMap(np.array([0, NUM_NODES]), 0)
    part = block_row(matrices[0], row_map)
    if len(matrices) > 1:
        part = stack_relations(row_map, [pattern_rows(row_map, each) for each in matrices])
    ids = np.arange(NUM_NODES, dtype=np.int64)
    make = make_operators(grid, ExchangeConfig(), TraceRecorder.off())
    return AdjacencyProducts(make, part, wanted, np.float64, ids).view


def rows(seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(NUM_NODES, WIDTH)))


def compare(ours: Tensor, theirs: Tensor, *pairs: tuple[Tensor, Tensor]) -> None:
    """Compare results, and gradients of pairs of tensors; theirs may be transposed."""
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    factors = torch.from_numpy(np.random.default_rng(8).normal(size=tuple(ours.shape)))
    mine = torch.autograd.grad((ours * factors).sum(), [pair[0] for pair in pairs])
    others = torch.autograd.grad((theirs * factors).sum(), [pair[1] for pair in pairs])
    for one, other, (left, right) in zip(mine, others, pairs, strict=True):
        # Theirs is kept transposed where only its transpose has our values.
        if not torch.equal(left, right):
            other = other.t()
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


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
