"""The windows of steps that make samples, their split into parts, and their order in an epoch.

A sample is named by its anchor: the last step that the model reads. Its window reaches from
``history - 1`` steps before the anchor to ``ahead`` steps after it, all in one trajectory and one
part, so that training never reads a step that another part is evaluated on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hpcgnn.config.fields import FieldsConfig
from hpcgnn.errors import InputError
from hpcgnn.typing import Offsets

PARTS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Windows:
    """The spans of steps of each of `PARTS`, each in one trajectory, and the reach of a window.

    A window has `history` steps up to and including the anchor, at least 1, and `ahead` after it.
    """

    spans: dict[str, tuple[range, ...]]
    history: int
    ahead: int

    @classmethod
    def of(cls, options: FieldsConfig, trajectory_starts: Offsets) -> "Windows":
        """Return the windows of a series; `trajectory_starts` (R + 1,) are steps.

        Raises `InputError` if no window fits into the training part.
        """
        lengths = np.diff(trajectory_starts)
        spans = _by_time if options.split == "time" else _by_trajectory
        windows = cls(spans(options, trajectory_starts), options.history, options.ahead)
        if not len(windows.anchors("train")):
            reach = options.history + options.ahead
            longest = int(lengths.max(initial=0))
            raise InputError(
                f"fields: a sample is {reach} steps of one part, and no part of {longest} steps "
                "to train on holds one; lower fields.history, fields.unroll, fields.valid or "
                "fields.test"
            )
        return windows

    def anchors(self, part: str, ahead: int | None = None) -> Offsets:
        """Return the anchors (m,) int64 of a part, ascending, of windows that reach `ahead` steps.

        Without `ahead`, use the reach of samples: one step for validation and test,
        ``fields.unroll`` steps for training.
        """
        reach = self._reach(part) if ahead is None else ahead
        ranges = [
            np.arange(span.start + self.history - 1, span.stop - reach) for span in self.spans[part]
        ]
        return np.concatenate([np.empty(0, np.int64), *ranges])

    def first(self, samples: Mapping[str, int]) -> "Windows":
        """Return at most `samples` first windows of each part; none of a part not named."""
        spans: dict[str, tuple[range, ...]] = dict.fromkeys(PARTS, ())
        for part, most in samples.items():
            reach = self.history - 1 + self._reach(part)
            remaining = most
            for span in self.spans[part]:
                taken = min(max(len(span) - reach, 0), remaining)
                if taken:
                    spans[part] += (range(span.start, span.start + reach + taken),)
                remaining -= taken
        return replace(self, spans=spans)

    def _reach(self, part: str) -> int:
        return self.ahead if part == "train" else min(self.ahead, 1)

    def judged(self, part: str, most: int) -> Offsets:
        """Return at most `most` evenly spaced anchors of a part to evaluate; all if it is 0."""
        anchors = self.anchors(part, min(self.ahead, 1))
        if most == 0 or len(anchors) <= most:
            return anchors
        return anchors[np.arange(most) * len(anchors) // most]

    def starts(self, part: str, number: int, steps: int) -> list[tuple[int, int]]:
        """Return anchors of rollouts, and how many steps, at most `steps`, each has the truth of.

        They are spread over the spans, and evenly spaced in a span that has several.
        """
        starts = []
        spans = [span for span in self.spans[part] if len(span) > self.history]
        turns = -(-number // max(len(spans), 1))
        for index in range(number if spans else 0):
            turn, chosen = divmod(index, len(spans))
            first, last = spans[chosen].start + self.history - 1, spans[chosen].stop - 1
            length = min(steps, last - first)
            starts.append((first + (last - length - first) * turn // max(turns - 1, 1), length))
        return list(dict.fromkeys(starts))

    def epoch(self, seed: int, epoch: int) -> Offsets:
        """Return the shuffled anchors of an epoch, the same on all ranks."""
        return np.random.default_rng([seed, epoch]).permutation(self.anchors("train"))


def _by_time(options: FieldsConfig, starts: Offsets) -> dict[str, tuple[range, ...]]:
    spans: dict[str, list[range]] = {part: [] for part in PARTS}
    for start, stop in pairwise(starts.tolist()):
        length = stop - start
        test = round(options.test * length)
        valid = round(options.valid * length)
        cuts = (start, stop - test - valid, stop - test, stop)
        for part, ends in zip(PARTS, pairwise(cuts), strict=True):
            spans[part].append(range(*ends))
    return {part: tuple(part_spans) for part, part_spans in spans.items()}


def _by_trajectory(options: FieldsConfig, starts: Offsets) -> dict[str, tuple[range, ...]]:
    trajectories = [range(*ends) for ends in pairwise(starts.tolist())]
    order = np.random.default_rng(options.split_seed).permutation(len(trajectories))
    test = round(options.test * len(trajectories))
    valid = round(options.valid * len(trajectories))
    if options.valid + options.test > 0 == valid + test:
        raise InputError(
            f"fields.split = 'trajectory': the shares of {len(trajectories)} trajectories round to "
            "none; raise fields.valid and fields.test, or set fields.split=time"
        )
    cuts = (0, len(trajectories) - test - valid, len(trajectories) - test, len(trajectories))
    return {
        part: tuple(trajectories[number] for number in sorted(order[start:stop].tolist()))
        for part, (start, stop) in zip(PARTS, pairwise(cuts), strict=True)
    }
