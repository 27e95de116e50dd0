"""Features of edges, for models that read them."""

from dataclasses import replace

import numpy as np
import torch

from hpcgnn.autograd import EdgeInputs
from hpcgnn.comm import RowRequest
from hpcgnn.graph.stored import StoredRows
from hpcgnn.sparse import EdgeRows, read_edge_rows
from hpcgnn.spmd import collective


@collective
def read_edge_inputs(stored: StoredRows) -> EdgeInputs:
    """Return the edges of this rank's nodes, for a model that reads them.

    Raises
    ------
    CollectiveInputError
        When a block does not read.
    """
    device, rows = stored.context.device, read_edge_rows_of(stored)
    order = np.argsort(rows.targets, kind="stable")
    wanted, places = np.unique(rows.sources[order], return_inverse=True)
    features = torch.from_numpy(rows.features[order])
    return EdgeInputs(
        request=RowRequest.make(stored.context.grid.layer, stored.row_map, wanted),
        sources=device.tensor(places),
        targets=device.tensor(rows.targets[order]),
        features=features.to(device.place),
        num_targets=stored.row_map.num_local,
        trace=stored.context.trace,
    )


@collective
def read_edge_rows_of(stored: StoredRows) -> EdgeRows:
    """Return the edges of this rank's rows, with features in the dtype of the model.

    Raises
    ------
    CollectiveInputError
        When a block does not read.
    """
    context = stored.context
    edges = read_edge_rows(
        context.grid, stored.store, stored.row_map, stored.relations, context.hidden
    )
    return replace(edges, features=edges.features.astype(context.config.train.dtype))
