"""Lines that are walked as a whole: their bits do not depend on other lines."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcgnn import kernels
from hpcgnn.kernels import AdditiveScore, Block, DynamicScore, ProductScore, Score

HEADS, WIDTH, LINES, OTHERS = 2, 5, 40, 300
KINDS = {"additive": 1, "dynamic": WIDTH, "product": WIDTH}
DRAW = np.random.default_rng(3)
# More edges than a task usually has; some lines are longer than a batch, some are empty.
LENGTHS = DRAW.permutation([0, 1, 7, 9000, 300, *DRAW.integers(0, 700, LINES - 5)])
INDPTR = np.concatenate([[0], np.cumsum(LENGTHS)])
ENDS = DRAW.integers(OTHERS, size=INDPTR[-1]).astype(np.int32)


def numbers(rows: int, width: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def score_of(kind: str, values: NDArray[np.float32], target: NDArray[np.float32]) -> Score:
    both = {"values": values, "target": target, "slope": 0.2}
    if kind == "additive":
        source = np.ascontiguousarray(values[:, :HEADS])
        return AdditiveScore(**both, source=source)
    if kind == "dynamic":
        return DynamicScore(**both, vector=numbers(HEADS, WIDTH, 7))
    return ProductScore(values=values, target=target, heads=HEADS)


def block_of(lines: NDArray[np.int64]) -> Block:
    ends = np.concatenate([ENDS[INDPTR[line] : INDPTR[line + 1]] for line in lines])
    offsets = np.concatenate([[0], np.cumsum(LENGTHS[lines])])
    return Block(offsets, ends, whole_lines=True)


def passes(kind: str, lines: NDArray[np.int64], isa: str) -> list[NDArray[np.float32]]:
    """Return the sums of some lines, as rows and as columns."""
    parts = 2 if kind == "product" else 1
    shape, narrow = HEADS * WIDTH, HEADS * KINDS[kind]
    block, options = block_of(lines), {"threads": 2, "isa": isa}
    values, targets = numbers(OTHERS, parts * shape, 1), numbers(LINES, narrow, 2)[lines]
    score = score_of(kind, values, targets)
    count = len(lines)
    state = kernels.SoftmaxState(
        np.full((count, HEADS), -np.inf, np.float32),
        np.zeros((count, HEADS), np.float32),
        np.empty((count, shape), np.float32),
    )
    kernels.attention_forward(block, score, state, **options)
    kernels.attention_finish(state)
    found = [state.top, state.out]
    delta, grad = numbers(LINES, HEADS, 5)[lines], numbers(LINES, shape, 6)[lines]
    if isinstance(score, DynamicScore | ProductScore):
        saved = kernels.SoftmaxGradient(state.top, grad, delta)
        into = kernels.Gradients(None, np.zeros_like(targets), np.zeros_like(targets))
        kernels.attention_backward_rows(block, score, saved, into, **options)
        found.append(into.targets)
        if kind == "dynamic":
            found.append(into.weights)
    # The same lines as columns, to which the others attend.
    values, targets = numbers(LINES, parts * shape, 1)[lines], numbers(OTHERS, narrow, 2)
    grad, delta = numbers(OTHERS, shape, 6), numbers(OTHERS, HEADS, 5)
    saved = kernels.SoftmaxGradient(np.full((OTHERS, HEADS), 3, np.float32), grad, delta)
    score = score_of(kind, values, targets)
    into = kernels.Gradients(np.zeros_like(values), np.zeros_like(targets))
    if isinstance(score, AdditiveScore):
        into = kernels.Gradients(*(into.values, into.targets), source=np.zeros_like(score.source))
        found.append(into.source)
    kernels.attention_backward(block, score, saved, into, **options)
    return [*found, into.values]


@pytest.mark.parametrize("isa", kernels.available_isas())
@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_a_line_are_its_own(kind: str, isa: str) -> None:
    whole = passes(kind, np.arange(LINES), isa)
    lines = np.random.default_rng(9).permutation(LINES)[:17]
    for mine, theirs in zip(passes(kind, lines, isa), whole, strict=True):
        np.testing.assert_array_equal(mine, theirs[lines])


@pytest.mark.parametrize("isa", kernels.available_isas())
@pytest.mark.parametrize(("dtype", "digits"), [(np.float32, 1), (np.float64, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_rounded_sums_have_no_order(kind: str, dtype: type, digits: int, isa: str) -> None:
    of_target, of_source = (HEADS, HEADS) if kind == "additive" else (10, 0)
    parts = 2 if kind == "product" else 1
    values = numbers(LINES, 10 * parts, 1).astype(dtype)
    targets = numbers(OTHERS, of_target, 1).astype(dtype)
    grad, delta = numbers(OTHERS, 10, 6).astype(dtype), numbers(OTHERS, HEADS, 5).astype(dtype)
    saved = kernels.SoftmaxGradient(np.full((OTHERS, HEADS), 3, dtype), grad, delta)
    vector = numbers(HEADS, WIDTH, 7).astype(dtype)
    score: kernels.Score = DynamicScore(values=values, target=targets, slope=0.2, vector=vector)
    if kind == "product":
        score = ProductScore(values=values, target=targets, heads=HEADS)
    if of_source:
        source = numbers(LINES, HEADS, 8).astype(dtype)
        score = AdditiveScore(values=values, target=targets, slope=0.2, source=source)
    scale, bits, nothing = np.repeat([2.0**20, 2.0**24], WIDTH * parts), 28, np.zeros_like(targets)
    scale = np.concatenate([scale, np.full(of_source, 2.0**22)])

    def gradient(indptr: NDArray[np.int64], ends: NDArray[np.int32], *rounding: kernels.Rounding):
        width = digits * len(scale) if rounding else values.shape[1]
        found = np.zeros((LINES, width), np.float64 if rounding else dtype)
        into = kernels.Gradients(found, nothing, rounding=next(iter(rounding), None))
        if of_source:
            into = replace(into, source=np.zeros((LINES, HEADS), dtype))
        block = Block(indptr, np.ascontiguousarray(ends), whole_lines=True)
        kernels.attention_backward(block, score, saved, into, threads=2, isa=isa)
        if of_source and not rounding:
            return np.concatenate([found, into.source], axis=1)
        return found

    rounding = kernels.Rounding(scale, digits, bits)
    sums = gradient(INDPTR, ENDS, rounding)
    np.testing.assert_array_equal(sums, np.rint(sums))
    # The edges of a line in reverse order, and those of even ends separately.
    lines, parts = np.repeat(np.arange(LINES), LENGTHS)[::-1], []
    for odd in (0, 1):
        chosen = np.flatnonzero(ENDS[::-1] % 2 == odd)
        chosen = chosen[np.argsort(lines[chosen], kind="stable")]
        counts = np.bincount(lines[chosen], minlength=LINES)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        parts.append(gradient(indptr, ENDS[::-1][chosen], rounding))
    np.testing.assert_array_equal(parts[0] + parts[1], sums)
    found = sum(
        digit_sums * 2.0 ** (-bits * digit)
        for digit, digit_sums in enumerate(np.split(sums, digits, axis=1))
    )
    usual = gradient(INDPTR, ENDS)
    within = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found / scale, usual, rtol=within, atol=within * abs(usual).max())
