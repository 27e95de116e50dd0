"""Products of integers: within their rounding of float64, in training only."""

import os
import platform
import subprocess
import sys
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.autograd import IntegerArithmetic
from hpcgnn.autograd.numerics import integers
from hpcgnn.autograd.numerics.plain import Arithmetic
from hpcgnn.comm import ProcessGrid
from hpcgnn.errors import InputError
from tests.support import training
from tests.support.integers import needs_integers, round_small_graphs

WIDTHS = [(64, 64), (65, 257), (300, 70)]
DTYPES = [torch.float32, torch.bfloat16]


def operands(
    inner: int, columns: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows of sizes 1e-6 to 1e6, more than two chunks, a matrix and a bias."""
    rng = np.random.default_rng(inner)
    rows = rng.normal(size=(2100, inner)) * 10.0 ** rng.uniform(-6, 6, (2100, 1))
    rows[7] = 0
    matrix = rng.normal(size=(inner, columns)) * 10.0 ** rng.uniform(-2, 2, columns)
    matrix[:, 3] = 0
    return (
        torch.from_numpy(rows).to(dtype),
        torch.from_numpy(matrix).float(),
        torch.from_numpy(rng.normal(size=columns)).float(),
    )


def bounds(rows: torch.Tensor, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the product in float64, and the most that rounding may change it."""
    x, w = rows.double(), matrix.double()
    half_x, half_w = x.abs().amax(1, True) / 254, w.abs().amax(0, True) / 254
    error = half_x * w.abs().sum(0) + half_w * x.abs().sum(1, True) + len(w) * half_x * half_w
    return x @ w, error


@needs_integers
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("widths", WIDTHS)
def test_products_round_as_they_may(widths: tuple[int, int], dtype: torch.dtype) -> None:
    rows, matrix, bias = operands(*widths, dtype)
    expected, error = bounds(rows, matrix)
    calculates = IntegerArithmetic(lambda: True)
    # Results of 16 bits are rounded once more.
    last = torch.finfo(dtype).eps
    found = calculates.product(rows, matrix)
    assert found.dtype == dtype
    assert ((found.double() - expected).abs() <= 1.001 * error + last * expected.abs()).all()
    assert not torch.equal(found.double(), expected)
    wide = calculates.affine(rows, matrix, bias, dtype=torch.float32)
    shifted = expected + bias.double()
    sizes = expected.abs() + bias.abs().double()
    assert ((wide.double() - shifted).abs() <= 1.001 * error + 1e-6 * sizes).all()
    total = found.clone()
    calculates.add_product(total, rows, matrix)
    assert ((total.double() - 2 * found.double()).abs() <= 2 * last * found.double().abs()).all()


@needs_integers
@pytest.mark.parametrize("widths", [(70, 200), (70, 40)])
def test_gradients_of_weights_together_are_those_of_each(widths: tuple[int, int]) -> None:
    left = operands(96, 70, torch.float32)[0]
    rights = [operands(width, 70, torch.float32)[0] for width in widths]
    rounded, exact = IntegerArithmetic(lambda: True), Arithmetic()
    for total, right in zip(rounded.contract_all(left, rights), rights, strict=True):
        alone = exact if right.shape[1] < 64 else rounded
        assert torch.equal(total, alone.contract(left, right))


@needs_integers
def test_integers_are_exact() -> None:
    rng = np.random.default_rng(3)
    rows, matrix = (
        torch.from_numpy(rng.integers(-127, 128, shape)).float() for shape in ((1500, 90), (90, 80))
    )
    rows[:, 0], matrix[0] = 127, -127
    found = IntegerArithmetic(lambda: True).product(rows, matrix)
    torch.testing.assert_close(found.double(), rows.double() @ matrix.double(), rtol=1e-6, atol=0)


@needs_integers
@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_that_are_not_finite_stay_so(fault: float, dtype: torch.dtype) -> None:
    rows, matrix, _ = operands(65, 257, dtype)
    rows[11, 2], rows[2099, 64] = fault, fault
    found = IntegerArithmetic(lambda: True).product(rows, matrix)
    broken = ~torch.isfinite(found).all(1)
    assert broken.nonzero().flatten().tolist() == [11, 2099]
    total = IntegerArithmetic(lambda: True).contract(rows[:, :64].contiguous(), rows)
    assert not torch.isfinite(total[2]).any()
    assert not torch.isfinite(total[:, 64]).any()
    assert torch.isfinite(total[3:, 3:64]).all()


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not torch.backends.mkldnn.is_available(),
    reason="oneDNN of x86 saturates without these instructions",
)
def test_processors_without_integers_are_refused() -> None:
    check = "from hpcgnn.autograd import check_integers; check_integers()"
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    words = [sys.executable, "-c", check]
    run = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert run.returncode == 1
    assert "no AVX512-VNNI, AVX-VNNI or AMX" in run.stderr


