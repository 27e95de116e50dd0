"""Time series of node and edge fields: the form readers return, and the writing to a store."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from hpcgnn import watchdog
from hpcgnn.console import Progress, report
from hpcgnn.convert.read.npy import ArrayFile
from hpcgnn.errors import InputError
from hpcgnn.storage import FieldInfo, StoreWriter, fault_in_times, split_places
from hpcgnn.typing import Array, FloatArray, Offsets

_BLOCK_BYTES = 1 << 25
_QUIET_BELOW_STEPS = 100
_LARGEST_EXACT = 1 << 53
"""Largest integer up to which float64 represents every integer exactly."""


@dataclass(frozen=True, kw_only=True)
class FieldArray:
    """A field of all nodes or edges in the input, of `shape` (T, n, F) or (T, n).

    `read(step, start, stop)` returns rows in the input's order of nodes or edges, NaN for missing
    values; it is called for one field at a time, step by step.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[int, int, int], Array]
    where: str
    unit: str = ""
    components: tuple[str, ...] = ()
    of_edges: bool = False

    def __post_init__(self) -> None:
        if len(self.shape) not in (2, 3) or 0 in self.shape or self.dtype.kind not in "biuf":
            rows = "E" if self.of_edges else "n"
            raise InputError(
                f"{self.where} has shape {self.shape} and dtype {self.dtype}; a field has numbers "
                f"of shape (T, {rows}, F) or (T, {rows})"
            )

    @classmethod
    def of_file(cls, array: ArrayFile, name: str, unit: str, *, of_edges: bool) -> "FieldArray":
        """Return the field that an array of a file holds; raises `InputError`."""
        return cls(
            name=name,
            shape=array.shape,
            dtype=array.dtype,
            read=array.steps(),
            where=array.where,
            unit=unit,
            of_edges=of_edges,
        )

    @property
    def info(self) -> FieldInfo:
        """The store's description of the field."""
        dtype = self.dtype if self.dtype.kind == "f" else np.result_type(self.dtype, np.float32)
        columns = 1 if len(self.shape) == 2 else self.shape[2]
        return FieldInfo(
            self.name,
            columns,
            dtype.newbyteorder("<"),
            self.unit,
            tuple(self.components),
            self.of_edges,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class FieldSeries:
    """Fields at the times (T,) of consecutive trajectories, which agree in steps and rows.

    Trajectory r has the steps `trajectory_starts[r]` to `trajectory_starts[r + 1]` - 1. `unit` is
    that of the times, which come from `where`; `in_order` checks them. The reverse of an edge has
    the negated value of a field in `fluxes`, and the same value of other fields. Raises
    `InputError` for fields that do not agree.
    """

    times: FloatArray
    trajectory_starts: Offsets
    fields: tuple[FieldArray, ...]
    unit: str = ""
    fluxes: frozenset[str] = frozenset()
    where: str = "times"

    def __post_init__(self) -> None:
        firsts: dict[bool, FieldArray] = {}
        names: set[str] = set()
        for array in self.fields:
            first = firsts.setdefault(array.of_edges, array)
            if array.shape[:2] != first.shape[:2]:
                owners = "edges" if array.of_edges else "nodes"
                raise InputError(
                    f"{array.where} has {array.shape[0]} steps of {array.shape[1]} {owners}, and "
                    f"{first.where} has {first.shape[0]} of {first.shape[1]}; give all the same"
                )
            if array.shape[0] != self.fields[0].shape[0]:
                raise InputError(
                    f"{array.where} has {array.shape[0]} steps, and {self.fields[0].where} has "
                    f"{self.fields[0].shape[0]}; give all the same"
                )
            if array.name in names:
                raise InputError(f"{array.where}: there are two fields {array.name!r}; rename one")
            names.add(array.name)

    @property
    def of_edges(self) -> bool:
        """Whether there are fields of edges."""
        return any(array.of_edges for array in self.fields)

    def in_order(self) -> "FieldSeries":
        """Return this series; raises `InputError` unless times rise in each trajectory."""
        if (fault := fault_in_times(self.times, self.trajectory_starts)) is not None:
            raise InputError(
                f"{self.where}: {fault}; times must rise in each trajectory: sort the steps, or "
                "say where trajectories begin (trajectory_starts, --trajectories)"
            )
        return self

    def joined(self, other: "FieldSeries", where: str) -> "FieldSeries":
        """Return these fields together with those of `other`, read from `where`; `InputError`."""
        if not (
            np.array_equal(self.times, other.times)
            and np.array_equal(self.trajectory_starts, other.trajectory_starts)
        ):
            raise InputError(
                f"{where}: has {len(other.times)} steps, and other fields have {len(self.times)} "
                "or other times; give all at the same times"
            )
        return replace(self, fields=self.fields + other.fields)


def join_fields(
    fields: Sequence[FieldArray],
    times: Array | None,
    trajectory_starts: Array | None = None,
    unit: str = "",
    where: str = "times",
) -> FieldSeries:
    """Return the series of fields that agree in steps, nodes and edges; raises `InputError`.

    Without `times`, steps are numbered from 0; without `trajectory_starts`, all are one trajectory.
    """
    steps = fields[0].shape[0]
    series = FieldSeries(
        times=np.arange(steps, dtype=np.float64),
        trajectory_starts=np.array([0, steps]),
        fields=tuple(fields),
        unit=unit,
    )
    return timed(series, times, trajectory_starts, where)


def timed(
    series: FieldSeries, times: Array | None, trajectory_starts: Array | None, where: str
) -> FieldSeries:
    """Return the series with new times (T,) or starts, read from `where`; raises `InputError`."""
    steps = len(series.times)
    times = series.times if times is None else times
    if trajectory_starts is None:
        trajectory_starts = series.trajectory_starts
    kinds = times.dtype.kind in "iuf" and trajectory_starts.dtype.kind in "iu"
    if times.shape != (steps,) or not kinds:
        raise InputError(
            f"{where}: times have the shape {times.shape} and dtype {times.dtype} for {steps} "
            "steps of fields; give one number a step, and trajectory_starts as integers"
        )
    if times.dtype.kind in "iu" and steps and int(times.max()) > _LARGEST_EXACT:
        report(f"{where}: times are counted from the first, {times[0]}, to fit float64 exactly")
        times = times.astype(np.int64) - np.int64(times[0])
    times, starts = times.astype(np.float64), trajectory_starts.astype(np.int64)
    return replace(series, times=times, trajectory_starts=starts, where=where)


@dataclass(frozen=True)
class SeriesColumn:
    """Writes one field of a series to a store, like a `NodeColumn`, and counts missing values.

    After `write`, `missing` maps the field to its number of NaN values, and has a second entry for
    the nodes or edges without a value at any step. For a field of edges, `places` returns the row
    in the series of each stored edge, see `split_places`; added self-loops get zeros.
    """

    series: FieldSeries
    array: FieldArray
    quiet: bool
    places: Callable[[], Array]
    append: str = "append_field"
    missing: dict[str, int] = field(default_factory=dict)

    @property
    def none(self) -> tuple[Any, ...]:
        """Arguments of `append` that declare the field without writing rows."""
        info = self.array.info
        return info.name, 0, np.empty((0, info.num_columns), info.dtype), info

    def write(self, writer: StoreWriter) -> None:
        """Append the rows of this process, step by step."""
        name, info, steps = self.array.name, self.array.info, len(self.series.times)
        own = writer.field_rows(info)
        rows = max(1, _BLOCK_BYTES // info.row_bytes)
        self.missing[name], known = 0, np.zeros(len(own), np.bool_)
        quiet = self.quiet or steps < _QUIET_BELOW_STEPS
        read = self._edge_rows(info.dtype) if info.of_edges else self.array.read
        with Progress(f"writing {name}", steps, "steps", quiet=quiet) as progress:
            for step in range(steps):
                for start in range(own.start, own.stop, rows):
                    stop = min(start + rows, own.stop)
                    block = read(step, start, stop).reshape(stop - start, -1)
                    absent = np.isnan(block)
                    self.missing[name] += int(np.count_nonzero(absent))
                    known[start - own.start :][: len(block)] |= ~absent.all(axis=1)
                    writer.append_field(name, step, block, info)
                    watchdog.beat()
                progress.advance(1)
        # Land points in an ocean field, for example: predictions there mean nothing.
        owners = "edges" if info.of_edges else "nodes"
        self.missing[f"{name}, {owners} without any value"] = int(np.count_nonzero(~known))

    def _edge_rows(self, dtype: np.dtype[Any]) -> Callable[[int, int, int], Array]:
        """Return a function of (step, start, stop) that reads rows in the store's edge order."""
        array, name = self.array, self.array.name
        positions, mirrored = split_places(self.places())
        is_flux = name in self.series.fluxes
        if mirrored.any() and not is_flux:
            report(f"{name}: reverse edges get their edge's value; --fluxes {name} negates it")

        @lru_cache(maxsize=1)
        def input_rows(step: int) -> Array:
            return array.read(step, 0, array.shape[1]).reshape(array.shape[1], -1)

        def read(step: int, start: int, stop: int) -> Array:
            input_edges = positions[start:stop]
            rows = input_rows(step)[np.maximum(input_edges, 0)].astype(dtype, copy=False)
            if is_flux:
                np.negative(rows, out=rows, where=mirrored[start:stop, None])
            rows[input_edges < 0] = 0
            return rows

        return read


def total_missing(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the number of missing values of each field, summed over the counts of all ranks."""
    totals: Counter[str] = Counter()
    for of_rank in counts:
        totals.update(of_rank)
    return {name: total for name, total in totals.items() if total}
