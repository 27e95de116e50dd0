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
from hpcgnn.train.fields.objective import FieldObjective
from hpcgnn.train.process import prepare_process
from hpcgnn.train.run.saved_model import open_saved_model
from hpcgnn.train.tasks import check_saved
from hpcgnn.typing import Array, FloatArray, GlobalIndices

State = Mapping[str, Array]
"""Values (n, F) of fields by name, of the nodes of a rank in the order of `Stepper.node_ids`."""


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
        """The fields of a state: those that are predicted, then other inputs."""
        return self._objective.series.columns.fields

    @property
    def history(self) -> int:
        """How many states a step reads."""
        return self._objective.series.windows.history

    def stored(self, step: int) -> list[dict[str, FloatArray]]:
        """Return the states of the store up to a step, as many as a step reads; not collective."""
        sample = self._objective.series.frames(step - self.history + 1, step)
        return [self._state(frame) for frame in sample.frames.double()]

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
        dynamics, frames = self._objective.dynamics, list[torch.Tensor]()
        with agree(self.grid.world):
            if len(states) != self.history:
                raise InputError(f"step: {len(states)} states; give the last {self.history}")
            frames.extend(dynamics.filled(self._frame(state)) for state in states)
            following = dynamics.filled(self._frame({**states[-1], **(given or {})}))
        with torch.no_grad(), computing_as(self.grid, self._config):
            outputs = dynamics.outputs(self._model, frames, None)
        return self._state(dynamics.follow(dynamics.predicted(outputs, frames[-1]), following))

    def _frame(self, state: State) -> torch.Tensor:
        tables = []
        for each in self.fields:
            expected = (len(self.node_ids), each.num_columns)
            found = np.shape(state[each.name]) if each.name in state else None
            if found != expected:
                raise InputError(f"step: field {each.name!r} has shape {found}, not {expected}")
            tables.append(np.asarray(state[each.name], np.float64))
        return torch.from_numpy(np.concatenate(tables, axis=1))

    def _state(self, frame: torch.Tensor) -> dict[str, FloatArray]:
        places = self._objective.series.columns.places.items()
        return {name: frame[:, place].numpy().copy() for name, place in places}

    @collective
    def close(self) -> None:
        """Free the communicators, and close the store."""
        self._objective.series.reader.close()
        self.grid.close()

    def __enter__(self) -> "Stepper":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