@needs_integers
def test_few_or_narrow_rows_are_multiplied_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, matrix, _ = operands(65, 257, torch.float32)
    calculates = IntegerArithmetic(lambda: True)
    for few, some in ((rows[:1023], matrix), (rows, matrix[:, :63]), (rows[:, :63], matrix[:63])):
        given = few.contiguous(), some.contiguous()
        assert torch.equal(calculates.product(*given), Arithmetic().product(*given))
    # Positions of nodes are computed in float64; the sum of 2^17 products of 127 fits 32 bits.
    double = rows.double(), matrix.double()
    assert torch.equal(calculates.product(*double), Arithmetic().product(*double))
    assert torch.equal(calculates.contract(double[0], double[0]), double[0].t() @ double[0])
    assert integers._MOST_WIDTH * 127**2 < 2**31
    monkeypatch.setattr(integers, "_MOST_WIDTH", 64)
    assert torch.equal(calculates.product(rows, matrix), Arithmetic().product(rows, matrix))
    off = IntegerArithmetic(lambda: False)
    assert torch.equal(off.product(rows, matrix), Arithmetic().product(rows, matrix))


@needs_integers
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_round_as_they_may(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    # The last sum is of fewer rows.
    monkeypatch.setattr(integers, "_SUMMED_ROWS", 1600)
    rows, matrix, bias = operands(65, 257, dtype)
    rows /= rows.abs().amax(1, True) + 1e-9
    weights = torch.from_numpy(np.random.default_rng(5).normal(size=(2100, 257))).to(dtype)
    gradients = []
    for calculates in (IntegerArithmetic(lambda: True), IntegerArithmetic(lambda: False)):
        given = [t.clone().requires_grad_() for t in (rows, matrix.t().contiguous(), bias)]
        (calculates.linear(*given) * weights).sum().backward()
        gradients.append([t.grad for t in given])
    (of_rows, of_matrix, of_bias), (exact_rows, _, exact_bias) = gradients
    assert torch.equal(of_bias, exact_bias)
    _, error = bounds(weights, matrix.t())
    assert ((of_rows - exact_rows).double().abs() <= 1.1 * error + 0.01 * exact_rows.abs()).all()
    assert not torch.equal(of_rows, exact_rows)
    parts = [bounds(weights[part].t(), rows[part]) for part in (slice(1600), slice(1600, None))]
    exact_matrix, error = (sum(each) for each in zip(*parts, strict=True))
    assert of_matrix.dtype == torch.float32
    assert ((of_matrix.double() - exact_matrix).abs() <= 1.001 * error + 1e-5).all()


@needs_integers
def test_training_rounds_and_results_do_not(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: set[str] = set()
    inside, grids = integers._multiply, []
    begin = ProcessGrid.__init__

    def remember(grid: ProcessGrid, *given: object, **named: object) -> None:
        begin(grid, *given, **named)  # type: ignore[arg-type]
        grids.append(grid)

    def counted(*given: object, **named: object) -> torch.Tensor:
        ways.add(grids[-1].run_position.now.way)
        return inside(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(integers, "_multiply", counted)
    round_small_graphs(monkeypatch)
    monkeypatch.setattr(ProcessGrid, "__init__", remember)
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    words = ("model.name=sage", "model.hidden=64", "model.num_layers=3", "train.epochs=4")
    losses = {}
    for products in ("floats", "int8"):
        config = training.make_config(
            store, comm_tmp_path / products, *words, f"train.products={products}"
        )
        losses[products] = training.train(comm, config).column("train_loss")
        # A rank may have too few rows.
        found = set[str]().union(*comm.allgather(ways))
        assert found == (set() if products == "floats" else {"forward", "backward"})
    np.testing.assert_allclose(losses["int8"], losses["floats"], rtol=0.05)
    assert losses["int8"] != losses["floats"]


def test_they_are_refused_with_equal_bits(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    for word, reason in (
        ("train.reproducible=true", "its products are rounded"),
        ("train.dtype=float64", "needs train.dtype=float32"),
    ):
        with pytest.raises(InputError, match=reason):
            training.train(
                comm,
                training.make_config(store, comm_tmp_path / "no", "train.products=int8", word),
            )
