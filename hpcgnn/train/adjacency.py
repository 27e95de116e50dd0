"""From the relations of a store to the products of a model."""

from hpcgnn.comm import ProcessGrid, RowMap, agree
from hpcgnn.errors import InputError
from hpcgnn.nn import MODELS, REVERSED, WITH_SELF_LOOPS, Aggregations
from hpcgnn.sparse import DistCSR, read_adjacency, read_relations, stack_relations
from hpcgnn.spmm import Exchange
from hpcgnn.storage import GraphStore
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.config import Config
from hpcgnn.train.device import Device
from hpcgnn.train.products import AdjacencyProducts
from hpcgnn.typing import GlobalIndices

__all__ = ["read_matrix", "read_products", "relation_names"]


def read_products(
    grid: ProcessGrid,
    config: Config,
    store: GraphStore,
    row_map: RowMap,
    directed: bool,
    trace: TraceRecorder,
    node_ids: GlobalIndices,
    device: Device,
) -> tuple[AdjacencyProducts, dict[str, int]]:
    """Read the adjacency as the model wants it; return its products, and sizes for the summary.

    Collective.

    Parameters
    ----------
    grid, config, trace
        The ranks, the configuration, the recorder.
    store, row_map
        The open store, and the rows of this rank.
    directed
        Whether edges have a direction.
    node_ids
        (num_local,) int64 original ids.
    device
        Where the products are to run.

    Raises
    ------
    CollectiveInputError
        When a block does not read, or a weight is negative.
    """
    wanted, matrix = read_matrix(grid, config, store, row_map, directed)
    products = AdjacencyProducts(
        grid, matrix, wanted, config.exchange, config.train.dtype, trace, node_ids, device
    )
    return products, _details(matrix, products.exchange)


def read_matrix(
    grid: ProcessGrid, config: Config, store: GraphStore, row_map: RowMap, directed: bool
) -> tuple[tuple[Aggregations, ...], DistCSR]:
    """Return the aggregations that the model wants, and this rank's block row of their matrix.

    Collective; arguments and errors are those of `read_products`.
    """
    wanted = MODELS[config.model.name].aggregations
    if not directed:
        # Both directions of an undirected graph are the same mean.
        wanted = tuple(kind for kind in wanted if kind not in REVERSED)
    undirected = config.graph.undirected
    if Aggregations.MEAN_BY_RELATION in wanted:
        names = config.graph.relations or store.relations
        relations = read_relations(
            grid,
            store,
            row_map,
            names,
            undirected=undirected,
            reverse=directed and config.graph.reverse,
        )
        matrix = stack_relations(row_map, relations)
    else:
        rows = read_adjacency(
            grid,
            store,
            row_map,
            config.graph.relations,
            undirected=undirected,
            self_loops=not WITH_SELF_LOOPS.isdisjoint(wanted),
        )
        matrix = DistCSR.from_rows(row_map, rows.indptr, rows.columns, rows.weights)
    with agree(grid.world):
        for part in (matrix.diagonal, matrix.remote):
            if part.values is not None and part.values.min(initial=0) < 0:
                raise InputError(
                    f"{store.path}: negative edge weights have no mean; convert with weights >= 0"
                )
    return wanted, matrix


def relation_names(config: Config, store: GraphStore, *, directed: bool) -> tuple[str, ...]:
    """Return the names of the relations that the model tells apart; () when it unites them.

    Not collective.
    """
    if Aggregations.MEAN_BY_RELATION not in MODELS[config.model.name].aggregations:
        return ()
    names = tuple(config.graph.relations or store.relations)
    if directed and config.graph.reverse:
        names += tuple(f"{name} reversed" for name in names)
    return names


def _details(matrix: DistCSR, exchange: Exchange) -> dict[str, int]:
    volume = exchange.volume()
    return {
        "local_nodes": matrix.row_map.num_local,
        "local_edges": matrix.nnz,
        "ghost_nodes": len(matrix.ghosts),
        "boundary_nodes": matrix.num_boundary,
        "exchange_send_rows": int(volume.sent.sum()),
        "exchange_recv_rows": int(volume.received.sum()),
        "exchange_max_pair_rows": int(volume.sent.max(initial=0)),
    }
