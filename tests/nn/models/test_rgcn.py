"""R-GCN, R-GAT and HGT equal dense formulas for every exchange, and fetch a ghost only once."""

from dataclasses import replace

from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.graph.operators import Adjacency, Products, make_operators
from hpcgnn.nn import (
    MODELS,
    Model,
    ModelShape,
    NodeTraits,
    make_model,
)
from hpcgnn.nn.models.rgcn import RGCNLayer
from hpcgnn.operator import Aggregation
from hpcgnn.sparse import DistCSR, PatternRows, stack_relations
from hpcgnn.sparse.assemble import reverse_rows
from hpcgnn.spmm import EXCHANGES, METHODS, SCHEDULES
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.gradients import sum_gradients
from tests.support.dense_models import Dense, logits
from tests.support.matrices import ugly_matrix, uneven_starts

NUM_NODES, WIDTH, NUM_CLASSES = 43, 5, 3
KEY = DropoutKey(2, 3)


def relations(*, weighted: bool = False) -> list[sp.csr_matrix]:
    """Return a relation with hubs, a sparse one and one without edges."""
    thin = sp.csr_matrix(([1.0, 1.0], ([4, 30], [7, 2])), shape=(NUM_NODES, NUM_NODES))
    empty = sp.csr_matrix((NUM_NODES, NUM_NODES))
    return [ugly_matrix(NUM_NODES, 31, weighted=weighted), sp.csr_matrix(thin), empty]


def pattern_rows(row_map: RowMap, matrix: sp.csr_matrix) -> PatternRows:
    rows = sp.csr_matrix(matrix[row_map.start : row_map.stop])
    rows.eliminate_zeros()
    indptr, columns = rows.indptr.astype(np.int64), rows.indices.astype(np.int64)
    return PatternRows(indptr, columns, rows.data.astype(np.float64))


def make_products(
    grid: ProcessGrid,
    row_map: RowMap,
    exchange: str,
    matrices: list[sp.csr_matrix],
    schedule: str = "resident",
    wanted: tuple[Aggregation, ...] = (Aggregation.MEAN_BY_RELATION,),
    types: np.ndarray | None = None,
) -> tuple[Products, DistCSR]:
    rows = [pattern_rows(row_map, matrix) for matrix in matrices]
    rows += [reverse_rows(grid, row_map, each) for each in rows]
    tall = stack_relations(row_map, rows)
    config = ExchangeConfig(method=exchange, replication=grid.replication, schedule=schedule)
    ids = np.arange(row_map.start, row_map.stop, dtype=np.int64)
    make = make_operators(grid, config, TraceRecorder.off())
    traits = NodeTraits(None if types is None else torch.from_numpy(types.astype(np.int64)))
    return Adjacency(make, tall, wanted, np.float64, ids, traits).products(), tall


def model(name: str, num_bases: int, norm: str) -> Model:
    shape = ModelShape(
        num_features=WIDTH,
        num_classes=NUM_CLASSES,
        hidden=4,
        num_layers=2,
        num_relations=6,
        dropout=0.3,
        norm=norm,
        num_bases=num_bases,
        heads=2,
    )
    return make_model(name, shape, directed=True, seed=9, dtype=torch.float64)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("name", "replication", "active", "num_bases", "norm"),
    [
        ("rgcn", 1, False, 0, "none"),
        ("rgcn", 1, True, 2, "batch"),
        ("rgcn", 2, True, 0, "batch"),
        ("rgcn", 2, False, 3, "none"),
        ("hgt", 1, True, 0, "batch"),
        ("hgt", 2, False, 0, "none"),
        ("rgat", 1, True, 0, "batch"),
        ("rgat", 2, False, 0, "none"),
    ],
)
def test_equals_dense(
    comm: MPI.Intracomm,
    exchange: str,
    schedule: str,
    name: str,
    replication: int,
    active: bool,
    num_bases: int,
    norm: str,
) -> None:
    if comm.size % replication:
        pytest.skip("replication does not divide the ranks")
    lacks = MODELS[name].traits().lacks
    if METHODS[exchange].needs & lacks.keys():
        pytest.skip("what it pushes is no sum")
    rng = np.random.default_rng(4)
    x = torch.from_numpy(rng.normal(size=(NUM_NODES, WIDTH)))
    weights = torch.from_numpy(rng.normal(size=(NUM_NODES, NUM_CLASSES)))
    targets = rng.random(NUM_NODES) < (0.2 if active else 1.0)
    ours, theirs = (model(name, num_bases, norm) for _ in range(2))
    matrices = relations(weighted=True)
    forward = [torch.from_numpy(matrix.toarray()) for matrix in matrices]
    both = (*forward, *(matrix.T for matrix in forward))
    dense = Dense(sum(both), directed=True, relations=both)
    dense = dense.with_sets(theirs, torch.from_numpy(targets))
    expected = logits(name, theirs, dense, x, KEY)
    (expected * weights)[torch.from_numpy(targets)].sum().backward()
    with ProcessGrid(comm, replication) as grid:
        row_map = RowMap(uneven_starts(NUM_NODES, grid.num_blocks, 14), grid.block)
        mine = slice(row_map.start, row_map.stop)
        wanted = type(ours).aggregations
        products, _ = make_products(grid, row_map, exchange, matrices, schedule, wanted)
        view, inputs = products.view, torch.arange(row_map.num_local)
        if active:
            found = products.active_views(targets[mine], 2)
            view, inputs = replace(view, active=found.layers), found.inputs
        out = ours(view, x[mine][inputs].clone(), KEY)
        chosen = torch.from_numpy(np.flatnonzero(targets[mine]))
        (out * weights[mine][chosen]).sum().backward()
        sum_gradients(grid, ours.parameters())
    torch.testing.assert_close(out, expected[mine][chosen], rtol=1e-11, atol=1e-12)
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("exchange", ["aware", "joint"])
def test_a_ghost_moves_once_for_all_relations(comm: MPI.Intracomm, exchange: str) -> None:
    matrices = relations()
    united = sum(matrices) + sum(matrix.T for matrix in matrices)
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(NUM_NODES, comm.size, 14), comm.rank)
        products, tall = make_products(grid, row_map, exchange, matrices)
        columns = np.unique(sp.csr_matrix(united)[row_map.start : row_map.stop].indices)
        elsewhere = columns[~row_map.is_local(columns)]
        np.testing.assert_array_equal(tall.ghosts, elsewhere)
        moved = comm.allreduce(int(products.exchange.volume().sent.sum()))
        fetched = comm.allreduce(len(elsewhere))
    assert moved == fetched if exchange == "aware" else moved <= fetched


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_adjoint(comm: MPI.Intracomm, exchange: str) -> None:
    rng = np.random.default_rng(comm.rank)
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(NUM_NODES, comm.size, 5), comm.rank)
        products, _ = make_products(grid, row_map, exchange, relations(weighted=True))
        operator = products.operators[Aggregation.MEAN_BY_RELATION]
        rows, columns = operator.shape
        x, y = rng.normal(size=(columns, 3)), rng.normal(size=(rows, 3))
        sides = [(operator.apply(x) * y).sum(), (x * operator.apply_transpose(y)).sum()]
        left, right = comm.allreduce(np.array(sides))
    np.testing.assert_allclose(left, right, rtol=1e-12)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("replication", [1, 2])
