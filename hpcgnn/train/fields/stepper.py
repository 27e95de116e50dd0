"""A trained model as a step function, for programs that go on from what it predicts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from hpcgnn.comm import CollectiveInputError, Communicator, ProcessGrid, RowRequest, agree
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
            self.edge_ids = self._find_edges()
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
    def edge_fields(self) -> tuple[FieldInfo, ...]:
        """The fields of edges of a state."""
        return self._objective.series.columns.of_edges

    @collective
    def _find_edges(self) -> GlobalIndices:
        """Return (E, 2) int64 the original ids of the sources and targets of this rank's edges.

        Without fields of edges there are none.
        """
        graph, ids = self._objective.graph, self.node_ids
        if not self.edge_fields:
            return np.empty((0, 2), np.int64)
        with agree(self.grid.world):
            rows = graph.row_map.start, graph.row_map.stop
            block = self._objective.series.reader.store.read_adjacency(*rows)
        wanted, places = np.unique(block.indices, return_inverse=True)
        found = RowRequest.make(self.grid.layer, graph.row_map, wanted).rows(ids)
        return np.stack([found[places], np.repeat(ids, np.diff(block.indptr))], axis=1)

    @property
    def history(self) -> int:
        """How many states a step reads."""
        return self._objective.series.windows.history

    def stored(self, step: int) -> list[dict[str, FloatArray]]:
        """Return the states of the store up to a step, as many as a step reads; not collective."""
        sample = self._objective.series.frames(step - self.history + 1, step)
        pairs = zip(sample.frames.double(), sample.edges.double(), strict=True)
        return [self._state(*pair) for pair in pairs]

    @collective
    def step(self, states: Sequence[State], given: State | None = None) -> dict[str, FloatArray]:
        """Return the next state, or where targets are of the same time this one with them.

        Parameters
        ----------
        states
            The last `history` ones, the oldest first; NaN where a value is missing.
        given
            Of the next state: inputs that are not predicted, fields of edges, and targets at fixed
            nodes. What is not given stays as it is in the last state.

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
            edges = torch.stack([self._edge_frame(state) for state in states])
            next_state = {**states[-1], **(given or {})}
            following = dynamics.filled(self._frame(next_state))
            next_edges = self._edge_frame(next_state)
        with torch.no_grad(), computing_as(self.grid, self._config):
            outputs = dynamics.outputs(self._model, frames, [edges], None)
        predicted = dynamics.predicted(outputs, frames[-1])
        return self._state(dynamics.follow(predicted, following), next_edges)

    def _frame(self, state: State) -> torch.Tensor:
        return self._joined(state, self.fields, len(self.node_ids))

    def _edge_frame(self, state: State) -> torch.Tensor:
        return self._joined(state, self.edge_fields, len(self.edge_ids))

    @staticmethod
    def _joined(state: State, fields: Sequence[FieldInfo], count: int) -> torch.Tensor:
        """Return the columns (count, width) float64 of some fields of a state."""
        tables = [np.empty((count, 0))]
        for each in fields:
            expected = (count, each.num_columns)
            found = np.shape(state[each.name]) if each.name in state else None
            if found != expected:
                raise InputError(f"step: field {each.name!r} has shape {found}, not {expected}")
            tables.append(np.asarray(state[each.name], np.float64))
        return torch.from_numpy(np.concatenate(tables, axis=1))

    def _state(self, frame: torch.Tensor, edges: torch.Tensor) -> dict[str, FloatArray]:
        state: dict[str, FloatArray] = {}
        pairs = ((frame, self.fields), (edges, self.edge_fields))
        for rows, fields in pairs:
            ends = np.cumsum([each.num_columns for each in fields])[:-1]
            parts = np.split(rows.numpy(), ends, axis=1) if fields else []
            state |= {each.name: part.copy() for each, part in zip(fields, parts, strict=True)}
        return state

    @collective
    def close(self) -> None:
        """Free the communicators, and close the store."""
        self._objective.series.reader.close()
        self.grid.close()

    def __enter__(self) -> "Stepper":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
