"""Correct and Smooth equals its published recipe on dense matrices, for any number of ranks."""

from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.graph.operators import Adjacency, make_operators
from hpcgnn.nn import (
    CorrectAndSmooth,
    Propagation,
)
from hpcgnn.operator import Aggregation, Transposed
from hpcgnn.trace import TraceRecorder
from tests.support.matrices import block_row, ugly_matrix, uneven_starts

NUM_NODES, NUM_CLASSES = 53, 4
ALPHAS, STEPS = (0.9, 0.8), (6, 5)


def dense_matrix(name: str, a: np.ndarray) -> np.ndarray:
    degrees = a.sum(1)
    inverse = np.divide(1.0, degrees, out=np.zeros_like(degrees), where=degrees > 0)
    if name == "DAD":
        return np.sqrt(inverse)[:, None] * a * np.sqrt(inverse)[None]
    return inverse[:, None] * a if name == "DA" else a * inverse[None]


def recipe(
    matrix: np.ndarray,
    scores: np.ndarray,
    truth: np.ndarray,
    known: np.ndarray,
    scale: float | None,
) -> np.ndarray:
    """Return the results of both stages, computed step by step on arrays."""
    first = np.where(known[:, None], truth - scores, 0.0)
    errors = first.copy()
    for _ in range(STEPS[0]):
        errors = ALPHAS[0] * matrix @ errors + (1 - ALPHAS[0]) * first
        if scale is None:
            errors = np.clip(errors, -1, 1)
        else:
            errors[known] = first[known]
    if scale is None:
        mean = np.abs(first[known]).sum() / known.sum()
        with np.errstate(divide="ignore"):
            factor = mean / np.abs(errors).sum(1, keepdims=True)
        factor[~np.isfinite(factor) | (factor > 1000)] = 1
    corrected = scores + (scale if scale is not None else factor) * errors
    start = np.where(known[:, None], truth, corrected)
    out = start
    for _ in range(STEPS[1]):
        out = np.clip(ALPHAS[1] * matrix @ out + (1 - ALPHAS[1]) * start, 0, 1)
    return out


@pytest.mark.parametrize("replication", [1, 2])
@pytest.mark.parametrize("exchange", ["joint", "oblivious"])
@pytest.mark.parametrize(("name", "scale"), [("DAD", None), ("DA", 0.7), ("AD", None)])
def test_equals_the_recipe(
    comm: MPI.Intracomm, name: str, scale: float | None, exchange: str, replication: int
) -> None:
    if comm.size % replication:
        pytest.skip("replication does not divide the ranks")
    matrix = ugly_matrix(NUM_NODES, 23, symmetric=True)
    rng = np.random.default_rng(4)
    scores = rng.dirichlet(np.ones(NUM_CLASSES), NUM_NODES)
    truth = np.eye(NUM_CLASSES)[rng.integers(0, NUM_CLASSES, NUM_NODES)]
    known = rng.random(NUM_NODES) < 0.4
    expected = recipe(dense_matrix(name, matrix.toarray()), scores, truth, known, scale)
    with ProcessGrid(comm, replication) as grid:
        row_map = RowMap(uneven_starts(NUM_NODES, grid.num_blocks, 14), grid.block)
        mine = slice(row_map.start, row_map.stop)
        kinds = (Aggregation.SYMMETRIC, Aggregation.MEAN_IN)
        config = ExchangeConfig(method=exchange, replication=replication)
        ids = np.arange(row_map.start, row_map.stop, dtype=np.int64)
        make = make_operators(grid, config, TraceRecorder.off())
        products = Adjacency(make, block_row(matrix, row_map), kinds, np.float64, ids).products()
        mean = products.operators[Aggregation.MEAN_IN]
        operator = {
            "DAD": products.operators[Aggregation.SYMMETRIC],
            "DA": mean,
            "AD": Transposed(mean),
        }[name]
        stages = [Propagation(operator, *each) for each in zip(ALPHAS, STEPS, strict=True)]
        both = CorrectAndSmooth(stages[0], stages[1], scale, grid.sum_over_blocks)
        found = both(*(torch.from_numpy(each[mine].copy()) for each in (scores, truth, known)))
    np.testing.assert_allclose(found.numpy(), expected[mine], rtol=1e-12, atol=1e-13)