def test_rows_choose_the_columns_of_their_relation(
    comm: MPI.Intracomm, exchange: str, replication: int
) -> None:
    if comm.size % replication:
        pytest.skip("replication does not divide the ranks")
    count, width = 6, 3
    with ProcessGrid(comm, replication) as grid:
        row_map = RowMap(uneven_starts(NUM_NODES, grid.num_blocks, 5), grid.block)
        matrices = relations(weighted=True)
        products, _ = make_products(grid, row_map, exchange, matrices)
        operator = products.operators[Aggregation.MEAN_BY_RELATION]
        assert operator.size.chooses_columns
        rng = np.random.default_rng(grid.block)
        rows, columns = operator.shape
        x = rng.normal(size=(columns, count, width))
        gradient = rng.normal(size=(rows, width))
        kinds = np.repeat(range(count), [len(each) for each in products.view.relation_rows])
        own = np.arange(count)[:, None] == kinds
        found = operator.apply_chosen(x.reshape(columns, count * width), count)
        back = operator.apply_chosen_transpose(gradient, count)
        wide = operator.apply(x.reshape(columns, count * width)).reshape(rows, count, width)
        blocks = np.where(own.T[:, :, None], gradient[:, None], 0.0)
        expected = operator.apply_transpose(blocks.reshape(rows, count * width))
    np.testing.assert_allclose(found, wide[np.arange(rows), kinds], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(back, expected, rtol=1e-12, atol=1e-14)


def waiting_bytes(comm: MPI.Intracomm, schedule: str) -> int:
    """Return the bytes that three layers keep for the backward pass, without the weights."""
    waiting: dict[int, int] = {}

    def note(saved: torch.Tensor) -> torch.Tensor:
        waiting[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved

    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(NUM_NODES, comm.size, 14), comm.rank)
        dense = [ugly_matrix(NUM_NODES, seed) for seed in range(4)]
        products, _ = make_products(grid, row_map, "joint", dense, schedule)
        layers = [RGCNLayer(16, 16, 8).double() for _ in range(3)]
        x = torch.zeros(row_map.num_local, 16, dtype=torch.float64)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
            for place, layer in enumerate(layers):
                x = layer(products.view.layer(place), x)
        weights = {each.data_ptr() for layer in layers for each in layer.parameters()}
        mine = sum(size for place, size in waiting.items() if place not in weights)
        x.sum().backward()
        total: int = comm.allreduce(mine)
    return total


def test_means_do_not_wait_under_a_sequential_schedule(comm: MPI.Intracomm) -> None:
    assert waiting_bytes(comm, "sequential") <= 0.4 * waiting_bytes(comm, "resident")


@pytest.mark.parametrize("num_bases", [0, 60])
def test_more_relations_do_not_start_larger(num_bases: int) -> None:
    torch.manual_seed(1)
    layers = [RGCNLayer(64, 64, count, num_bases) for count in (60, 480)]
    few, many = (layer.weights(layer.matrices).detach() for layer in layers)
    # Means of equal rows in every relation add up to a map of the same size.
    sizes = [float(each.sum(0).square().mean()) for each in (few, many)]
    assert 0.5 < sizes[1] / sizes[0] < 2
