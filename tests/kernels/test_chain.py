"""Chains of maps in one call: products of any shape, every instruction set, any threads."""

from typing import Any

import numpy as np
import pytest

from hpcgnn import kernels
from hpcgnn.kernels import (
    ChainKernel,
    ChainParameters,
    ChainSums,
    EdgeEnds,
    MapArrays,
    NormSums,
    RowNorm,
)

TOLERANCES = {"float64": 1e-13, "float32": 1e-5}
SHAPES = [
    (1, 1, 1),
    (5, 3, 2),
    (64, 16, 16),
    (50, 33, 65),
    (300, 600, 7),
    (257, 128, 100),
    (0, 4, 4),
]
"""Numbers of rows, inputs and outputs: tiles of all sizes, partial and whole panels."""
EVERY_ISA = pytest.mark.parametrize("isa", kernels.available_isas())


def made(kind: str, *shape: int) -> Any:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(kind)


class OneMap:
    """A map of rows, and its gradients."""

    def __init__(self, kind: str, shape: tuple[int, int, int], **run: Any) -> None:
        rows, self.inner, width = shape
        # Columns of wider matrices, as in maps of several inputs.
        self.matrix, self.total = (
            made(kind, width, self.inner + 3)[:, 2:-1],
            made(kind, width, self.inner + 1)[:, 1:],
        )
        self.before = self.total.copy()
        self.kernel = ChainKernel(
            ChainParameters([MapArrays([self.matrix], None, width)], RowNorm()),
            ChainSums([MapArrays([self.total], None, width)], NormSums()),
            activation="relu", residual=False, is_wide=kind == "float64", **run,
        )  # fmt: skip
        self.rows, self.upper = made(kind, rows, self.inner), made(kind, rows, width)
        self.result, self.of_rows = np.empty_like(self.upper), np.empty_like(self.rows)
        self.kernel.forward(rows, [self.rows], None, [self.result])
        self.kernel.backward([self.rows], [self.of_rows], None, [], self.upper)


@EVERY_ISA
@pytest.mark.parametrize("kind", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_equal_numpy(isa: str, kind: str, shape: tuple[int, int, int]) -> None:
    case = OneMap(kind, shape, isa=isa)
    matrix, rows, upper = (each.astype(np.float64) for each in (case.matrix, case.rows, case.upper))
    for found, right in (
        (case.result, rows @ matrix.T),
        (case.of_rows, upper @ matrix),
        (case.total, case.before + upper.T @ rows),
    ):
        scale = TOLERANCES[kind] * max(1.0, np.abs(right).max(initial=0))
        np.testing.assert_allclose(found, right, rtol=0, atol=10 * scale)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_matter(threads: int) -> None:
    one, many = (OneMap("float32", (500, 128, 130), threads=each) for each in (1, threads))
    for name in ("result", "of_rows", "total"):
        np.testing.assert_array_equal(getattr(one, name), getattr(many, name))


@EVERY_ISA
def test_a_row_does_not_depend_on_its_block(isa: str) -> None:
    whole = OneMap("float32", (61, 40, 50), isa=isa)
    for first, last in ((0, 1), (7, 23), (48, 61)):
        result = np.empty_like(whole.result[first:last])
        whole.kernel.forward(last - first, [whole.rows[first:last]], None, [result])
        np.testing.assert_array_equal(result, whole.result[first:last])


def test_what_does_not_fit_is_refused() -> None:
    case = OneMap("float32", (5, 3, 2))
    wide, ids = np.zeros((5, 4), np.float32), np.full(5, 9, np.int32)
    with pytest.raises(ValueError, match="inputs must be 5 by 3, not 5 by 4"):
        case.kernel.forward(5, [wide], None, [case.result])
    with pytest.raises(TypeError, match=r"results must be float32.*not float64"):
        case.kernel.forward(5, [case.rows], None, [np.empty((5, 2))])
    ends = EdgeEnds(np.zeros((3, 2), np.float32), ids)
    with pytest.raises(ValueError, match="target"):
        case.kernel.forward(5, [case.rows], ends, [case.result])
    with pytest.raises(ValueError, match="fewer inputs"):
        case.kernel.backward([], [], None, [], case.upper)
