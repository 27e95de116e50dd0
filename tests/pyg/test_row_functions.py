"""Sizes that are equal by chance do not change which axis of a tensor has rows."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest
import torch
import torch_geometric.nn as geometric
from torch import Tensor, nn
from torch.overrides import get_testing_overrides
from torch.utils.checkpoint import checkpoint
from torch_geometric.utils import degree, scatter, softmax

from hpcgnn import InputError
from hpcgnn.comm import ProcessGrid
from hpcgnn.pyg import distribute
from tests.support.message_edges import NUM_NODES, block_rows
from tests.support.pyg_convs import ATTR, WIDTH, differences, doubles, make_problem


class Turns(nn.Module):
    """Moves the axis of rows past another one of the same size, and reduces over both."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 2 * size), nn.Linear(size, size)
        self.size = size

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        size, rows = self.size, x.size(0)
        x = self.first(x).view(rows, 2, size)
        x = x.permute(2, 1, 0) - x.permute(2, 1, 0).mean(0) + x.amax(0).t()[..., None]
        x = x.transpose(0, 2).reshape(-1, size).tanh().view(-1, 2 * size).view(x.shape[-1], 2, -1)
        x = x.softmax(-1) * x.softmax(1) + x.sum((0, 1)) / rows
        x = torch.cat([x, x.new_ones(rows, 2, size), torch.zeros(rows, 2, size)], 1).sum(1)
        wide = torch.zeros(size, x.size(0)).t() + self.last(x)
        return wide + torch.zeros_like(wide).index_add(0, edges[1], wide[edges[0]])


