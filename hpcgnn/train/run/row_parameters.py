"""Parameters with a row per node: a rank has the rows of its nodes, a checkpoint has all rows.

A checkpoint holds the rows by ascending original id, so any number of ranks can resume from it.
"""

from collections.abc import Mapping
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import Communicator
from hpcgnn.comm.collect_rows import RowStream, in_order
from hpcgnn.comm.row_map import found_among
from hpcgnn.errors import InputError, named
from hpcgnn.nn import TrainableModule
from hpcgnn.spmd import collective
from hpcgnn.typing import GlobalIndices


@collective
def gather_rows(
    layer: Communicator, model: TrainableModule, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return tensors with the rows of all ranks on rank 0; elsewhere these tensors have no rows.

    Keys are the names of parameters or buffers, or ``NAME/KEY``, and equal on all ranks; `model`
    tells which tensors have rows of nodes.
    """
    gathered = dict(tensors)
    # A restored optimiser may have its state in another order on each rank.
    for name, value in sorted(tensors.items(), key=itemgetter(0)):
        ids = _ids_name(model, name, value)
        if ids is not None:
            keys = model.get_buffer(ids).cpu().numpy()
            gathered[name] = _gather(layer, keys, value).to(value.device)
    return gathered


def take_rows(
    model: TrainableModule, tensors: Mapping[str, Tensor], saved_ids: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Select the rows of this rank's nodes from the tensors that `gather_rows` returned on rank 0.

    `saved_ids` is the checkpoint's model, which has the ids of all rows.

    Raises `InputError` if a node of this rank has no row.
    """
    selected = dict(tensors)
    for name, value in tensors.items():
        ids = _ids_name(model, name, value)
        if ids is not None:
            positions = _positions(model.get_buffer(ids).cpu().numpy(), saved_ids[ids].numpy())
            selected[name] = value[torch.from_numpy(positions)]
    return selected


def _ids_name(model: TrainableModule, name: str, value: Tensor) -> str | None:
    """Return the buffer with the ids of a tensor's rows; None for a tensor that all ranks share."""
    # The step count of an optimiser is a scalar without rows.
    return model.own_rows().get(name.partition("/")[0]) if value.ndim > 0 else None


def _gather(layer: Communicator, keys: GlobalIndices, value: Tensor) -> Tensor:
    (rows,) = in_order(layer, keys, value.detach().cpu().numpy())
    with RowStream(layer, rows) as stream:
        pieces = [piece for (piece,) in stream]
    return torch.from_numpy(np.concatenate([rows[:0], *pieces]))


def _positions(local_ids: GlobalIndices, saved_ids: GlobalIndices) -> GlobalIndices:
    """Return the positions of `local_ids` among the ascending `saved_ids`."""
    positions, present = found_among(saved_ids, local_ids)
    missing = local_ids[~present]
    if len(missing):
        raise InputError(
            f"model.embeddings: the model has no vector of node {named(missing.tolist())}, only of "
            "those that it was trained on; use their graph"
        )
    return positions
