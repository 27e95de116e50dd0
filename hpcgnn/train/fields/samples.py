"""A rank's share of a series, and its samples: windows of frames around an anchor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import agree
from hpcgnn.config.config import Config
from hpcgnn.config.fields import FieldsConfig
from hpcgnn.errors import InputError, instead_of
from hpcgnn.graph.context import Context
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import TypedRows
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore
from hpcgnn.train.fields.frames import ByRows, Columns, Frame, FrameReader
from hpcgnn.train.fields.windows import Windows
from hpcgnn.typing import FloatArray, Offsets


@dataclass(frozen=True, eq=False)
class Sample:
    """The frames (steps, rows, width) around an anchor as stored, NaN where missing.

    `number` is the sample's index in its training step.
    """

    anchor: int
    frames: Frame
    number: int = 0

    def at(self, index: int) -> Frame:
        """Return the frame of an index, counted from 0."""
        return self.frames.map(lambda rows: rows[index])

    @property
    def nbytes(self) -> int:
        """The size of the frames in bytes."""
        return sum(rows.nbytes for rows in self.frames)


@dataclass(frozen=True, eq=False)
class SampleStep:
    """The samples of a training step in this rank's group; all groups together have `size`."""

    samples: Sequence[Sample]
    size: int


@dataclass(frozen=True, eq=False)
class Series:
    """The series of a store as this rank reads it.

    `windows` are the steps that make samples. `weights` (n,) and (E,) float64 are those of errors;
    all edges weigh 1. For the masks `fixed` and `absent`, see `Mesh`. `positions` are (n, D)
    float64; None if the store has none. `times` (T,) float64 are those of all steps, and
    `trajectory_starts` (R + 1,) int64 the first steps of the trajectories.
    """

    columns: Columns
    windows: Windows
    reader: FrameReader
    weights: Frame
    fixed: Frame
    absent: Frame
    positions: Tensor | None
    times: FloatArray
    trajectory_starts: Offsets

    @classmethod
    @collective
    def open(cls, context: Context, graph: LocalGraph) -> "Series":
        """Return the series of the store that a graph was read from.

        Raises `CollectiveInputError` if it lacks a field, or is too short for a sample.
        """
        with agree(context.grid.world):
            store = GraphStore.open(context.config.graph.store)
            return cls._read(context.config, store, graph)

    @classmethod
    def _read(cls, config: Config, store: GraphStore, graph: LocalGraph) -> "Series":
        options, row_map = config.fields, graph.row_map
        start, stop = row_map.start, row_map.stop
        columns = Columns.of(config, store)
        reader = FrameReader(store, row_map, columns)
        edges = torch.ones(len(reader.edge_targets), dtype=torch.float64)
        positions, weights = store.read_positions(start, stop), store.read_node_weights(start, stop)
        return cls(
            columns,
            Windows.of(options, store.trajectory_starts),
            reader,
            ByRows(torch.from_numpy(np.ones(stop - start) if weights is None else weights), edges),
            _fixed_rows(options, graph, store, len(edges)),
            reader.absent().map(torch.from_numpy),
            None if positions is None else torch.from_numpy(positions),
            store.times,
            store.trajectory_starts,
        )

    @property
    def lengths(self) -> FloatArray:
        """(T - R,) float64 time step lengths; gaps between trajectories are left out."""
        return np.delete(np.diff(self.times), self.trajectory_starts[1:-1] - 1)

    def sample(self, anchor: int, ahead: int) -> Sample:
        """Return the sample of an anchor, with `ahead` steps after it; not collective."""
        return replace(
            self.frames(anchor - self.windows.history + 1, anchor + ahead), anchor=anchor
        )

    def frames(self, first: int, last: int) -> Sample:
        """Return the frames of the steps from `first` to `last`, inclusive; not collective."""
        frames = [self.reader.read(step) for step in range(first, last + 1)]
        rows = (torch.from_numpy(np.stack(steps)) for steps in zip(*frames, strict=True))
        return Sample(last, ByRows(*rows))

    def require_anchor(self, what: str, anchor: int) -> None:
        """Raise `InputError` if too few steps precede an anchor; `what` names the request."""
        starts, history = self.trajectory_starts, self.windows.history
        first = int(starts[max(int(np.searchsorted(starts, anchor, side="right")) - 1, 0)])
        if not 0 <= anchor < len(self.times) or anchor - first + 1 < history:
            raise InputError(
                f"{what}: the store has steps 0 to {len(self.times) - 1}, and the model reads "
                f"{history} of one trajectory up to this one"
            )

    def last_step(self, step: int) -> int:
        """Return the last step of the trajectory that a step belongs to."""
        following = np.searchsorted(self.trajectory_starts, step, side="right")
        return int(self.trajectory_starts[following]) - 1


@dataclass(frozen=True, eq=False)
class _Choosable:
    """Resolves the row names in ``fields.fixed`` or ``fields.edge_fixed``.

    A name is a type, among `type_names`, or a feature column that is not 0, which may have one of
    `names`. `features` are as stored, since scaled ones are hardly ever 0.
    """

    key: str
    what: str
    count: int
    features: Callable[[], FloatArray | None]
    names: tuple[str, ...]
    types: Tensor | None = None
    type_names: tuple[str, ...] = ()

    def mask(self, names: tuple[str, ...]) -> Tensor:
        """Return the mask (count,) of the rows that `names` choose; raises `InputError`."""
        chosen, rows = torch.zeros(self.count, dtype=torch.bool), None
        for name in names:
            if self.types is not None and name in self.type_names:
                chosen |= self.types == self.type_names.index(name)
                continue
            word, _, number = name.partition(":")
            if self.types is None and name in self.names:
                number = str(self.names.index(name))
            elif word != "feature" or not number.isdecimal() or self.types is not None:
                remedy = instead_of(name, self.type_names or (*self.names, "feature:N"))
                raise InputError(f"{self.key}: no {self.what} are called {name!r}; {remedy}")
            rows = self.features() if rows is None else rows
            if rows is None or int(number) >= rows.shape[1]:
                raise InputError(
                    f"{self.key} = {name!r}: {self.what} have "
                    f"{0 if rows is None else rows.shape[1]} features, counted from 0"
                )
            chosen |= torch.from_numpy(rows[:, int(number)] != 0)
        return chosen


def _fixed_rows(
    options: FieldsConfig, graph: LocalGraph, store: GraphStore, num_edges: int
) -> Frame:
    """Return masks (n,) and (E,) of rows with prescribed targets; raises `InputError`."""
    rows, static = (graph.row_map.start, graph.row_map.stop), graph.features
    nodes = _Choosable(
        "fields.fixed",
        "nodes",
        graph.row_map.num_local,
        lambda: store.read_features(*rows),
        store.feature_names,
        static.types if isinstance(static, TypedRows) else None,
        graph.facts.type_names,
    )
    edges = _Choosable(
        "fields.edge_fixed",
        "edges",
        num_edges,
        lambda: store.read_edge_data(*rows).features,
        store.edge_feature_names,
    )
    return ByRows(nodes.mask(options.fixed), edges.mask(options.edge_fixed))
