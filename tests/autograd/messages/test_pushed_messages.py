"""Sums of messages that the owners of sources compute equal plain torch on the whole graph."""

from mpi4py import MPI

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hpcgnn.autograd import EdgeResult, reduce_messages
from hpcgnn.autograd.messages import edge_messages
from hpcgnn.comm import ProcessGrid
from hpcgnn.spmm import METHODS, RESIDENT, Schedule
from tests.autograd.messages.test_edge_messages import EXACT, close, numbers
from tests.support.message_edges import FETCHING, NUM_NODES, local_inputs, make_edges

WIDTH, STATE = 4, 3
PUSHING = sorted(set(METHODS) - set(FETCHING))


class _Message(nn.Module):
    """Messages of targets, sources and states."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2 * WIDTH + STATE, 5)

    def forward(self, targets: Tensor, sources: Tensor, states: Tensor) -> Tensor:
        return torch.tanh(self.first(torch.cat([targets, sources, states], dim=1)))


class _OfSources(nn.Module):
    """Messages without targets, which are then not fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(STATE, WIDTH)

    def forward(self, targets: None, sources: Tensor, states: Tensor) -> Tensor:
        assert targets is None
        return torch.tanh(self.first(states)) * sources


class _OfStates(nn.Module):
    """Messages of states alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(STATE, WIDTH)

    def forward(self, targets: None, sources: None, states: Tensor) -> Tensor:
        return torch.tanh(self.first(states))


@pytest.mark.parametrize("schedule", [RESIDENT, Schedule(sequential=True)])
@pytest.mark.parametrize("exchange", PUSHING)
@pytest.mark.parametrize("kind", [_Message, _OfSources, _OfStates])
def test_it_equals_plain_torch(
    comm: MPI.Intracomm,
    monkeypatch: pytest.MonkeyPatch,
    schedule: Schedule,
    exchange: str,
    kind: type[nn.Module],
) -> None:
    monkeypatch.setattr(edge_messages, "BLOCK_BYTES", 7 * (2 * WIDTH + STATE) * 8)
    torch.manual_seed(1)
    module, ends = kind().double(), make_edges()
    x = numbers(NUM_NODES, WIDTH).requires_grad_()
    states = numbers(ends.shape[1], STATE)
    sources, targets = torch.from_numpy(ends)
    reads = [kind is _Message, kind is not _OfStates]
    whole = module(
        *(x[i] if r else None for r, i in zip(reads, (targets, sources), strict=True)), states
    )
    sums = torch.zeros(NUM_NODES, whole.shape[1], dtype=x.dtype).index_add(0, targets, whole)
    degrees = torch.bincount(targets, minlength=NUM_NODES).clamp(min=1)[:, None]
    expected = torch.cat([sums / degrees, sums], dim=1)
    factors, parameters = numbers(*expected.shape), list(module.parameters())
    right = torch.autograd.grad((expected * factors).sum(), [x, *parameters], allow_unused=True)
    with ProcessGrid(comm) as grid:
        edges, rows, _ = local_inputs(
            grid, ends, states.numpy(), exchange=exchange, schedule=schedule
        )
        own = x.detach()[rows].requires_grad_()
        given = [own if read else None for read in reads]
        found, _ = reduce_messages(
            edges,
            module,
            targets=given[0],
            sources=given[1],
            states=edges.features,
            reduce=("mean", "sum"),
        )
        close(found, expected[rows], **EXACT)
        left = torch.autograd.grad(
            (found * factors[rows]).sum(), [own, *parameters], allow_unused=True
        )
    assert (left[0] is None) == (right[0] is None)
    if left[0] is not None:
        close(left[0], right[0][rows], **EXACT)
    for mine, other in zip(left[1:], right[1:], strict=True):
        close(torch.from_numpy(comm.allreduce(mine.numpy())), other, **EXACT)


def test_every_edge_is_computed_once(comm: MPI.Intracomm) -> None:
    ends = make_edges()
    features = np.arange(ends.shape[1], dtype=np.float64)[:, None]
    for exchange in PUSHING:
        with ProcessGrid(comm) as grid:
            edges, rows, _ = local_inputs(grid, ends, features, exchange=exchange)
            degrees = np.bincount(ends[1], minlength=NUM_NODES)[rows]
            assert np.array_equal(edges.degrees.numpy(), degrees)
            everywhere = np.concatenate(comm.allgather(edges.features.numpy()[:, 0]))
        assert np.array_equal(np.sort(everywhere), features[:, 0])
        # If all rows are pushed, no target has an edge from another rank.
        if exchange == "push" and comm.size > 1:
            owners = ends[0, edges.features.numpy()[:, 0].astype(int)]
            assert ((owners >= rows.start) & (owners < rows.stop)).all()


class _WithStates(_OfSources):
    def forward(self, targets: None, sources: Tensor, states: Tensor) -> EdgeResult:  # type: ignore[override]
        return EdgeResult(super().forward(targets, sources, states), states=states)


def test_what_does_not_add_up_is_refused(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        pytest.skip("nothing is pushed")
    ends = make_edges()
    with ProcessGrid(comm) as grid:
        edges, rows, _ = local_inputs(
            grid, ends, numbers(ends.shape[1], STATE).numpy(), exchange="push"
        )
        x = numbers(NUM_NODES, WIDTH)[rows]
        given = {"sources": x, "states": edges.features}
        with pytest.raises(ValueError, match="they cannot be reduced by max, sum: set exchange"):
            reduce_messages(edges, _OfSources().double(), **given, reduce=["max", "sum"])
        with pytest.raises(ValueError, match="edges have no states"):
            reduce_messages(edges, _WithStates().double(), **given)
