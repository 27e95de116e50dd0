"""Logits and parameter gradients of every model equal a dense float64 reference."""

from mpi4py import MPI

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcgnn.autograd import DropoutKey, dropout
from hpcgnn.comm import CommPlan, ProcessGrid, RowMap
from hpcgnn.errors import InputError
from hpcgnn.nn import Aggregations, GraphView, Model, ModelShape, make_model
from hpcgnn.sparse import Transposed, column_mean, row_mean, symmetric
from hpcgnn.spmm import DistributedSpMM, make_exchange
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.optimise import sum_gradients
from tests.ugly import block_row, gather_rows, ugly_matrix, uneven_starts

NUM_NODES, NUM_FEATURES, NUM_CLASSES = 47, 9, 4
KEY = DropoutKey(5, 6)


def inverse(sums: Tensor) -> Tensor:
    return torch.where(sums > 0, 1 / sums, torch.zeros_like(sums))


def dense_operators(dense: Tensor) -> dict[Aggregations, Tensor]:
    rows, columns = inverse(dense.sum(1)), inverse(dense.sum(0))
    return {
        Aggregations.SYMMETRIC: rows.sqrt()[:, None] * dense * columns.sqrt()[None],
        Aggregations.MEAN_IN: rows[:, None] * dense,
        Aggregations.MEAN_OUT: (dense * columns[None]).T,
    }


def local_view(
    grid: ProcessGrid, row_map: RowMap, dense: np.ndarray, *, directed: bool
) -> GraphView:
    import scipy.sparse as sp

    part = block_row(sp.csr_matrix(dense), row_map)
    plan = CommPlan.from_ghosts(grid, row_map, part.ghosts)
    trace = TraceRecorder.off()
    mover = make_exchange("aware", grid, part, trace)
    operators = {
        Aggregations.SYMMETRIC: DistributedSpMM(
            grid, symmetric(part, plan, np.float64), mover, trace
        ),
        Aggregations.MEAN_IN: DistributedSpMM(grid, row_mean(part, np.float64), mover, trace),
    }
    if directed:
        product = DistributedSpMM(grid, column_mean(part, plan, np.float64), mover, trace)
        operators[Aggregations.MEAN_OUT] = Transposed(product)
    ids = np.arange(row_map.start, row_map.stop, dtype=np.int64)
    return GraphView(operators, ids)


def reference(name: str, model: Model, operators: dict[Aggregations, Tensor], x: Tensor) -> Tensor:
    ids = np.arange(NUM_NODES, dtype=np.int64)
    for place, layer in enumerate(model.layers):
        h = dropout(x, ids, KEY.at(place), model.shape.dropout_before(place))
        if name == "gcn":
            out = operators[Aggregations.SYMMETRIC] @ h @ layer.linear.weight.T + layer.bias
            if layer.residual is not None:
                out = out + h @ layer.residual.weight.T
        else:
            out = h @ layer.own.weight.T + layer.own.bias
            for kind, weight in zip(
                (Aggregations.MEAN_IN, Aggregations.MEAN_OUT), layer.neighbours, strict=False
            ):
                out = out + operators[kind] @ h @ weight.T
            if layer.residual:
                out = out + h
        x = out.relu() if place < len(model.layers) - 1 else out
    return x


@pytest.mark.parametrize("name", ["gcn", "sage"])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("residual", [False, True])
def test_equals_dense(
    comm: MPI.Intracomm, name: str, directed: bool, num_layers: int, residual: bool
) -> None:
    matrix = ugly_matrix(NUM_NODES, 53, symmetric=not directed)
    dense = torch.from_numpy(matrix.toarray())
    rng = np.random.default_rng(4)
    x = torch.from_numpy(rng.normal(size=(NUM_NODES, NUM_FEATURES)))
    weights = torch.from_numpy(rng.normal(size=(NUM_NODES, NUM_CLASSES)))
    shape = ModelShape(
        num_features=NUM_FEATURES,
        num_classes=NUM_CLASSES,
        hidden=6,
        num_layers=num_layers,
        dropout=0.3,
        input_dropout=0.2,
        residual=residual,
    )
    oracle, model = (
        make_model(name, shape, directed=directed, seed=9, dtype=torch.float64) for _ in range(2)
    )
    expected = reference(name, oracle, dense_operators(dense), x)
    (expected * weights).sum().backward()
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(NUM_NODES, comm.size, 14), comm.rank)
        mine = slice(row_map.start, row_map.stop)
        view = local_view(grid, row_map, dense.numpy(), directed=directed)
        logits = model(view, x[mine].clone(), KEY)
        (logits * weights[mine]).sum().backward()
        sum_gradients(grid, model.parameters())
        everything = gather_rows(comm, logits.detach().numpy())
        np.testing.assert_allclose(everything, expected.detach().numpy(), rtol=1e-11, atol=1e-12)
        assert model.embed(view, x[mine]).shape == (
            row_map.num_local,
            6 if num_layers > 1 else NUM_FEATURES,
        )
    for ours, theirs in zip(model.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-11, atol=1e-11)


def test_equal_seeds_make_equal_models_and_leave_the_generator() -> None:
    shape = ModelShape(num_features=3, num_classes=2, hidden=4, num_layers=2)
    before = torch.random.get_rng_state()
    one, two = (
        make_model("sage", shape, directed=True, seed=7, dtype=torch.float32) for _ in range(2)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def test_unknown_model() -> None:
    shape = ModelShape(num_features=3, num_classes=2, hidden=4, num_layers=2)
    with pytest.raises(InputError, match="gcn, sage"):
        make_model("gat2", shape, directed=False, seed=1, dtype=torch.float32)
