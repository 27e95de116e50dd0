"""Features of edges, for models that read them."""

from dataclasses import replace

import numpy as np
import torch

from hpcgnn.autograd import EdgeInputs
from hpcgnn.comm import RowMap, RowRequest
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.nn import find_model
from hpcgnn.sparse import EdgeRows, read_edge_rows
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore


def num_edge_features(config: Config, store: GraphStore) -> int:
    """Return the columns of the edges' features that the model reads, 0 where it reads none.

    Raises
    ------
    InputError
        When two relations have unequal numbers.
    """
    # Messages ask for rows by themselves; attention has them by the exchange.
    if not (find_model(config.model.name).reads_edges or config.model.edge_features):
        return 0
    relations = config.graph.relations or store.relations
    widths = {each: store.edge_features(each)[0] for each in relations}
    if not any(widths.values()):
        # Messages of one's own need none: their edges have features of width 0.
        return 0
    if len(set(widths.values())) > 1:
        shown = ", ".join(f"{each} {width}" for each, width in widths.items())
        raise InputError(
            f"{store.path}: relations have unequal numbers of edge features ({shown}); choose "
            "graph.relations with equal ones"
        )
    return next(iter(widths.values()))


@collective
def read_edge_inputs(context: Context, store: GraphStore, row_map: RowMap) -> EdgeInputs:
    """Return the edges of this rank's nodes, for a model that reads them.

    Raises
    ------
    CollectiveInputError
        When a block does not read.
    """
    device, rows = context.device, read_edge_rows_of(context, store, row_map)
    wanted, places = np.unique(rows.sources, return_inverse=True)
    features = torch.from_numpy(rows.features)
    return EdgeInputs(
        request=RowRequest.make(context.grid.layer, row_map, wanted),
        sources=device.tensor(places),
        targets=device.tensor(rows.targets),
        features=features.to(device.place),
        num_targets=row_map.num_local,
        trace=context.trace,
    )


@collective
def read_edge_rows_of(context: Context, store: GraphStore, row_map: RowMap) -> EdgeRows:
    """Return the edges of this rank's rows, with features in the dtype of the model.

    Raises
    ------
    CollectiveInputError
        When a block does not read.
    """
    config = context.config
    names = config.graph.relations or store.relations
    edges = read_edge_rows(context.grid, store, row_map, names, context.hidden)
    return replace(edges, features=edges.features.astype(config.train.dtype))
