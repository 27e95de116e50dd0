"""Reduced messages equal plain torch on the whole graph: hubs, no edges, empty ranks, blocks."""

from collections.abc import Callable, Sequence

from mpi4py import MPI

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hpcgnn.autograd import EdgeResult, reduce_messages
from hpcgnn.autograd.messages import edge_messages
from hpcgnn.autograd.messages.reductions import REDUCTIONS
from hpcgnn.comm import ProcessGrid
from hpcgnn.spmm import RESIDENT, Schedule
from tests.support.message_edges import NUM_NODES, local_inputs, make_edges

WIDTH, STATE = 4, 3


class Message(nn.Module):
    """Messages of 6 columns with 2 scores, and new states."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2 * WIDTH + STATE, 8)
        self.message, self.score = nn.Linear(8, 6), nn.Linear(8, 2)
        self.state = nn.Linear(8, STATE)

    def forward(self, targets: Tensor, sources: Tensor, states: Tensor) -> EdgeResult:
        inner = torch.tanh(self.first(torch.cat([targets, sources, states], dim=1)))
        # Rounded columns tie for the largest number.
        message = self.message(inner)
        ties = message[:, :2].clamp(-0.2, 0.2)
        message = torch.cat([ties, message[:, 2:]], dim=1)
        return EdgeResult(message, 3 * self.score(inner), states + self.state(inner))


def serial(name: str, result: EdgeResult, targets: Tensor) -> Tensor:
    """Return (NUM_NODES, 6), computed node by node."""
    rows = []
    for node in range(NUM_NODES):
        message = result.message[targets == node]
        assert result.score is not None
        score = result.score[targets == node].repeat_interleave(3, dim=1)
        if len(message) == 0:
            rows.append(message.new_zeros(6))
        elif name == "softmax":
            rows.append((score.softmax(0) * message).sum(0))
        elif name == "std":
            variance = message.var(0, unbiased=False)
            rows.append(variance.clamp(min=1e-5).sqrt().where(variance > 1e-5, 0))
        elif name in ("max", "min"):
            rows.append(getattr(message, f"a{name}")(0))
        else:
            rows.append(getattr(message, name)(0))
    return torch.stack(rows)


def numbers(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).normal(size=shape))


close: Callable[..., None] = torch.testing.assert_close
EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.mark.parametrize("names", [*([name] for name in REDUCTIONS), list(REDUCTIONS)])
@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("schedule", [RESIDENT, Schedule(sequential=True)])
def test_it_equals_plain_torch(
    comm: MPI.Intracomm,
    monkeypatch: pytest.MonkeyPatch,
    names: Sequence[str],
    block: int,
    schedule: Schedule,
) -> None:
    monkeypatch.setattr(edge_messages, "BLOCK_BYTES", block * (2 * WIDTH + STATE) * 8)
    torch.manual_seed(1)
    module, ends = Message().double(), make_edges()
    x = numbers(NUM_NODES, WIDTH).requires_grad_()
    states = numbers(ends.shape[1], STATE).requires_grad_()
    sources, targets = torch.from_numpy(ends)
    whole = module(x[targets], x[sources], states)
    expected = torch.cat([serial(name, whole, targets) for name in names], dim=1)
    factors, of_states = numbers(*expected.shape), numbers(*whole.states.shape)
    loss = (expected * factors).sum() + (whole.states * of_states).sum()
    parameters = list(module.parameters())
    right = torch.autograd.grad(loss, [x, states, *parameters], allow_unused=True)
    with ProcessGrid(comm) as grid:
        edges, rows, chosen = local_inputs(grid, ends, schedule=schedule)
        own = x.detach()[rows].requires_grad_()
        given = states.detach()[chosen].requires_grad_()
        found, new = reduce_messages(
            edges, module, targets=own, sources=own, states=given, reduce=names
        )
        close(found, expected[rows], **EXACT)
        assert new is not None
        close(new, whole.states[chosen], **EXACT)
        loss = (found * factors[rows]).sum() + (new * of_states[chosen]).sum()
        left = torch.autograd.grad(loss, [own, given, *parameters])
    close(left[0], right[0][rows], **EXACT)
    close(left[1], right[1][chosen], **EXACT)
    for mine, other in zip(left[2:], right[2:], strict=True):
        total = torch.from_numpy(comm.allreduce(mine.numpy()))
        close(total, torch.zeros_like(total) if other is None else other, **EXACT)


class Alone(nn.Module):
    """Messages that depend on sources only."""

    def forward(self, targets: None, sources: Tensor, states: None) -> Tensor:
        assert targets is None
        assert states is None
        return sources**2


def test_inputs_may_be_left_out_and_states_be_those_of_nobody() -> None:
    ends = make_edges()
    with ProcessGrid.of_this_process() as grid:
        edges, _, _ = local_inputs(grid, ends)
        x = numbers(NUM_NODES, WIDTH).requires_grad_()
        found, states = reduce_messages(edges, Alone(), sources=x)
        assert states is None
        (of_x,) = torch.autograd.grad(found.sum(), x)
    degrees = torch.from_numpy(np.bincount(ends[0], minlength=NUM_NODES))[:, None]
    close(of_x, 2 * x.detach() * degrees, **EXACT)


def test_wrong_reductions_and_scores_are_refused() -> None:
    with ProcessGrid.of_this_process() as grid:
        edges, _, _ = local_inputs(grid, make_edges())
        x = numbers(NUM_NODES, WIDTH)
        for names in ([], ["sum", "median"]):
            with pytest.raises(ValueError, match="one or more of sum, mean"):
                reduce_messages(edges, Alone(), sources=x, reduce=names)
        with pytest.raises(TypeError, match=r"give a torch\.nn\.Module"):
            reduce_messages(edges, torch.relu, sources=x)
        with pytest.raises(ValueError, match="no scores"):
            reduce_messages(edges, Alone(), sources=x, reduce=["softmax"])
