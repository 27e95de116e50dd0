"""Passes of networks on edges, and their adjoints, equal plain torch in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn import kernels
from hpcgnn.kernels import EdgeEnds, NormSums, RowNorm

TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 0.03}
NUM_TARGETS, NUM_SOURCES = 5, 300
WIDTHS = [1, 7, 16, 37, 128]
CASES = pytest.mark.parametrize("kind", TOLERANCES)


def stored(array: Any, kind: str) -> Any:
    """Return an array in the form of the kernels' rows."""
    tensor = torch.from_numpy(np.asarray(array)).to(getattr(torch, kind)).contiguous()
    return (tensor.view(torch.uint16) if kind == "bfloat16" else tensor).numpy()


def column(array: Any, kind: str) -> Any:
    """Return an array in the form of the kernels' sums and columns."""
    return np.array(array, np.float64 if kind == "float64" else np.float32)


def exact(array: Any, kind: str, *, is_sum: bool = False) -> Tensor:
    tensor = torch.from_numpy(array)
    if kind == "bfloat16" and not is_sum:
        tensor = tensor.view(torch.bfloat16)
    return tensor.double()


def close(found: Any, expected: Tensor, kind: str, *, is_sum: bool = False) -> None:
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    tolerance = TOLERANCES[kind] * scale
    torch.testing.assert_close(
        exact(found, kind, is_sum=is_sum), expected, rtol=tolerance, atol=tolerance
    )


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def ends_of(num_rows: int) -> tuple[Any, Any]:
    """Return targets that never decrease, most of them one hub, and sources in any order."""
    rng = np.random.default_rng(num_rows)
    targets = np.sort(rng.choice([0, 2, 2, 2, 2, 4], num_rows)).astype(np.int32)
    return targets, rng.integers(0, NUM_SOURCES, num_rows).astype(np.int32)


ACTIVATIONS = {"none": lambda x: x, "relu": functional.relu, "elu": functional.elu}


@CASES
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("num_rows", [0, 1, 700])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("threads", [1, 3])
def test_combining(
    isa: str, kind: str, width: int, num_rows: int, activation: str, threads: int
) -> None:
    rows, upper = (stored(normal(seed, num_rows, width), kind) for seed in (1, 2))
    targets, sources = (
        stored(normal(3, count, width), kind) for count in (NUM_TARGETS, NUM_SOURCES)
    )
    bias, (target_ids, source_ids) = column(normal(4, width), kind), ends_of(num_rows)
    leaves = [exact(each, kind).requires_grad_() for each in (rows, targets, sources)]
    leaves.append(torch.from_numpy(bias).double().requires_grad_())
    inner = leaves[0] + leaves[1][target_ids] + leaves[2][source_ids] + leaves[3]
    expected = ACTIVATIONS[activation](inner)
    ends, how = EdgeEnds(targets, target_ids, sources, source_ids), {"threads": threads, "isa": isa}
    out = np.empty_like(rows)
    kernels.combine_rows(rows, out, ends=ends, bias=bias, activation=activation, **how)
    close(out, expected.detach(), kind)
    # The derivative is taken at the stored number.
    made = exact(out, kind)
    slope = {"none": torch.ones_like(made), "relu": (made > 0).double()}.get(
        activation, torch.where(made > 0, 1.0, made + 1)
    )
    of_rows = exact(upper, kind) * slope
    found = np.empty_like(rows)
    of_targets, of_sources = (column(normal(5, *each.shape), kind) for each in (targets, sources))
    of_bias = column(normal(6, width), kind)
    before = [torch.from_numpy(each.copy()).double() for each in (of_targets, of_sources, of_bias)]
    kernels.combine_rows_gradient(
        upper,
        found,
        activated=(activation, out),
        of_ends=EdgeEnds(of_targets, target_ids, of_sources, source_ids),
        of_bias=of_bias,
        **how,
    )
    close(found, of_rows, kind)
    close(of_targets, before[0].index_add(0, torch.from_numpy(target_ids).long(), of_rows), kind,
          is_sum=True)  # fmt: skip
    close(of_sources, before[1].index_add(0, torch.from_numpy(source_ids).long(), of_rows), kind,
          is_sum=True)  # fmt: skip
    close(of_bias, before[2] + of_rows.sum(0), kind, is_sum=True)


