"""Sizes that are equal by chance do not change which axis of a tensor has rows."""

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
        x = torch.cat([x, x.new_ones(rows, 2, size), torch.zeros(len(x), 2, size)], 1).sum(1)
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
        return x * joined + float(np.sqrt(rows)) + 1 / (3 - rows * 2)


CASES: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "turns": (Turns, "x edges"),
    "spreads": (lambda _: Spreads(), "x edges"),
    "counts": (lambda _: Counts(), "x edges"),
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
    "item": lambda x: x[:, 0].item() if len(x) == 1 else x.tolist(),
    "median": lambda x: x.median(0),
    "linear": lambda x: nn.functional.linear(x.t(), torch.ones(3, len(x))),
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
    "utils.checkpoint": lambda x: checkpoint(lambda y: y.mean(0), x + 1, use_reentrant=False),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_joins_rows_is_refused(name: str) -> None:
    class Module(nn.Module):
        def forward(self, x: Tensor, _edges: Tensor) -> Any:
            return REFUSED[name](x)

    with ProcessGrid(MPI.COMM_SELF) as grid, doubles():
        problem = make_problem(grid)
        with pytest.raises(InputError, match=rf"torch\.{name}|torch\.tolist"):
            distribute(Module())(problem.own["x"], problem.own["edges"])


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
