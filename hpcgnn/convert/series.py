"""Fields of nodes and edges over time, as a reader hands them over and a store takes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from hpcgnn import watchdog
from hpcgnn.console import Progress, report
from hpcgnn.errors import InputError
from hpcgnn.storage import FieldInfo, StoreWriter, fault_in_times, split_places
from hpcgnn.typing import Array, FloatArray, Offsets

_BLOCK_BYTES = 1 << 25
_QUIET_BELOW_STEPS = 100
_LARGEST_EXACT = 1 << 53
"""Up to which all whole numbers are a float64."""

ReadField = Callable[[str, int, int, int], Array]


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """Fields of all nodes, or edges, at the times (T,) of trajectories that follow each other.

    Trajectory r has the steps `trajectory_starts[r]` to `trajectory_starts[r + 1]` - 1.
    `read(name, step, start, stop)` returns rows (stop - start, F) in the input's order of nodes, or
    of edges, NaN where a value is missing; it is called for step after step of one field after
    another. `unit` is that of the times; `num_nodes` and `num_edges` are 0 without such fields. The
    reverse of an edge has the negated value of `fluxes`, and the same one of other fields.
    """

    times: FloatArray
    trajectory_starts: Offsets
    infos: tuple[FieldInfo, ...]
    num_nodes: int
    read: ReadField
    unit: str = ""
    num_edges: int = 0
    fluxes: frozenset[str] = frozenset()

    @property
    def of_edges(self) -> bool:
        """Whether there are fields of edges."""
        return any(info.of_edges for info in self.infos)

    def joined(self, other: "Series | None", where: str) -> "Series":
        """Return these fields with those of another, which stand at `where`; `InputError`."""
        if other is None:
            return self
        same = (
            np.array_equal(self.times, other.times),
            np.array_equal(self.trajectory_starts, other.trajectory_starts),
        )
        if not all(same):
            raise InputError(
                f"{where}: has {len(other.times)} steps, and other fields have {len(self.times)} "
                "or other times; give all at the same times"
            )
        names = {info.name for info in self.infos}
        for info in other.infos:
            if info.name in names:
                raise InputError(f"{where}: there are two fields {info.name!r}; rename one")

        def read(name: str, step: int, start: int, stop: int) -> Array:
            series = self if name in names else other
            return series.read(name, step, start, stop)

        return replace(
            self,
            infos=self.infos + other.infos,
            num_nodes=self.num_nodes or other.num_nodes,
            num_edges=self.num_edges or other.num_edges,
            read=read,
        )


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
    of_edges: bool = False

    def __post_init__(self) -> None:
        if len(self.shape) not in (2, 3) or 0 in self.shape or self.dtype.kind not in "biuf":
            raise InputError(
                f"{self.where} has shape {self.shape} and dtype {self.dtype}; a field is numbers "
                f"of the shape (T, {(rows := 'En'[not self.of_edges])}, F) or (T, {rows})"
            )

    @property
    def info(self) -> FieldInfo:
        """What the store says of it."""
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


def join_fields(
    fields: Sequence[FieldArray],
    times: Array | None,
    trajectory_starts: Array | None = None,
    unit: str = "",
    where: str = "times",
) -> Series:
    """Return the series of fields that agree in steps, nodes and edges; raises `InputError`.

    Without `times` steps are numbered from 0; without `trajectory_starts` all are one trajectory.
    """
    firsts: dict[bool, FieldArray] = {}
    for each in fields:
        first = firsts.setdefault(each.of_edges, each)
        if each.shape[:2] != first.shape[:2]:
            what = "edges" if each.of_edges else "nodes"
            raise InputError(
                f"{each.where} has {each.shape[0]} steps of {each.shape[1]} {what}, and "
                f"{first.where} has {first.shape[0]} of {first.shape[1]}; give all the same"
            )
        if each.shape[0] != fields[0].shape[0]:
            raise InputError(
                f"{each.where} has {each.shape[0]} steps, and {fields[0].where} has "
                f"{fields[0].shape[0]}; give all the same"
            )
        if sum(other.name == each.name for other in fields) > 1:
            raise InputError(f"{each.where}: there are two fields {each.name!r}; rename one")
    num_nodes, num_edges = (firsts[of].shape[1] if of in firsts else 0 for of in (False, True))
    steps = fields[0].shape[0]
    by_name = {each.name: each for each in fields}

    def read(name: str, step: int, start: int, stop: int) -> Array:
        return by_name[name].read(step, start, stop).reshape(stop - start, -1)

    series = Series(
        times=np.arange(steps, dtype=np.float64),
        trajectory_starts=np.array([0, steps]),
        infos=tuple(each.info for each in fields),
        num_nodes=num_nodes,
        num_edges=num_edges,
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
    if times.dtype.kind in "iu" and steps and int(times.max()) > _LARGEST_EXACT:
        report(f"{where}: times are those after the first, {times[0]}: float64 tells them apart")
        times = times.astype(np.int64) - np.int64(times[0])
    times, starts = times.astype(np.float64), trajectory_starts.astype(np.int64)
    if (fault := fault_in_times(times, starts)) is not None:
        raise InputError(
            f"{where}: {fault}; times rise in each trajectory: sort the steps, or say where "
            "trajectories begin (trajectory_starts, --trajectories)"
        )
    return replace(series, times=times, trajectory_starts=starts)


@dataclass(frozen=True)
class SeriesColumn:
    """A field of a series on its way into a store, like a `NodeColumn`; counts what is missing.

    `missing` has by field the values, and the nodes or edges that have none at any step.

    Of a field of edges `places` return where the rows of the store's edges stand in the series, see
    `split_places`; loops that are added have zeros.
    """

    series: Series
    info: FieldInfo
    quiet: bool
    places: Callable[[], Array]
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
        self.missing[name], known = 0, np.zeros(len(own), np.bool_)
        quiet = self.quiet or steps < _QUIET_BELOW_STEPS
        read_edges = self._edges() if info.of_edges else None
        with Progress(f"writing {name}", steps, "steps", quiet=quiet) as progress:
            for step in range(steps):
                read = read_edges(step) if read_edges else partial(self.series.read, name, step)
                for start in range(own.start, own.stop, rows):
                    block = read(start, min(start + rows, own.stop))
                    absent = np.isnan(block)
                    self.missing[name] += int(np.count_nonzero(absent))
                    known[start - own.start :][: len(block)] |= ~absent.all(axis=1)
                    writer.append_field(name, step, block, info)
                    watchdog.beat()
                progress.advance(1)
        # As land is in a field of the sea: what is predicted there means nothing.
        what = "edges" if info.of_edges else "nodes"
        self.missing[f"{name}, {what} without any value"] = int(np.count_nonzero(~known))

    def _edges(self) -> Callable[[int], Callable[[int, int], Array]]:
        """Return what reads the rows of some edges of the store, by step."""
        series, name = self.series, self.info.name
        places, mirrored = split_places(self.places())
        is_flux = name in series.fluxes
        if mirrored.any() and not is_flux:
            report(f"{name}: reverses have the value of their edge; --fluxes {name} negates it")

        def at_step(step: int) -> Callable[[int, int], Array]:
            whole = series.read(name, step, 0, series.num_edges)

            def read(start: int, stop: int) -> Array:
                at = places[start:stop]
                rows = whole[np.maximum(at, 0)].astype(self.info.dtype, copy=False)
                if is_flux:
                    np.negative(rows, out=rows, where=mirrored[start:stop, None])
                rows[at < 0] = 0
                return rows

            return read

        return at_step


def total_missing(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the values of each field that are missing, from those that each rank has counted."""
    names = {name: None for each in counts for name in each}
    totals = {name: sum(each.get(name, 0) for each in counts) for name in names}
    return {name: total for name, total in totals.items() if total}