class Groups(nn.Module):
    """Sums by graphs of a batch, whose number equals another size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor, kind: Tensor, _edges: Tensor) -> Tensor:
        pooled = geometric.global_mean_pool(x, kind, size=self.size)
        return x * pooled[kind] + pooled.mean(0)


class Spreads(nn.Module):
    """Variances with flags given by position, and a sum in another dtype."""

    def forward(self, x: Tensor, _edges: Tensor) -> Tensor:
        wide = x.float().sum(0, dtype=torch.float64)
        return x * x.var(0, False) + x.t().var(0, False)[:, None] + x.std(0, True, True) + wide


class Counts(nn.Module):
    """Numbers of rows of all ranks in sums, differences and new tensors."""

    def forward(self, x: Tensor, _edges: Tensor) -> Tensor:
        rows, squares = x.size(0), (x - x.mean(0)).square().sum(0)
        joined = squares / (rows - 1) + x.sum() / x.numel() - x.sum(0) / (2 + sum([rows]))
        joined = joined / (-rows / (x.numel() // rows)) + x.sum(0) / x.new_full((WIDTH,), rows)
        joined = joined + rows % 4 + 100 // rows
        return x * joined + float(np.sqrt(rows)) + 1 / (3 - rows * 2)


class Reads(nn.Module):
    """Numbers of rows of all ranks read by Python, by its modules, by numpy and by layers."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        rows, ends, target = x.size(0), edges.size(1), edges[1]
        numbers = [
            *(math.log(rows), math.log2(ends), math.sqrt(rows), math.gcd(rows, 38)),
            *(1.0 / rows, 0.5 * rows, 2.0 - rows, 1.01**rows, 100 % rows, rows > 18.5, rows & 6),
            *(int(rows), round(rows), abs(-rows), float(str(rows)), divmod(rows, 7)[1]),
            *(ends / (rows * (rows - 1)), (rows + ends) / 7, ends // rows, len(range(rows))),
            *(math.prod(x.shape), float(np.prod(x.shape))),
        ]
        own = degree(target, rows) + 2 * degree(edges[0], num_nodes=rows)
        summed = scatter(softmax(x[edges[0]], target) * x[target], target, dim_size=rows)
        scaled = x * (own.mean() + own.max() + own.log1p().mean()) + own[:, None] + summed
        return scaled[:, None] * torch.tensor([float(number) for number in numbers])[:, None]


class Compares(nn.Module):
    """Branches on sizes, which are those of all ranks: one without rows must not leave early."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        if x.size(0) <= 1 or edges.size(1) == 0 or not x.size(0) or edges.numel() == 0:
            return x * 7
        with torch._C.DisableTorchFunction():
            own = len(x)
        assert x.size(0) == own
        assert x.shape == (own, WIDTH)
        large = (x.size(0) > NUM_NODES - 1) + 2 * (x.size(0) == NUM_NODES) + 4 * (x.size(0) != 5)
        return large * (x - x.mean(0)) + min(x.size(0), 7)


class Picks(nn.Module):
    """Rows picked by what a rank knows of its own rows, and entries of other axes by position."""

    def forward(self, x: Tensor, kind: Tensor, edges: Tensor) -> Tensor:
        rows, both = x.size(0), torch.cat([x, 2 * x])
        own = (x[:, 0] > 0).nonzero().view(-1)
        order = kind.argsort()
        ordered = torch.zeros_like(x).index_add(0, order, x[order])
        numbers, places = edges[1].sort()
        sums = geometric.SumAggregation()(x[edges[0]][places], numbers, dim_size=rows)
        columns = torch.cat([x[:, -1:], x[..., 1:2], x[:, [0]], x[None][0, :, :1]], 1)
        shapes = x.view(rows, 2, -1).transpose(0, 1).reshape(2, rows, -1).transpose(0, 1)
        return (
            (both[:rows] + 3 * both[rows:] + ordered + sums + columns + shapes.reshape(-1, WIDTH))
            .index_add(0, own, x[own])
            .add(x[edges].sum((0, 1)) + x.max(0).values)
        )


class Times(nn.Module):
    """Integers beyond 2^53, such as nanoseconds since 1970, are exact."""

    def forward(self, x: Tensor, kind: Tensor, edges: Tensor) -> Tensor:
        time = kind + 1_700_000_000_000_000_001
        ages = (time.max() - time + time.sum() % 1000 + time.min() % 1000).to(x)
        steps = (time[edges[1]] - time[edges[0]]).to(x)
        return x * ages[:, None] + torch.zeros_like(x).index_add(
            0, edges[1], steps[:, None] + x[edges[0]]
        )


CASES: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "turns": (Turns, "x edges"),
    "spreads": (lambda _: Spreads(), "x edges"),
    "counts": (lambda _: Counts(), "x edges"),
    "reads": (lambda _: Reads(), "x edges"),
    "compares": (lambda _: Compares(), "x edges"),
    "picks": (lambda _: Picks(), "x kind edges"),
    "times": (lambda _: Times(), "x kind edges"),
    "width": (lambda n: geometric.SAGEConv(WIDTH, n, ["mean", "max"]), "x edges"),
    "heads": (lambda n: geometric.GATv2Conv(WIDTH, 3, heads=n, edge_dim=ATTR), "x edges attr"),
    "head width": (lambda n: geometric.GATConv(WIDTH, n, heads=2), "x edges"),
    "batch": (lambda n: Groups(max(n, 3)), "x kind edges"),
    "models": (lambda n: geometric.GIN(WIDTH, n, 2, n, norm="graph_norm"), "x edges"),
}


def problem_ends(*, once: bool) -> np.ndarray:
    """Return edges, one for each node where a rank is to have as many edges as nodes."""
    targets = np.arange(NUM_NODES if once else 3 * NUM_NODES) % NUM_NODES
    return np.stack([np.random.default_rng(2).integers(0, NUM_NODES, len(targets)), targets])


# For a rank without nodes.
@pytest.mark.filterwarnings("ignore:var\\(\\)..degrees of freedom")
@pytest.mark.parametrize("once", [True, False], ids=["as many edges", "more edges"])
def test_sizes_equal_to_those_of_a_rank(comm: MPI.Intracomm, once: bool) -> None:
    with ProcessGrid(comm) as grid, doubles():
        problem = make_problem(grid, problem_ends(once=once))
        starts = block_rows(grid).starts
        counts = {int(each) for each in np.diff(starts)} | {1}
        found = {
            (name, size): differences(problem, partial(make, size), words)
            for name, (make, words) in CASES.items()
            for size in sorted(counts - {0})
        }
    assert {key: wrong for key, wrong in found.items() if wrong} == {}


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "cdist": lambda x: torch.cdist(x, x),
    "layer_norm": lambda x: nn.functional.layer_norm(x.t(), (x.size(0),)),
    "item": lambda x: x[:, 0].item() if x.size(0) == 1 else x.tolist(),
    "median": lambda x: x.median(0),
    "linear": lambda x: nn.functional.linear(x.t(), torch.ones(3, x.size(0))),
    "__getitem__": lambda x: x[0],
    "mse_loss": lambda x: nn.functional.mse_loss(x, x * 2),
    "unbind": lambda x: sum(x.unbind()),
    "split": lambda x: x.split(2)[0],
    "cat": lambda x: torch.cat([x, torch.ones(1, WIDTH)]),
    "conv1d": lambda x: nn.Conv1d(WIDTH, 2, 3, padding=1)(x.t()[None]),
    "lstm": lambda x: nn.LSTM(WIDTH, 2)(x),
    "gru": lambda x: nn.GRU(WIDTH, 2, batch_first=True)(x[None]),
    "renorm": lambda x: x.renorm(2, 1, 1.0),
    "bucketize": lambda x: torch.bucketize(x, x[:, 0]),
    "tensor": lambda x: x / torch.tensor(x.size(0)),
    "normal_": lambda x: torch.empty_like(x).normal_(),
    "grad": lambda x: torch.autograd.grad(x.requires_grad_().sum(), x),
    "view": lambda x: x.view(2, -1, WIDTH // 2),
    "reshape": lambda x: x.t().reshape(-1, WIDTH),
    "flatten": lambda x: torch.stack([x, x]).flatten(0, 1),
    "repeat": lambda x: x.repeat(2, 1).view(-1, 2, WIDTH),
    "as_strided": lambda x: x.as_strided(x.shape, (1, x.size(0))),
    "__getitem__ ": lambda x: x[:2],
    "__getitem__  ": lambda x: x[torch.tensor([0])],
    "__getitem__   ": lambda x: x[(x[:, 0] > 0).long()],
    "__setitem__": lambda x: x.clone().__setitem__([0], 1.0),
    "__setitem__ ": lambda x: torch.zeros(3, WIDTH).__setitem__((x[:, 0] > 0).long(), x),
    "index_select": lambda x: x.index_select(0, torch.tensor([0])),
    "index_add": lambda x: x.index_add(0, torch.tensor([0]), torch.ones(1, WIDTH)),
    "mul": lambda x: x * torch.arange(x.size(0))[:, None],
    "__len__": lambda x: x / len(x),
    "embedding": lambda x: nn.functional.embedding(torch.arange(x.size(0)), torch.ones(99, 2)),
    "eye": lambda x: torch.eye(x.size(0), WIDTH),
    "__getitem__    ": lambda x: x[x.max(0).indices],
    "view_as_real": lambda x: torch.complex(x, x).sum(0),
    "vmap": lambda x: torch.vmap(lambda column: column.mean(), 1)(x),
    "utils.checkpoint": lambda x: checkpoint(lambda y: y.mean(0), x + 1, use_reentrant=False),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_joins_rows_is_refused(name: str) -> None:
    class Module(nn.Module):
        def forward(self, x: Tensor, _edges: Tensor) -> Any:
            return REFUSED[name](x)

    with ProcessGrid(MPI.COMM_SELF) as grid, doubles():
        problem = make_problem(grid)
        with pytest.raises(InputError, match=rf"torch\.{name.strip()}|torch\.tolist"):
            distribute(Module())(problem.own["x"], problem.own["edges"])


OF_EDGES: dict[str, Callable[[Tensor], Any]] = {
    "__rdiv__": lambda edges: 1 / (edges[1].max() + 1),
    "mul": lambda edges: edges[1] * 2.0,
    "remainder": lambda edges: edges[1] % 2,
    "lt": lambda edges: edges[1] < 5,
    "__eq__": lambda edges: edges[1] == 0,
    "unique": lambda edges: edges[1].unique(),
    "embedding": lambda edges: nn.functional.embedding(edges[1], torch.ones(99, 2)),
}


@pytest.mark.parametrize("name", OF_EDGES)
def test_numbers_of_nodes_are_no_values(name: str) -> None:
    class Module(nn.Module):
        def forward(self, _x: Tensor, edges: Tensor) -> Any:
            return OF_EDGES[name](edges)

    with ProcessGrid(MPI.COMM_SELF) as grid, doubles():
        problem = make_problem(grid)
        with pytest.raises(InputError, match=rf"torch\.{name} on the targets of edges"):
            distribute(Module())(problem.own["x"], problem.own["edges"])


class Shifts(nn.Module):
    """Adds the mean of an argument that no node has."""

    def forward(self, x: Tensor, other: Tensor, _edges: Tensor) -> Tensor:
        return x + other.mean(0)


def test_an_argument_as_long_as_the_rows_of_one_rank_has_no_rows(comm: MPI.Intracomm) -> None:
    with ProcessGrid(comm) as grid, doubles():
        problem, lengths = make_problem(grid), comm.allgather(block_rows(grid).num_local)
        for length in {*lengths, 1} - {0, NUM_NODES}:
            other = torch.arange(float(length))[:, None]
            out = distribute(Shifts())(problem.own["x"], other, problem.own["edges"])
            if len(set(lengths)) > 1:
                torch.testing.assert_close(out, problem.own["x"] + other.mean(0))


def arguments(x: Tensor) -> Iterator[tuple[Any, ...]]:
    """Yield arguments of functions of a tensor with rows."""
    wide, kernel = x.t()[None], torch.ones(WIDTH, WIDTH, 3)
    yield from ((x,), (x, 0), (x, 1, 0), (x, [0]), (wide, 3, 1, 1), (wide, kernel, None, 1, 1))


def results(function: Callable[..., Any], given: Any) -> list[Tensor]:
    """Return the tensors of a result; none if the function does not take the arguments."""
    torch.manual_seed(1)
    try:
        out = function(*(each.clone() if isinstance(each, Tensor) else each for each in given))
    except InputError:
        raise
    except Exception:
        return []
    tensors = out if isinstance(out, (tuple, list)) else [out]
    tensors = [each for each in tensors if isinstance(each, Tensor) and not each.is_sparse]
    return [each if each.is_complex() else each.double() for each in tensors]


def by_row(out: Tensor, other: Tensor, order: Tensor) -> bool:
    """Return whether a result is one of rows in another order, or has no rows."""
    if out.shape != other.shape or len(order) not in out.shape:
        return True
    return any(
        torch.allclose(out.index_select(dim, order), other, atol=1e-8, equal_nan=True)
        for dim, size in enumerate(out.shape)
        if size == len(order)
    )


@pytest.mark.filterwarnings("ignore")
def test_functions_that_mix_rows_are_refused() -> None:
    class Module(nn.Module):
        def forward(self, x: Tensor, _edges: Tensor) -> None:
            for number, given in enumerate(arguments(x)):
                if (name, number) in mixing:
                    try:
                        if results(function, given):
                            wrong.append((name, number))
                    except InputError:
                        refused.add(name)

    refused: set[str] = set()
    wrong: list[tuple[str, int]] = []
    with ProcessGrid(MPI.COMM_SELF) as grid, doubles():
        problem = make_problem(grid)
        x = problem.own["x"]
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
        pairs = [*zip(arguments(x), arguments(x[order]), strict=True)]
        for function in get_testing_overrides():
            name = function.__name__
            # Uninitialised numbers are no function of others; dropout is drawn by node.
            if (
                "empty" in name
                or name == "dropout"
                or "distributed" in str(getattr(function, "__module__", ""))
            ):
                continue
            mixing = set()
            for number, (given, moved) in enumerate(pairs):
                both = zip(results(function, given), results(function, moved), strict=False)
                if not all(by_row(out, other, order) for out, other in both):
                    mixing.add((name, number))
            if mixing:
                distribute(Module())(x, problem.own["edges"])
    assert wrong == []
    assert len(refused) > 40
