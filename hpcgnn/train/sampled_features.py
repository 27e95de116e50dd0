"""The features of nodes that ranks sample from: of all nodes, or of those that a rank asks for."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid, RowMap, RowRequest, share_on_hosts
from hpcgnn.nn import NodeFeatures, TypedRows
from hpcgnn.typing import GlobalIndices, Offsets

__all__ = ["fetch_features", "share_features"]


def share_features(grid: ProcessGrid, features: NodeFeatures) -> NodeFeatures:
    """Return the features of all nodes, once on every host.

    Collective.

    Parameters
    ----------
    grid
        The ranks.
    features
        Of the nodes of this rank, on the CPU.
    """

    def share(name: str, tensor: Tensor) -> Tensor:
        return torch.from_numpy(share_on_hosts(grid, f"sampling.{name}", tensor.numpy()))

    if not isinstance(features, TypedRows):
        return share("features", features)
    numbers, starts = _number(grid, features)
    parts = [
        share(f"features.{number}", part)
        if part.shape[1]
        else part.new_empty(int(starts[-1, number]), 0)
        for number, part in enumerate(features.parts)
    ]
    places = share("places", torch.from_numpy(numbers))
    return TypedRows(tuple(parts), share("types", features.types), places)


def fetch_features(
    grid: ProcessGrid, features: NodeFeatures, requests: Sequence[RowRequest]
) -> NodeFeatures:
    """Return the features of the nodes that this rank asks for, request after request.

    Collective.

    Parameters
    ----------
    grid
        The ranks.
    features
        Of the nodes of this rank, on the CPU.
    requests
        For nodes.
    """
    if not isinstance(features, TypedRows):
        return torch.from_numpy(np.concatenate([each.rows(features.numpy()) for each in requests]))
    numbers, starts = _number(grid, features)
    pieces: list[list[Tensor]] = [[] for _ in features.parts]
    types = []
    for request in requests:
        kinds = request.rows(features.types.numpy())
        wanted = request.rows(numbers)
        types.append(kinds)
        for number, part in enumerate(features.parts):
            mine = wanted[kinds == number]
            if part.shape[1] == 0:
                pieces[number].append(part.new_empty(len(mine), 0))
                continue
            row_map = RowMap(np.ascontiguousarray(starts[:, number]), grid.block)
            # Numbers rise with global rows, as a request wants them.
            rows = RowRequest.make(grid.layer, row_map, mine).rows(part.numpy())
            pieces[number].append(torch.from_numpy(rows))
    parts = [torch.cat(each) for each in pieces]
    return TypedRows.in_order(parts, torch.from_numpy(np.concatenate(types)))


def _number(grid: ProcessGrid, features: TypedRows) -> tuple[GlobalIndices, Offsets]:
    """Return (N,) number of each local node among all nodes of its type, and where ranks begin.

    The second is (ranks + 1, types).
    """
    counts = np.array([len(each) for each in features.parts], np.int64)
    ends = np.cumsum(grid.layer.allgather(counts), axis=0, dtype=np.int64)
    starts = np.concatenate([np.zeros((1, len(counts)), np.int64), ends])
    return starts[grid.block][features.types.numpy()] + features.places.numpy(), starts
