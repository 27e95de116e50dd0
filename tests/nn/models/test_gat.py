"""Attention models with several passes over heads, and with dropout that all ranks agree on."""

from dataclasses import replace
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.attention import AdditiveScores
from hpcgnn.autograd import Heads, ProductHeads, attend, attend_products, edge_draw
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.nn import GraphView
from hpcgnn.train.gradients import sum_gradients
from tests.nn.models.test_models import KEY, NUM_FEATURES, NUM_NODES, Setting, check, make_products
from tests.support.matrices import ugly_matrix, uneven_starts

WIDE = {"hidden": 90, "heads": 3}
"""Heads of 30 columns: two in the first pass and one in the second."""

SPREADS: tuple[dict[str, Any], ...] = (
    {},
    {"exchange": "joint", "active": True},
    {"exchange": "joint", "schedule": "sequential", "prefetch": 1},
    {"exchange": "aware", "schedule": "sequential"},
    {"exchange": "oblivious"},
    {"exchange": "hierarchical", "replication": 2},
)


@pytest.mark.parametrize("name", ["gat", "gatv2", "transformer"])
@pytest.mark.parametrize("spread", SPREADS, ids=str)
def test_several_passes(comm: MPI.Intracomm, name: str, spread: dict[str, Any]) -> None:
    check(comm, Setting(name, options=WIDE, **spread))


@pytest.mark.parametrize("name", ["gat", "gatv2", "transformer"])
@pytest.mark.parametrize("spread", SPREADS, ids=str)
def test_masks_are_the_same_at_any_rank_count(
    comm: MPI.Intracomm, name: str, spread: dict[str, Any]
) -> None:
    options = WIDE | {"attention_dropout": 0.3, "edge_dropout": 0.2}
    setting = Setting(name, options=options, **spread)
    if comm.size % setting.replication:
        pytest.skip("replication does not divide the ranks")
    _, alone = train(MPI.COMM_SELF, replace(setting, replication=1))
    mine, found = train(comm, setting)
    torch.testing.assert_close(found[0], alone[0][mine], rtol=1e-11, atol=1e-12)
    for own, other in zip(found[1:], alone[1:], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-11, atol=1e-11)


def train(comm: MPI.Intracomm, setting: Setting) -> tuple[slice, list[torch.Tensor]]:
    """Return the local rows, their logits in training, and all gradients."""
    rng = np.random.default_rng(4)
    x = torch.from_numpy(rng.normal(size=(NUM_NODES, NUM_FEATURES)))
    model = setting.model()
    with ProcessGrid(comm, setting.replication) as grid:
        row_map = RowMap(uneven_starts(NUM_NODES, grid.num_blocks, 14), grid.block)
        mine = slice(row_map.start, row_map.stop)
        products = make_products(grid, row_map, ugly_matrix(NUM_NODES, 53), setting)
        ids = np.arange(row_map.start, row_map.stop, dtype=np.int64)
        out = model(GraphView(products.operators, ids, grid.sum_over_blocks), x[mine], KEY)
        out.square().sum().backward()
        sum_gradients(grid, model.parameters())
    return mine, [out.detach(), *(each.grad for each in model.parameters())]


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
def test_gradients_by_differences(average: bool, dropped: bool) -> None:
    rng = np.random.default_rng(7)
    setting = Setting("gat", directed=False)
    with ProcessGrid(MPI.COMM_SELF) as grid:
        row_map = RowMap(np.array([0, 6]), 0)
        products = make_products(grid, row_map, ugly_matrix(6, 3), setting)
        (operator,) = products.operators.values()
        draw = edge_draw(KEY, 0.3, 0.2) if dropped else None
        heads = Heads(operator, lambda weights: AdditiveScores(weights, 0.2), average, draw)
        width = 33
        bias = (width if average else 3 * width,)
        shapes = [(6, 2), (3 * width, 2), (6, 2), (3, 2), (3, width), bias]
        inputs = [torch.from_numpy(rng.normal(size=shape)) for shape in shapes]
        for each in inputs:
            each.requires_grad_()
        assert torch.autograd.gradcheck(
            lambda *args: attend(*args, heads), inputs, atol=1e-7, fast_mode=True
        )
        x, projection, _, *rest = inputs
        assert torch.autograd.gradcheck(
            lambda x, *args: attend(x, projection, x, *args, heads),
            [x, *rest],
            atol=1e-7,
            fast_mode=True,
        )


@pytest.mark.parametrize("dropped", [False, True])
def test_products_and_log_sums_by_differences(dropped: bool) -> None:
    rng = np.random.default_rng(7)
    with ProcessGrid(MPI.COMM_SELF) as grid:
        row_map, setting = RowMap(np.array([0, 6]), 0), Setting("transformer")
        products = make_products(grid, row_map, ugly_matrix(6, 3), setting)
        (operator,) = products.operators.values()
        heads = ProductHeads(operator, edge_draw(KEY, 0.3, 0.2) if dropped else None)
        # Heads of 33 columns are processed one after the other.
        pairs, targets = (
            torch.from_numpy(rng.normal(size=(6, width))).requires_grad_() for width in (132, 66)
        )
        weights = pairs.new_empty(2, 0)

        def both(*inputs: torch.Tensor) -> torch.Tensor:
            result, lse = attend_products(*inputs, weights, heads)
            return torch.cat([result, torch.where(torch.isneginf(lse), 0.0, lse)], dim=1)

        assert torch.autograd.gradcheck(both, (pairs, targets), atol=1e-7, fast_mode=True)
