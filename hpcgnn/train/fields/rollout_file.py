"""Write a rollout to a file, streamed by all ranks in the order of original ids."""

import contextlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.comm import agree
from hpcgnn.comm.collect_rows import RowStream, in_order, in_order_of_ends
from hpcgnn.convert.read.meshes import read_cells
from hpcgnn.spmd import collective
from hpcgnn.storage import RolloutFile, value_type
from hpcgnn.train.fields.dynamics import RowDynamics
from hpcgnn.train.fields.nekrs_folder import NekFolder
from hpcgnn.train.fields.rollout import Rollouts
from hpcgnn.train.full.predictions import write_rows
from hpcgnn.typing import Array, FloatArray


@collective
def write_rollout(
    rollouts: Rollouts,
    model: Any,
    span: tuple[int, int],
    path: Path,
    like: Path | None,
    origin: Mapping[str, str | int],
) -> dict[str, Any]:
    """Write a rollout over `span`, an anchor and a number of steps; return its known errors.

    `like` is None, the mesh whose cells an .xdmf file shows, or the nekRS folder as which to lay
    out a folder at `path`. A file has the predicted fields; a folder also has the other inputs, as
    they were read.

    Raises `CollectiveInputError` if a step cannot be read or the file cannot be written.
    """
    (anchor, steps), grid, series = span, rollouts.grid, rollouts.series
    layer, ids, columns = grid.layer, rollouts.unroller.node_ids, series.columns
    folder = like if path.suffix != ".xdmf" else None
    fields = columns.targets if folder is None else columns.rows.nodes.fields
    dtype = max((value_type(field) for field in fields), key=lambda field: field.itemsize)
    errors, ends = rollouts.errors(steps), series.reader.edge_ends(grid, ids)
    num_edges = int(layer.allreduce(len(ends)))

    def sort_edges(rows: Array) -> tuple[Array, ...]:
        return in_order_of_ends(grid, ends, rows)[1:]

    with contextlib.ExitStack() as stack:
        files: list[Any] = []
        with agree(grid.world):
            if grid.rank == 0:
                times = step_times(rollouts, anchor, steps)
                if folder is not None:
                    first = anchor + rollouts.first_step
                    files.append(NekFolder(path, folder, fields, first, times))
                else:
                    counts, means = (rollouts.num_nodes, num_edges), rollouts.target_means()
                    notes = {**origin, "start": anchor, "means": json.dumps(means)}
                    cells = None if like is None else read_cells(like)
                    file = RolloutFile(path, fields, times, counts, notes, cells)
                    files.append(stack.enter_context(file))
        points = [ids] if series.positions is None else [ids, series.positions.numpy()]
        write_rows(grid, in_order(layer, ids, *points), lambda rows: files[0].write_nodes(rows))
        if columns.rows.edges.targets:
            write_rows(grid, sort_edges(ends), lambda rows: files[0].write_edges(rows))
        for index, rolled in enumerate(rollouts.roll(model, anchor, steps)):
            if rolled.is_known:
                errors.add(index, rolled)
            dynamics = rollouts.unroller.dynamics.rows
            nodes, edges = dynamics.map(RowDynamics.told, rolled.values, rolled.read)
            if folder is not None:
                nodes = torch.cat([nodes, rolled.read.nodes.double()[:, nodes.shape[1] :]], dim=1)
            for write, rows, sort in (
                ("write_step", nodes, partial(in_order, layer, ids)),
                ("write_edge_step", edges, sort_edges),
            ):
                if rows.shape[1]:
                    values = sort(rows.numpy().astype(dtype))
                    write_rows(grid, values, partial(_call, files, write, index))
        with agree(grid.world):
            stack.pop_all().close()
    return errors.told()


def _call(files: list[Any], write: str, index: int, rows: RowStream) -> None:
    getattr(files[0], write)(index, rows)


def step_times(rollouts: Rollouts, anchor: int, steps: int) -> FloatArray:
    """Return the times (steps,) of a rollout, extrapolated with the trajectory's last step length.

    A trajectory of a single step uses the median step length of the others.
    """
    series, first = rollouts.series, anchor + rollouts.first_step
    last = series.last_step(anchor)
    known = series.times[first : min(first + steps, last + 1)]
    length, lengths = series.times[last] - series.times[last - 1], series.lengths
    if last in series.trajectory_starts:
        length = np.median(lengths) if len(lengths) else 1.0
    extra = np.arange(1, steps - len(known) + 1) * length
    return np.concatenate([known, series.times[last] + extra])
