"""A trained model as a step function, for programs that go on from what it predicts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from hpcgnn.comm import CollectiveInputError, Communicator, ProcessGrid, agree
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context, computing_as
from hpcgnn.spmd import all_of_launcher, collective
from hpcgnn.storage import FieldInfo
from hpcgnn.support import Feature, Trait, needs
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.fields.frames import ByRows, Frame, RowColumns
from hpcgnn.train.fields.objective import FieldObjective
from hpcgnn.train.process import prepare_process
from hpcgnn.train.run.saved_model import open_saved_model
from hpcgnn.train.tasks import check_saved
from hpcgnn.typing import Array, FloatArray, GlobalIndices

State = Mapping[str, Array]
"""Values (n, F) of fields by name, of the nodes of a rank in the order of `Stepper.node_ids`; of
fields of edges (E, F), in the order of `Stepper.edge_ids`."""


class Stepper:
    """The model of a run that learned fields, on this rank's nodes; a context manager.

    Parameters
    ----------
    comm
        The ranks; None: all that the launcher started.
    run
        Run directory, or the file of a kept model.
    store
        Another mesh than that of the run.
    seed
        Whose model is taken; None: the best by validation.

    Raises
    ------
    CollectiveInputError
        When the run has no such model, or the store does not fit it.

    Examples
    --------
    >>> with hpcgnn.Stepper(None, "runs/wave") as stepper:
    ...     state = stepper.stored(10)
    ...     for _ in range(5):
    ...         state = [*state[1:], stepper.step(state)]
    """

    @collective
    def __init__(
        self,
        comm: "Communicator | None",
        run: str | Path,
        *,
        store: str | None = None,
        seed: int | None = None,
    ) -> None:
        world = comm if comm is not None else all_of_launcher()
        asked = Feature("hpcgnn.Stepper", needs(Trait.FIELDS))
        with agree(world):
            saved = open_saved_model(Path(run), seed, store)
            check_saved(saved.config, asked)
        self.grid = ProcessGrid(world, 1)
        try:
            prepare_process(self.grid, saved.config.run.threads)
            self._config = saved.config
            context = Context.open(self.grid, saved.config, TraceRecorder.off())
            self._objective = FieldObjective.of_saved(context, saved)
            reader = self._objective.series.reader
            self.edge_ids = reader.edge_ends(self.grid, self.node_ids)
            with computing_as(self.grid, saved.config):
                self._model = saved.model(self.grid, self._objective.make_model)
        except CollectiveInputError:
            self.grid.close()
            raise

    @property
    def node_ids(self) -> GlobalIndices:
        """(n,) int64 original ids of this rank's nodes."""
        return self._objective.unroller.node_ids

    @property
    def fields(self) -> tuple[FieldInfo, ...]:
        """The fields of nodes of a state: those that are predicted, then other inputs."""
        return self._objective.series.columns.rows.nodes.fields

    @property
    def edge_fields(self) -> tuple[FieldInfo, ...]:
        """The fields of edges of a state, likewise."""
        return self._objective.series.columns.rows.edges.fields

    @property
    def history(self) -> int:
        """How many states a step reads."""
        return self._objective.series.windows.history

    def stored(self, step: int) -> list[dict[str, FloatArray]]:
        """Return the states of the store up to a step, as many as a step reads; not collective.

        Raises `InputError` where the store has fewer in its trajectory.
        """
        self._objective.series.require_anchor(f"stored({step})", step)
        sample = self._objective.series.frames(step - self.history + 1, step)
        return [self._state(sample.at(index)) for index in range(self.history)]

    @collective
    def step(self, states: Sequence[State], given: State | None = None) -> dict[str, FloatArray]:
        """Return the next state, or where targets are of the same time this one with them.

        Parameters
        ----------
        states
            The last `history` ones, the oldest first; NaN where a value is missing.
        given
            Of the next state: inputs that are not predicted, and targets at fixed nodes. What is
            not given stays as it is in the last state.

        Raises
        ------
        CollectiveInputError
            When a state lacks a field, or has another shape.
        """
        dynamics, frames = self._objective.dynamics, list[Frame]()
        with agree(self.grid.world):
            if len(states) != self.history:
                raise InputError(f"step: {len(states)} states; give the last {self.history}")
            frames.extend(dynamics.filled(self._frame(state)) for state in states)
            following = self._frame({**states[-1], **(given or {})})
        with torch.no_grad(), computing_as(self.grid, self._config):
            outputs = dynamics.outputs(self._model, frames, None)
        predicted = dynamics.predicted(outputs, frames[-1])
        return self._state(dynamics.follow(predicted, following))

    def _frame(self, state: State) -> Frame:
        """Return the columns (rows, width) float64 of the fields of a state."""

        def join(columns: RowColumns, count: int) -> torch.Tensor:
            tables = [np.empty((count, 0))]
            for each in columns.fields:
                expected = (count, each.num_columns)
                found = np.shape(state[each.name]) if each.name in state else None
                if found != expected:
                    raise InputError(f"step: field {each.name!r} has shape {found}, not {expected}")
                tables.append(np.asarray(state[each.name], np.float64))
            return torch.from_numpy(np.concatenate(tables, axis=1))

        counts = ByRows(len(self.node_ids), len(self.edge_ids))
        return self._objective.series.columns.rows.map(join, counts)

    def _state(self, frame: Frame) -> dict[str, FloatArray]:
        return {
            name: rows[:, place].double().numpy().copy()
            for columns, rows in zip(self._objective.series.columns.rows, frame, strict=True)
            for name, place in columns.places.items()
        }

    @collective
    def close(self) -> None:
        """Free the communicators, and close the store."""
        self._objective.series.reader.close()
        self.grid.close()

    def __enter__(self) -> "Stepper":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
