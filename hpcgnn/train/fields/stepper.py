"""A trained model as a step function, for programs that continue from its predictions."""

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
"""Field values by name: (n, F) for a rank's nodes in the order of `Stepper.node_ids`, and (E, F)
for its edges in the order of `Stepper.edge_ids`."""


class Stepper:
    """The model of a run that learned fields, on this rank's nodes; a context manager.

    Parameters
    ----------
    comm
        The ranks; None for all that the launcher started.
    run
        Run directory, or the file of a kept model.
    store
        A mesh to use instead of that of the run.
    seed
        The seed whose model to use; None for the best one by validation.

    Raises
    ------
    CollectiveInputError
        If the run has no such model, or the store does not fit it.

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
        feature = Feature("hpcgnn.Stepper", needs(Trait.FIELDS))
        with agree(world):
            saved = open_saved_model(Path(run), seed, store)
            check_saved(saved.config, feature)
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
        """The node fields of a state: the predicted ones, then other inputs."""
        return self._objective.series.columns.rows.nodes.fields

    @property
    def edge_fields(self) -> tuple[FieldInfo, ...]:
        """The edge fields of a state: the predicted ones, then other inputs."""
        return self._objective.series.columns.rows.edges.fields

    @property
    def history(self) -> int:
        """The number of states that a step reads."""
        return self._objective.series.windows.history

    def stored(self, step: int) -> list[dict[str, FloatArray]]:
        """Return the last `history` stored states up to a step; not collective.

        Raises `InputError` if the trajectory of the step has fewer up to it.
        """
        self._objective.series.require_anchor(f"stored({step})", step)
        sample = self._objective.series.frames(step - self.history + 1, step)
        return [self._state(sample.at(index)) for index in range(self.history)]

    @collective
    def step(self, states: Sequence[State], given: State | None = None) -> dict[str, FloatArray]:
        """Return the next state, or the last one with its targets if `predict` is "same".

        Parameters
        ----------
        states
            The last `history` states, oldest first; NaN where a value is missing.
        given
            Values of the next state: inputs that are not predicted, and targets at fixed nodes.
            Fields not given keep the values of the last state.

        Raises
        ------
        CollectiveInputError
            If a state lacks a field, or a field has the wrong shape.
        """
        dynamics, frames = self._objective.dynamics, list[Frame]()
        with agree(self.grid.world):
            if len(states) != self.history:
                raise InputError(f"step: {len(states)} states; give the last {self.history}")
            frames.extend(dynamics.filled(self._frame(state)) for state in states)
            following = self._frame({**states[-1], **(given or {})})
        with (
            torch.no_grad(),
            computing_as(self.grid, self._config),
            self.grid.run_position.unpacked(),
        ):
            outputs = dynamics.outputs(self._model, frames, None)
        predicted = dynamics.predicted(outputs, frames[-1])
        return self._state(dynamics.follow(predicted, following))

    def _frame(self, state: State) -> Frame:
        """Return the columns (rows, width) float64 of the fields of a state."""

        def join(columns: RowColumns, count: int) -> torch.Tensor:
            tables = [np.empty((count, 0))]
            for field in columns.fields:
                name, expected = field.name, (count, field.num_columns)
                shape = np.shape(state[name]) if name in state else None
                if shape != expected:
                    raise InputError(f"step: field {name!r} has shape {shape}, not {expected}")
                tables.append(np.asarray(state[name], np.float64))
            return torch.from_numpy(np.concatenate(tables, axis=1))

        counts = ByRows(len(self.node_ids), len(self.edge_ids))
        return self._objective.series.columns.rows.map(join, counts)

    def _state(self, frame: Frame) -> dict[str, FloatArray]:
        return {
            name: rows[:, field_columns].double().numpy().copy()
            for columns, rows in zip(self._objective.series.columns.rows, frame, strict=True)
            for name, field_columns in columns.slices.items()
        }

    @collective
    def close(self) -> None:
        """Free the communicators, and close the store."""
        self._objective.series.reader.store.close()
        self.grid.close()

    def __enter__(self) -> "Stepper":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
