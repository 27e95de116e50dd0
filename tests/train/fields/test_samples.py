"""Windows, parts, scales and noise: the steps of a sample; no part sees another."""

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import ProcessGrid
from hpcgnn.config.fields import FieldsConfig
from hpcgnn.errors import InputError
from hpcgnn.train.fields.noise import PLACES, normal
from hpcgnn.train.fields.scales import Moments
from hpcgnn.train.fields.windows import PARTS, Windows

STARTS = np.array([0, 20, 50, 60, 61])


def options(**values: object) -> FieldsConfig:
    """Return a section that predicts u."""
    return FieldsConfig(targets=("u",), **values)


@pytest.mark.parametrize("split", ["time", "trajectory"])
@pytest.mark.parametrize(("history", "unroll"), [(1, 1), (2, 3)])
def test_windows_stay_in_a_part_of_a_trajectory(split: str, history: int, unroll: int) -> None:
    words = {"split": split, "history": history, "unroll": unroll, "valid": 0.25, "test": 0.25}
    windows = Windows.of(options(**words), STARTS)
    seen: dict[int, str] = {}
    for part in PARTS:
        # Evaluation uses one step, so a part too short for unrolling also has samples.
        ahead = unroll if part == "train" else 1
        assert part == "train" or windows.anchors(part).tolist() == windows.judged(part, 0).tolist()
        for anchor in windows.anchors(part).tolist():
            reach = range(anchor - history + 1, anchor + ahead + 1)
            assert len(np.unique(np.searchsorted(STARTS, reach, side="right"))) == 1
            assert all(seen.setdefault(step, part) == part for step in reach)
    assert "train" in seen.values()
    order = windows.epoch(3, 7)
    assert sorted(order.tolist()) == windows.anchors("train").tolist()
    assert order.tolist() == windows.epoch(3, 7).tolist() != windows.epoch(3, 8).tolist()


def test_all_steps_of_time_belong_to_one_part() -> None:
    windows = Windows.of(options(valid=0.1, test=0.2), STARTS)
    spans = sorted((span.start, span.stop) for part in PARTS for span in windows.spans[part])
    assert [step for span in spans for step in range(*span)] == list(range(61))
    assert [span.start for span in windows.spans["test"]][:3] == [16, 44, 58]


@pytest.mark.parametrize("number", [1, 2, 5])
def test_rollouts_begin_where_the_truth_is_long_enough(number: int) -> None:
    # One part is as long as the history.
    windows = Windows.of(options(history=3, valid=0.2, test=0.3), STARTS)
    assert 3 in [len(span) for span in windows.spans["test"]]
    starts = windows.starts("test", number, 4)
    assert 1 <= len(starts) <= number
    for anchor, steps in starts:
        (span,) = [s for s in windows.spans["test"] if anchor in s]
        assert span.start + 2 <= anchor
        assert 1 <= steps <= 4
        assert anchor + steps < span.stop


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"unroll": 40}, "a sample is 41 steps"),
        ({"split": "trajectory", "valid": 0.01, "test": 0.01}, "round to none"),
    ],
)
def test_a_series_that_is_too_short_is_told(words: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Windows.of(options(**words), STARTS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"valid": 0.6, "test": 0.5}, "must be below 1"),
        ({"targets": ("u",), "inputs": ("u",), "predict": "same"}, "an input and a target"),
        ({"predict": "same"}, "name the fields that the targets come from"),
        ({"predict": "same", "inputs": ("p",), "unroll": 2}, r"fields\.predict=next"),
        ({"horizons": (0,)}, "at least 1"),
        ({"inputs": ("p", "p")}, "different names"),
    ],
)
def test_what_does_not_fit_is_told(words: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FieldsConfig(**{"targets": ("u",), **words})


def test_scales_are_those_of_all_rows(comm: MPI.Intracomm) -> None:
    rng = np.random.default_rng(2)
    rows = 1e6 + rng.normal(size=(3, 40, 4)) * [1e-3, 50, 1e-7, 0]
    rows[:, :, 1][rng.random((3, 40)) < 0.3] = np.nan
    rows[:, :, 3] = 300.1
    weights = rng.random(40)
    moments = Moments(4)
    with ProcessGrid(comm, 1) as grid:
        mine = slice(grid.block * 40 // comm.size, (grid.block + 1) * 40 // comm.size)
        for step in rows:
            moments.add(step[mine], weights[mine])
        scale = moments.over(grid)
    assert scale.deviation[3] == 1
    for column in range(3):
        known = ~np.isnan(rows[:, :, column])
        counts = np.broadcast_to(weights, known.shape)[known]
        values = rows[:, :, column][known].astype(np.longdouble)
        mean = np.average(values, weights=counts)
        deviation = np.sqrt(np.average((values - mean) ** 2, weights=counts))
        assert abs(scale.deviation[column] - deviation) <= 1e-5 * deviation
        assert abs(scale.mean[column] - mean) <= 1e-4 * deviation + 2e-16 * mean


def test_noise_is_normal_and_of_the_node() -> None:
    ids, key = np.arange(4000), DropoutKey(1, 5, PLACES.nodes)
    drawn = normal(ids, 3, key)
    assert abs(drawn.mean()) < 0.03
    assert abs(drawn.std() - 1) < 0.02
    assert np.abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 0.05
    np.testing.assert_array_equal(normal(ids[::-7], 3, key), drawn[::-7])
    for other in (DropoutKey(1, 6, PLACES.nodes), DropoutKey(1, 5, PLACES.edges)):
        assert np.abs(normal(ids, 3, other) - drawn).min(axis=1).max() > 0.1
