"""The file of a rollout, streamed by all ranks in the order of original ids."""

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.comm import agree
from hpcgnn.comm.collect_rows import in_order
from hpcgnn.spmd import collective
from hpcgnn.storage import RolloutFile, value_type
from hpcgnn.train.fields.rollout import Rollouts
from hpcgnn.train.full.predictions import write_rows
from hpcgnn.typing import FloatArray


@collective
def write_rollout(
    rollouts: Rollouts,
    model: Any,
    span: tuple[int, int],
    path: Path,
    origin: Mapping[str, str | int],
) -> dict[str, Any]:
    """Write a rollout from an anchor over so many steps; return its errors where truth is known.

    Raises `CollectiveInputError` when a step does not read or the file cannot be written.
    """
    (anchor, steps), grid, series = span, rollouts.grid, rollouts.series
    layer, ids, fields = grid.layer, rollouts.unroller.node_ids, series.columns.targets
    dtype = max((value_type(each) for each in fields), key=lambda each: each.itemsize)
    errors = rollouts.errors(steps)
    with contextlib.ExitStack() as stack:
        file: RolloutFile | None = None
        with agree(grid.world):
            if grid.rank == 0:
                times = step_times(rollouts, anchor, steps)
                count, told = rollouts.num_nodes, {**origin, "start": anchor}
                file = stack.enter_context(RolloutFile(path, fields, times, count, told))
        nodes = [ids] if series.positions is None else [ids, series.positions.numpy()]
        write_rows(grid, in_order(layer, ids, *nodes), lambda rows: _of(file).write_nodes(rows))
        for place, rolled in enumerate(rollouts.roll(model, anchor, steps)):
            if rolled.truth is not None:
                errors.add(place, rolled)
            values = in_order(layer, ids, rolled.values.numpy().astype(dtype))
            write_rows(grid, values, partial(_write, file, place))
        with agree(grid.world):
            stack.pop_all().close()
    return errors.told()


def _of(file: RolloutFile | None) -> RolloutFile:
    assert file is not None
    return file


def _write(file: RolloutFile | None, place: int, rows: Any) -> None:
    _of(file).write_step(place, rows)


def step_times(rollouts: Rollouts, anchor: int, steps: int) -> FloatArray:
    """Return the times (steps,) of a rollout; behind the trajectory they go on as its last step."""
    series, first = rollouts.series, anchor + rollouts.first_step
    last = series.last_step(anchor)
    known = series.times[first : min(first + steps, last + 1)]
    before = series.times[max(last - 1, 0)]
    more = np.arange(1, steps - len(known) + 1) * (series.times[last] - before)
    return np.concatenate([known, series.times[last] + more])
