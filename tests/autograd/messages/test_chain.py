"""Chains of maps in fused kernels equal plain torch: outputs and gradients."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hpcgnn.autograd import Chain, ChainMap, run_chain
from hpcgnn.autograd.messages import chain
from hpcgnn.autograd.messages.chain import ChainRun, Ends
from hpcgnn.autograd.messages.edge_chain import ChainEdges, EdgeChain

NUM_ROWS, ENDS = 23, (4, 9)


def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    made = torch.from_numpy(np.random.default_rng(sum(shape)).normal(size=shape)).to(dtype)
    return made.requires_grad_()


def make(
    widths: Sequence[int],
    parts: Sequence[int],
    activation: str = "relu",
    *,
    normed: bool = True,
    residual: bool = False,
) -> Chain:
    """Return a chain of some widths, whose first map reads side-by-side parts of some widths."""
    torch.manual_seed(len(widths))
    ends = np.cumsum([0, *parts])
    columns = [slice(*pair) for pair in pairwise(ends)]
    first = ChainMap(numbers(widths[0], 2 + sum(parts))[:, 2:].detach().requires_grad_(),
                     numbers(widths[0]), columns)  # fmt: skip
    rest = [ChainMap(numbers(b, a + 1)[:, :a].detach().clone().requires_grad_(), numbers(b))
            for a, b in pairwise(widths)]  # fmt: skip
    norm = nn.LayerNorm(widths[-1]).double() if normed else None
    if norm is not None:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return Chain([first, *rest], activation, norm, residual)


CASES = {
    "one map": make([5], [3], normed=False),
    "maps and norm": make([7, 6, 5], [3]),
    "maps": make([7, 6, 5], [3], normed=False),
    "maps and input": make([7, 6, 3], [3], "gelu", normed=False, residual=True),
    "elu": make([7, 6, 5], [3], "elu"),
    "gelu": make([7, 6, 5], [3], "gelu"),
    "side by side": make([7, 5, 5], [5, 2], residual=True),
    "odd": make([33, 17, 17], [17], "elu", residual=True),
}


def widths_of(case: Chain) -> list[int]:
    return [part.stop - part.start for part in case.maps[0].columns]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("rows_of_block", [1, 5, 1000])
def test_rows_equal_plain_torch(
    monkeypatch: pytest.MonkeyPatch, name: str, keeps: bool, rows_of_block: int
) -> None:
    case = CASES[name]
    widest = max(len(each.weight) for each in case.maps)
    monkeypatch.setattr(chain, "BLOCK_BYTES", rows_of_block * widest * 8)
    monkeypatch.setattr(chain, "KEPT_BYTES", 0)
    for num_rows in (NUM_ROWS, 0):
        inputs = [numbers(num_rows, width) for width in widths_of(case)]
        found, right = run_chain(case, inputs, keeps=keeps), case.whole(inputs)
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)
        factors = numbers(*right.shape).detach()
        leaves = [*inputs, *case.parameters()]
        pair = [torch.autograd.grad((each * factors).sum(), leaves) for each in (found, right)]
        torch.testing.assert_close(*pair, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("name", "again"), [("maps and norm", 3), ("maps", 2), ("one map", 0)])
def test_what_nobody_reads_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch, name: str, again: int
) -> None:
    case, run, counts = CASES[name], ChainRun._run, list[int]()
    monkeypatch.setattr(ChainRun, "_run", lambda *args: [counts.append(args[-1]), run(*args)])
    columns = sum(len(each.weight) for each in case.maps)
    # Small results are kept.
    for kept_bytes, more in ((NUM_ROWS * columns * 8 - 1, again), (NUM_ROWS * columns * 8, 0)):
        monkeypatch.setattr(chain, "KEPT_BYTES", kept_bytes)
        made = run_chain(case, [numbers(NUM_ROWS, 3)])
        assert sum(counts) == len(case.maps)
        made.sum().backward()
        assert sum(counts) == len(case.maps) + more
        counts.clear()


def test_gradients_are_those_of_differences() -> None:
    case = CASES["elu"]
    x = numbers(6, 3)
    assert torch.autograd.gradcheck(lambda x, *_: run_chain(case, [x]), (x, *case.parameters()))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("reads_states", [True, False])
def test_edges_equal_plain_torch(name: str, reads_states: bool) -> None:
    case = CASES[name]
    if not reads_states:
        first = case.maps[0]._replace(columns=[])
        case = Chain([first, *case.maps[1:]], case.activation, case.norm)
    elif len(case.maps[0].columns) > 1:
        pytest.skip("edges have one state")
    rng, width = np.random.default_rng(4), len(case.maps[0].weight)
    ids = [np.sort(rng.integers(0, ENDS[0], NUM_ROWS)), rng.integers(0, ENDS[1], NUM_ROWS)]
    targets, sources = (numbers(count, width) for count in ENDS)
    states = numbers(NUM_ROWS, widths_of(case)[0]) if reads_states else None
    inputs = [] if states is None else [states]
    right = case.whole(inputs, [targets[ids[0]], sources[ids[1]]])
    factors = numbers(*right.shape).detach()
    parameters = [
        each for each in case.parameters() if reads_states or each is not case.maps[0].weight
    ]
    leaves = [targets, sources, *inputs, *parameters]
    expected = torch.autograd.grad((right * factors).sum(), leaves)
    totals = {id(each): torch.zeros_like(each) for each in parameters}
    run = EdgeChain(case, targets, totals)
    places = [torch.from_numpy(each.astype(np.int32)) for each in ids]
    of = [torch.zeros_like(each) for each in (targets, sources, *inputs)]
    for kept, reads in ((None, True), (None, False), (run.keep(NUM_ROWS, always=True), True)):
        for each in (*of, *totals.values()):
            each.zero_()
        for some in (slice(0, 9), slice(9, 9), slice(9, NUM_ROWS)):
            given, gradients = (
                ChainEdges(
                    Ends(one[0].detach(), places[0][some], one[1].detach(), places[1][some]),
                    one[2].detach()[some] if reads_states else None,
                    some,
                )
                for one in ((targets, sources, *inputs), of)
            )
            made = run.messages(given, kept)
            torch.testing.assert_close(made, right.detach()[some], rtol=1e-12, atol=1e-12)
            again = run.recompute(given, kept, reads=reads)
            assert (again is None) == (not reads)
            if reads:
                torch.testing.assert_close(again, made, rtol=0, atol=0)
            run.add_gradients(given, kept, factors[some], gradients)
        found = [*of, *totals.values()]
        torch.testing.assert_close(found, list(expected), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
def test_other_precisions(dtype: torch.dtype, tolerance: float) -> None:
    wide = CASES["maps and norm"]
    maps = [ChainMap(w.detach().float().requires_grad_(), b.detach().float().requires_grad_(), c)
            for w, b, c in wide.maps]  # fmt: skip
    assert wide.norm is not None
    norm = nn.LayerNorm(5)
    norm.load_state_dict(wide.norm.state_dict())
    narrow = Chain(maps, wide.activation, norm)
    x = numbers(500, 3)
    given = x.detach().to(dtype).requires_grad_()
    found, right = run_chain(narrow, [given]), wide.whole([x])
    assert found.dtype == dtype
    factors = numbers(*right.shape).detach()
    left = torch.autograd.grad((found * factors.to(dtype)).sum(), [given, *narrow.parameters()])
    other = torch.autograd.grad((right * factors).sum(), [x, *wide.parameters()])
    for mine, exact in zip((found.detach(), *left), (right.detach(), *other), strict=True):
        scale = float(exact.abs().max())
        assert float((mine.double() - exact).abs().mean()) < tolerance * scale / 10
    assert [each.dtype for each in left[1:]] == [torch.float32] * (len(left) - 1)


def test_parameters_that_do_not_learn_get_nothing() -> None:
    case = make([7, 6, 5], [3])
    case.maps[0].weight.requires_grad_(False)
    x = numbers(NUM_ROWS, 3).detach()
    run_chain(case, [x]).sum().backward()
    assert case.maps[0].weight.grad is None
    assert case.maps[1].weight.grad is not None