@CASES
@pytest.mark.parametrize("width", [5, 7, 16, 37, 128])
@pytest.mark.parametrize("num_rows", [0, 1, 700])
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
def test_norms(isa: str, kind: str, width: int, num_rows: int, normed: bool, threads: int) -> None:
    rows, residual, upper = (stored(3 + normal(seed, num_rows, width), kind) for seed in (1, 2, 3))
    bias, scale, shift = (column(normal(seed, width), kind) for seed in (4, 5, 6))
    norm = RowNorm(bias, scale, shift, 1e-5) if normed else RowNorm(bias)
    leaves = [exact(rows, kind).requires_grad_()]
    leaves += [torch.from_numpy(each).double().requires_grad_() for each in (bias, scale, shift)]
    inner = leaves[0] + leaves[1]
    made = functional.layer_norm(inner, (width,), *leaves[2:]) if normed else inner
    how: Any = {"norm": norm, "threads": threads, "isa": isa}
    out = np.empty_like(rows)
    kernels.norm_rows(rows, out, residual=residual, **how)
    close(out, made.detach() + exact(residual, kind), kind)
    gradients = torch.autograd.grad(made, leaves, exact(upper, kind), allow_unused=True)
    found, sums = np.empty_like(rows), NormSums(*np.zeros((3, width), bias.dtype))
    kernels.norm_rows_gradient(
        rows, upper, found, sums=sums if normed else NormSums(sums.bias), **how
    )
    for mine, right, is_sum in zip((found, *sums), gradients, (False, True, True, True),
                                   strict=True):  # fmt: skip
        expected = torch.zeros(width).double() if right is None else right
        close(mine, expected, kind, is_sum=is_sum)


@pytest.mark.parametrize("num_threads", [2, 4])
def test_sums_do_not_depend_on_threads(isa: str, num_threads: int) -> None:
    rows = normal(1, 3001, 33).astype(np.float32)
    target_ids, source_ids = ends_of(3001)
    found = []
    for threads in (1, num_threads):
        sums = [np.zeros((count, 33), np.float32) for count in (NUM_TARGETS, NUM_SOURCES)]
        of_bias = np.zeros(33, np.float32)
        of_ends = EdgeEnds(sums[0], target_ids, sums[1], source_ids)
        kernels.combine_rows_gradient(
            rows, np.empty_like(rows), of_ends=of_ends, of_bias=of_bias, threads=threads, isa=isa
        )
        found.append(np.concatenate([*sums, of_bias[None]]))
    np.testing.assert_array_equal(*found)


def test_numbers_that_are_none_stay_in_their_row(isa: str) -> None:
    rows = np.zeros((3, 20), np.float32)
    rows[1, 17] = np.nan
    out = np.empty_like(rows)
    for activation in ACTIVATIONS:
        kernels.combine_rows(rows, out, activation=activation, isa=isa)
        assert np.isnan(out).any(axis=1).tolist() == [False, True, False]


def test_wrong_arguments_are_refused() -> None:
    rows = np.zeros((3, 2), np.float32)
    ids = np.array([0, 1, 2], np.int32)
    with pytest.raises(ValueError, match="need rows and ids"):
        kernels.combine_rows(rows, rows, ends=EdgeEnds(targets=rows))
    with pytest.raises(ValueError, match="source_ids"):
        kernels.combine_rows(rows, rows, ends=EdgeEnds(sources=rows[:2], source_ids=ids))
    with pytest.raises(ValueError, match="activation must be"):
        kernels.combine_rows(rows, rows, activation="gelu")
    with pytest.raises(TypeError, match="must be float32"):
        kernels.norm_rows(rows, rows, norm=RowNorm(np.zeros(2)))
    with pytest.raises(TypeError, match="out must be float32, as the rows are"):
        kernels.norm_rows(rows, rows.astype(np.float64))
    with pytest.raises(ValueError, match="shape of the rows"):
        kernels.norm_rows_gradient(rows, rows[:2], rows)
