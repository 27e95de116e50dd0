import json

from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.autograd import WIDENED, Epilogue, graph_linear
from hpcgnn.autograd.numerics import mixed
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.kernels import reuse, reused_memory
from hpcgnn.operator import Meanwhile, OperatorSize, Transposed
from hpcgnn.spmm import DistributedSpMM, make_exchange
from hpcgnn.trace import TraceRecorder, trace_file
from tests.support.matrices import block_row, ugly_matrix, uneven_starts


@pytest.mark.parametrize(("in_width", "out_width"), [(3, 40), (40, 3), (8, 8)])
@pytest.mark.parametrize("needs_input", [False, True])
@pytest.mark.parametrize("own", ["none", "input", "other", "both"])
def test_every_order_has_the_right_gradients(
    comm: MPI.Intracomm, in_width: int, out_width: int, needs_input: bool, own: str
) -> None:
    matrix = ugly_matrix(44, 83)
    forth, back = torch.from_numpy(matrix.toarray()), torch.from_numpy(matrix.T.toarray())
    rng = np.random.default_rng(in_width)

    def draw(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=shape)).requires_grad_()

    full, bias, mixing = draw(44, in_width), draw(out_width), draw(44, out_width).detach()
    full.requires_grad_(needs_input)
    weights = [draw(out_width, in_width) for _ in range(2)]
    maps = [draw(out_width, in_width), draw(out_width, 5)]
    other = draw(44, 5)
    chosen = {"none": [], "input": [0], "other": [1], "both": [0, 1]}[own]
    expected = forth @ full @ weights[0].t() + back @ full @ weights[1].t() + bias
    for index in chosen:
        expected = expected + (full, other)[index] @ maps[index].t()
    (expected * mixing).sum().backward()
    trace = TraceRecorder.off()
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(44, comm.size, 2), comm.rank)
        mine = slice(row_map.start, row_map.stop)
        part = block_row(matrix, row_map)
        operator = DistributedSpMM(part, make_exchange("joint", grid, part, trace))
        x, others = (each.detach()[mine].clone() for each in (full, other))
        x.requires_grad_(needs_input)
        others.requires_grad_()
        known = [*weights, bias, *(maps[index] for index in chosen)]
        copies = [each.detach().clone().requires_grad_() for each in known]
        own_rows = [(x, others)[index] for index in chosen]
        result = graph_linear(
            [operator, Transposed(operator)],
            x,
            copies[:2],
            own=list(zip(own_rows, copies[3:], strict=True)),
            bias=copies[2],
        )
        (result * mixing[mine]).sum().backward()
        for each, whole in zip(copies, known, strict=True):
            total = torch.from_numpy(comm.allreduce(each.grad.numpy()))
            torch.testing.assert_close(total, whole.grad, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(result.detach(), expected.detach()[mine], rtol=1e-11, atol=1e-11)
    if needs_input:
        torch.testing.assert_close(x.grad, full.grad[mine], rtol=1e-11, atol=1e-11)
    if own in ("other", "both"):
        torch.testing.assert_close(others.grad, other.grad[mine], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(("in_width", "out_width"), [(16, 40), (40, 3), (140, 40)])
def test_logits_of_16_bit_rows_are_float32(
    comm: MPI.Intracomm,
    in_width: int,
    out_width: int,
    own: bool,
    fast: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mixed, "bfloat16_is_fast", lambda: fast)
    matrix = ugly_matrix(44, 83)
    matrix = matrix / abs(matrix).sum(1).max()
    rng = np.random.default_rng(in_width)

    def draw(*shape: int) -> torch.Tensor:
        # Whole numbers of few bits are the same in both precisions.
        return torch.from_numpy(rng.integers(-8, 9, shape)).double()

    full, bias, mixing = draw(44, in_width), rng.normal(size=out_width), draw(44, out_width)
    weights = [draw(out_width, in_width) for _ in range(1 + own)]
    known = [full, *weights, torch.from_numpy(bias).float().double()]
    for tensor in known:
        tensor.requires_grad_()
    expected = torch.from_numpy(matrix.toarray()) @ full @ weights[0].t() + known[-1]
    if own:
        expected = expected + full @ weights[1].t()
    (expected * mixing).sum().backward()
    trace = TraceRecorder.off()
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(44, comm.size, 2), comm.rank)
        mine = slice(row_map.start, row_map.stop)
        part = block_row(matrix, row_map, np.float32)
        operator = DistributedSpMM(part, make_exchange("joint", grid, part, trace))
        x = full.detach()[mine].bfloat16().requires_grad_()
        copies = [each.detach().float().requires_grad_() for each in known[1:]]
        roots = [(x, copies[1])] if own else []
        result = graph_linear(
            [operator], x, copies[:1], own=roots, bias=copies[-1], epilogue=WIDENED
        )
        assert result.dtype == torch.float32
        (result * mixing[mine].float()).sum().backward()
    near = {"rtol": 2**-6, "atol": 2**-7 * float(expected.detach().abs().max())}
    torch.testing.assert_close(result.double(), expected[mine], **near)
    of_rows = full.grad[mine]
    assert x.grad.dtype == torch.bfloat16
    scale = float(full.grad.abs().max())
    torch.testing.assert_close(x.grad.double(), of_rows, rtol=2**-6, atol=2**-6 * scale)
    for copy, whole in zip(copies, known[1:], strict=True):
        assert copy.grad.dtype == torch.float32
        total = comm.allreduce(copy.grad.double())
        scale = float(whole.grad.abs().max())
        torch.testing.assert_close(total, whole.grad, rtol=2**-6, atol=2**-6 * scale)


@pytest.mark.parametrize("exchange", ["aware", "joint", "oblivious"])
def test_what_needs_no_rows_of_others_is_done_while_they_travel(
    comm: MPI.Intracomm, tmp_path, exchange: str
) -> None:
    if comm.size == 1:
        pytest.skip("one rank exchanges nothing")
    path = trace_file(tmp_path, comm.rank)
    with ProcessGrid(comm) as grid, TraceRecorder.open(path, comm.rank, {}) as trace:
        row_map = RowMap(uneven_starts(44, comm.size, 2), comm.rank)
        part = block_row(ugly_matrix(44, 83), row_map)
        operator = DistributedSpMM(part, make_exchange(exchange, grid, part, trace))
        x = torch.ones(row_map.num_local, 3, dtype=torch.float64).requires_grad_()
        weights = [torch.ones(40, 3, dtype=torch.float64).requires_grad_() for _ in range(3)]
        both = [operator, Transposed(operator)]
        result = graph_linear(both, x, weights[:2], own=[(x, weights[2])])
        with trace.span("evaluate"):
            pass
        result.sum().backward()
    names = [json.loads(line)["name"] for line in path.read_text().splitlines()[1:]]
    middle = names.index("evaluate")
    forth, back = names[:middle], names[middle:]
    # Own rows are mapped during the first exchange, in both passes, and so are weights' gradients;
    # the first term is projected during the second's exchange.
    for part, works in (
        (forth, ["dense.own"]),
        (forth, ["dense.project"]),
        (back, ["dense.own", "dense.weight_gradient"]),
    ):
        place = part.index(works[0])
        assert part[place - 1].startswith("interior.")
        assert part[place : place + len(works)] == works
        after = part[place + len(works)]
        assert after.startswith(("wait.", "exchange.reverse", "boundary."))
    assert forth.count("dense.project") == 2
    for part in (forth, back):
        assert part.count("dense.own") == 1
    assert back.count("dense.weight_gradient") == 1


def test_the_trace_names_the_order() -> None:
    trace = TraceRecorder.unattached()
    with ProcessGrid(MPI.COMM_SELF) as grid:
        part = block_row(ugly_matrix(20, 1), RowMap(np.array([0, 20], np.int64), 0))
        operator = DistributedSpMM(part, make_exchange("aware", grid, part, trace))
        x, weight = torch.ones(20, 50, dtype=torch.float64), torch.ones(2, 50).double()
        graph_linear([operator], x, [weight])
    assert trace.totals()["dense.project"]["count"] == 1


@pytest.mark.parametrize("rows_of_a_piece", [7, 100])
@pytest.mark.parametrize("own", [False, True])
def test_a_first_layer_in_pieces(
    monkeypatch: pytest.MonkeyPatch, rows_of_a_piece: int, own: bool
) -> None:
    monkeypatch.setattr(mixed, "_CHUNK_ROWS", rows_of_a_piece)
    matrix, rng = ugly_matrix(44, 83, weighted=False), np.random.default_rng(5)

    def draw(*shape: int) -> torch.Tensor:
        # Results are bfloat16 numbers, so that the rectifier gives the same.
        return torch.from_numpy(rng.integers(-1, 2, size=shape)).float()

    x, mixing = draw(44, 3).bfloat16(), draw(44, 20).bfloat16()
    weights, bias, trace = [draw(20, 3), draw(20, 3)], draw(20), TraceRecorder.off()
    exact = [each.double().requires_grad_() for each in (*weights, bias)]
    expected = torch.from_numpy(matrix.toarray()) @ x.double() @ exact[0].t() + exact[2]
    if own:
        expected = expected + x.double() @ exact[1].t()
    (expected.relu() * mixing.double()).sum().backward()
    with ProcessGrid(MPI.COMM_SELF) as grid:
        part = block_row(matrix, RowMap(np.array([0, 44]), 0), np.float32)
        operator = DistributedSpMM(part, make_exchange("aware", grid, part, trace))
        for each in (*weights, bias):
            each.requires_grad_()
        result = graph_linear(
            [operator],
            x,
            weights[:1],
            own=[(x, weights[1])] if own else [],
            bias=bias,
            epilogue=Epilogue(np.arange(44)),
        )
        (result * mixing).sum().backward()
    for each, wanted in zip((*weights, bias), exact, strict=True):
        if each.grad is not None and wanted.grad is not None:
            torch.testing.assert_close(each.grad.double(), wanted.grad, rtol=0.01, atol=0.5)
    assert (weights[1].grad is None) != own


class _Recorder:
    """A permutation of rows that records how many arrays of their size are in use."""

    trace = TraceRecorder.off()

    def __init__(self, num_rows: int, row_bytes: int) -> None:
        self.size = OperatorSize(num_rows, num_rows, num_rows, 0)
        self._num_bytes, self.held = num_rows * row_bytes, []

    def apply(self, x: np.ndarray, meanwhile: Meanwhile | None = None) -> np.ndarray:
        pool = reuse._reuse.get()
        assert pool is not None
        pool._collect()
        self.held.append(pool._used_bytes / self._num_bytes)
        result = reuse.empty(x.shape, x.dtype)
        result[:] = x[::-1]
        return result

    apply_transpose = apply


def test_gradients_and_results_are_freed_before_the_layer_below_needs_memory() -> None:
    width, num_rows = 64, 1 << 12
    recorder = _Recorder(num_rows, 8 * width)
    x = torch.ones(num_rows, width, dtype=torch.float64).requires_grad_()
    epilogue = Epilogue(np.arange(num_rows))
    with reused_memory():
        rows = x
        for _ in range(3):
            weight = torch.eye(width, dtype=torch.float64)
            rows = graph_linear([recorder], rows, [weight], epilogue=epilogue)
        loss = rows.sum()
        del rows
        loss.backward()
    assert x.grad is not None
    assert (x.grad == 1).all()
    # The results of the layers below, and forward the rows to aggregate, backward their gradient.
    assert [round(number) for number in recorder.held] == [1, 2, 3, 3, 2, 1]
