"""Fields at nodes over time, as a reader hands them over and a store takes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hpcgnn import watchdog
from hpcgnn.console import Progress
from hpcgnn.errors import InputError
from hpcgnn.storage import FieldInfo, StoreWriter, fault_in_times
from hpcgnn.typing import Array, FloatArray, Offsets

_BLOCK_BYTES = 1 << 25
_QUIET_BELOW_STEPS = 100

ReadField = Callable[[str, int, int, int], Array]


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """Fields of all nodes at the times (T,) of trajectories that follow each other.

    Trajectory r has the steps `trajectory_starts[r]` to `trajectory_starts[r + 1]` - 1.
    `read(name, step, start, stop)` returns rows (stop - start, F) in the input's order of nodes,
    NaN where a value is missing; it is called for step after step of one field after another.
    `unit` is that of the times.
    """

    times: FloatArray
    trajectory_starts: Offsets
    infos: tuple[FieldInfo, ...]
    num_nodes: int
    read: ReadField
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class FieldArray:
    """A field somewhere: its `shape` (T, n, F), and `read(step, start, stop)`, rows of a step."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[int, int, int], Array]
    where: str
    unit: str = ""
    components: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.shape) not in (2, 3) or 0 in self.shape or self.dtype.kind not in "biuf":
            raise InputError(
                f"{self.where} has shape {self.shape} and dtype {self.dtype}; a field is numbers "
                "of the shape (T, n, F) or (T, n)"
            )

    @property
    def info(self) -> FieldInfo:
        """What the store says of it."""
        dtype = self.dtype if self.dtype.kind == "f" else np.result_type(self.dtype, np.float32)
        columns = 1 if len(self.shape) == 2 else self.shape[2]
        return FieldInfo(
            self.name, columns, dtype.newbyteorder("<"), self.unit, tuple(self.components)
        )


def join_fields(
    fields: Sequence[FieldArray],
    times: Array | None,
    trajectory_starts: Array | None = None,
    unit: str = "",
    where: str = "times",
) -> Series:
    """Return the series of fields that agree in steps and nodes; raises `InputError`.

    Without `times` steps are numbered from 0; without `trajectory_starts` all are one trajectory.
    """
    first = fields[0]
    for each in fields:
        if each.shape[:2] != first.shape[:2]:
            raise InputError(
                f"{each.where} has {each.shape[0]} steps of {each.shape[1]} nodes, and "
                f"{first.where} has {first.shape[0]} of {first.shape[1]}; give all the same"
            )
    steps, num_nodes = first.shape[:2]
    by_name = {each.name: each for each in fields}

    def read(name: str, step: int, start: int, stop: int) -> Array:
        return by_name[name].read(step, start, stop).reshape(stop - start, -1)

    series = Series(
        times=np.arange(steps, dtype=np.float64),
        trajectory_starts=np.array([0, steps]),
        infos=tuple(each.info for each in fields),
        num_nodes=num_nodes,
        read=read,
        unit=unit,
    )
    return timed(
        series,
        series.times if times is None else times,
        series.trajectory_starts if trajectory_starts is None else trajectory_starts,
        where,
    )


def timed(series: Series, times: Array, trajectory_starts: Array, where: str) -> Series:
    """Return a series at other times (T,), which stand at `where`; raises `InputError`."""
    steps = len(series.times)
    kinds = times.dtype.kind in "iuf" and trajectory_starts.dtype.kind in "iu"
    if times.shape != (steps,) or not kinds:
        raise InputError(
            f"{where}: times have the shape {times.shape} and dtype {times.dtype} for {steps} "
            "steps of fields; give one number a step, and whole trajectory_starts"
        )
    times, starts = times.astype(np.float64), trajectory_starts.astype(np.int64)
    if (fault := fault_in_times(times, starts)) is not None:
        raise InputError(
            f"{where}: {fault}; times rise in each trajectory: sort the steps, or say where "
            "trajectories begin (trajectory_starts, --trajectories)"
        )
    return replace(series, times=times, trajectory_starts=starts)


@dataclass(frozen=True)
class SeriesColumn:
    """A field of a series on its way into a store, like a `NodeColumn`; counts what is missing."""

    series: Series
    info: FieldInfo
    quiet: bool
    append: str = "append_field"
    missing: dict[str, int] = field(default_factory=dict)

    @property
    def none(self) -> tuple[Any, ...]:
        """No rows of it, as `append` takes them."""
        rows = np.empty((0, self.info.num_columns), self.info.dtype)
        return self.info.name, 0, rows, self.info

    def write(self, writer: StoreWriter) -> None:
        """Append the rows of this process, step by step."""
        name, info, steps = self.info.name, self.info, len(self.series.times)
        own = writer.field_rows(info)
        rows = max(1, _BLOCK_BYTES // info.row_bytes)
        self.missing[name] = 0
        quiet = self.quiet or steps < _QUIET_BELOW_STEPS
        with Progress(f"writing {name}", steps, "steps", quiet=quiet) as progress:
            for step in range(steps):
                for start in range(own.start, own.stop, rows):
                    stop = min(start + rows, own.stop)
                    block = self.series.read(name, step, start, stop)
                    self.missing[name] += int(np.count_nonzero(np.isnan(block)))
                    writer.append_field(name, step, block, info)
                    watchdog.beat()
                progress.advance(1)


def total_missing(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the values of each field that are missing, from those that each rank has counted."""
    names = {name: None for each in counts for name in each}
    totals = {name: sum(each.get(name, 0) for each in counts) for name in names}
    return {name: total for name, total in totals.items() if total}
