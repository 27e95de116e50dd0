import numpy as np
import pytest

from hpcgnn import kernels

RULES = [
    kernels.AdamRule(0.05),
    kernels.AdamRule(0.05, decay=0.3),
    kernels.AdamRule(0.05, decay=0.3, decoupled=True),
]


def step(updates, rule, **run):
    squares = np.empty(sum(update[0].size for update in updates), updates[0][0].dtype)
    kernels.adam_means(updates, rule, squares, **run)
    return kernels.adam_weights(updates, rule, np.sqrt(squares), **run)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_is_that_of_its_definition(rule, dtype, isa):
    rng = np.random.default_rng(1)
    shapes = [(), (0,), (5,), (33, 37), (70, 1000)]
    weights = [np.asarray(rng.standard_normal(shape), dtype) for shape in shapes]
    kept = [[np.zeros_like(each), np.zeros_like(each)] for each in weights]
    steps = [np.zeros((), np.float32) for _ in weights]
    exact = [
        [each.astype(np.float64), np.zeros(each.shape), np.zeros(each.shape)] for each in weights
    ]
    for number in range(1, 4):
        gradients = [np.asarray(rng.standard_normal(shape), dtype) for shape in shapes]
        updates = [
            (w, g, *k, s) for w, g, k, s in zip(weights, gradients, kept, steps, strict=True)
        ]
        assert step(updates, rule, isa=isa, threads=number)
        for (weight, mean, square), gradient in zip(exact, gradients, strict=True):
            g = gradient.astype(np.float64) + (not rule.decoupled) * rule.decay * weight
            weight *= 1 - rule.decoupled * rule.decay * rule.rate
            mean[...] = 0.9 * mean + 0.1 * g
            square[...] = 0.999 * square + 0.001 * g**2
            size = np.sqrt(square / (1 - 0.999**number)) + 1e-8
            weight -= rule.rate * mean / (1 - 0.9**number) / size
    assert [float(each) for each in steps] == [3.0] * len(steps)
    for found, (expected, _, _) in zip(weights, exact, strict=True):
        near = {"float32": 1e-5, "float64": 1e-13}[dtype]
        np.testing.assert_allclose(found, expected, rtol=near, atol=near)


def test_wrong_arrays_are_refused():
    weights, steps = np.ones(3, np.float32), np.zeros((), np.float32)
    rule = kernels.AdamRule(0.1)
    for number, name in ((1, "gradient"), (2, "mean"), (3, "square")):
        for wrong in (np.ones(4, np.float32), np.ones(3)):
            update = [weights, weights.copy(), weights.copy(), weights.copy(), steps]
            update[number] = wrong
            with pytest.raises(ValueError, match=f"{name} must have the dtype and size"):
                step([tuple(update)], rule)
    with pytest.raises(TypeError, match="five arrays"):
        step([(weights,)], rule)
    with pytest.raises(ValueError, match="a square for each number"):
        kernels.adam_means([(*[weights] * 4, steps)], rule, np.ones(4, np.float32))
    with pytest.raises(TypeError, match="dtype of their squares"):
        kernels.adam_weights([(*[weights] * 4, steps)], rule, np.ones(3))
    with pytest.raises(TypeError, match="weights must be C-contiguous"):
        step([(np.ones((3, 2)).T, *[np.ones((2, 3))] * 3, steps)], rule)
    assert (weights == 1).all()
    assert steps == 0
