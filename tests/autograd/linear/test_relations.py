"""Mapped means of relations equal their formula, whether the means are kept or recomputed."""

import importlib

import numpy as np
import pytest
import torch

from hpcgnn.autograd import relation_linear
from hpcgnn.comm import RunPosition
from hpcgnn.operator import CachedProduct, OperatorSize, RelationOrder
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array

F64 = torch.zeros((), dtype=torch.float64)
KINDS = np.repeat(range(3), [4, 0, 2])
"""The relation of each row of means."""
ROWS = [np.array(each, np.int32) for each in ([4, 0, 4, 2], [], [2, 1])]


@pytest.fixture
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RelationOrder:
    """Sets the order of a layer's products, which need not be the cheapest."""
    module = importlib.import_module("hpcgnn.autograd.linear.relations")
    monkeypatch.setattr(module, "choose_relation_order", lambda *_, **__: request.param)
    chosen: RelationOrder = request.param
    return chosen


class DenseMeans:
    """A dense matrix that counts its products."""

    trace = TraceRecorder.off()

    def __init__(self, matrix: Array, *, sequential: bool) -> None:
        self._matrix, self.num_products, self.run_position = matrix, 0, RunPosition()
        self.size = OperatorSize(*matrix.shape, np.count_nonzero(matrix), 0, False, sequential)

    @property
    def shape(self) -> tuple[int, int]:
        return self._matrix.shape

    def apply(self, x: Array) -> Array:
        self.num_products += 1
        return self._matrix @ x

    def apply_transpose(self, gradient: Array) -> Array:
        return self._matrix.T @ gradient

    def apply_chosen(self, x: Array, num_relations: int) -> Array:
        blocks = x.reshape(len(x), num_relations, -1)
        return np.einsum("tn,ntw->tw", self._matrix, blocks[:, KINDS])

    def apply_chosen_transpose(self, gradient: Array, num_relations: int) -> Array:
        own = np.eye(num_relations)[KINDS]
        blocks = np.einsum("tn,tr,tw->nrw", self._matrix, own, gradient)
        return blocks.reshape(len(blocks), -1)


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("needs_input", [False, True])
@pytest.mark.parametrize("order", RelationOrder, indirect=True)
@pytest.mark.usefixtures("order")
def test_equals_index_add_and_its_gradients(sequential: bool, needs_input: bool) -> None:
    rng = np.random.default_rng(3)
    operator = DenseMeans(rng.normal(size=(6, 5)), sequential=sequential)
    x = torch.from_numpy(rng.normal(size=(5, 3))).requires_grad_(needs_input)
    weights = torch.from_numpy(rng.normal(size=(3, 3, 2))).requires_grad_()
    own = torch.from_numpy(rng.normal(size=(5, 2))).requires_grad_()

    def ours(own: torch.Tensor, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return relation_linear(operator, ROWS, x, weights, own.clone())

    def formula(own: torch.Tensor, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        means = torch.from_numpy(operator._matrix) @ x
        for where, part, weight in zip(ROWS, means.split([4, 0, 2]), weights, strict=True):
            own = own.index_add(0, torch.from_numpy(where).long(), part @ weight)
        return own

    torch.testing.assert_close(ours(own, weights, x), formula(own, weights, x))
    assert torch.autograd.gradcheck(ours, (own, weights, x))
    # The first pass leaves saved tensors unchanged.
    out = ours(own, weights, x).square().sum()
    wanted = [each for each in (own, weights, x) if each.requires_grad]
    first = torch.autograd.grad(out, wanted, retain_graph=True)
    again = torch.autograd.grad(out, wanted)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize(("sequential", "products"), [(False, 1), (True, 2)])
@pytest.mark.parametrize(
    "order", [RelationOrder.BY_RELATION, RelationOrder.SIDE_BY_SIDE], indirect=True
)
@pytest.mark.usefixtures("order")
def test_products_of_a_step(sequential: bool, products: int) -> None:
    operator = DenseMeans(np.ones((6, 5)), sequential=sequential)
    x, weights = F64.new_ones(5, 3), F64.new_ones(3, 3, 2).requires_grad_()
    relation_linear(operator, ROWS, x, weights, F64.new_zeros(5, 2)).sum().backward()
    assert operator.num_products == products


def test_a_cached_product_stays_as_it_is() -> None:
    inner = DenseMeans(np.random.default_rng(1).normal(size=(6, 5)), sequential=True)
    x = F64.new_ones(5, 3)
    kept = CachedProduct(inner, x.numpy())
    before, weights = kept.product.copy(), F64.new_ones(3, 3, 2).requires_grad_()
    relation_linear(kept, ROWS, x, weights, F64.new_zeros(5, 2)).sum().backward()
    np.testing.assert_array_equal(kept.product, before)
    assert inner.num_products == 1


def test_no_relation_has_rows() -> None:
    operator = DenseMeans(np.zeros((0, 2)), sequential=False)
    none = [np.zeros(0, np.int32)]
    x, weights = F64.new_ones(2, 3), F64.new_ones(1, 3, 4)
    out = relation_linear(operator, none, x, weights, F64.new_ones(2, 4))
    assert torch.equal(out, F64.new_ones(2, 4))
