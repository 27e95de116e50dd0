"""Predictions of trained link models: the best targets of each source."""

from dataclasses import replace

import numpy as np
import torch

from hpcgnn.comm import ProcessGrid, agree, rows_of
from hpcgnn.comm.collect_rows import in_order
from hpcgnn.graph.context import Context
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.nn import LinkModel
from hpcgnn.spmd import collective
from hpcgnn.train.full.predictions import NodeRows
from hpcgnn.train.links.edges import known_links
from hpcgnn.train.links.objective import LinkObjective
from hpcgnn.train.links.pairs import DrawnPairs
from hpcgnn.train.links.ranking import KnownTargets, Queries, score_all
from hpcgnn.train.links.requested_pairs import find_rows, share_of
from hpcgnn.train.run.saved_model import SavedModel, load_saved_graph, require_equal
from hpcgnn.typing import GlobalIndices


@collective
def links_of_other(grid: ProcessGrid, saved: SavedModel) -> LinkObjective:
    """Return the objective of a store other than the run's, with no edge hidden from the graph.

    Raises `CollectiveInputError` if the store does not fit the model.
    """
    graph, config = load_saved_graph(grid, saved), saved.config
    # The order of the scorer's weights, which that of the store need not be.
    names = config.links.relations or saved.trained.predicted
    config = replace(config, links=replace(config.links, relations=names))
    # No edge is trained on or ranked: negatives are set up, but never used.
    options = replace(config.links, negatives="uniform")
    with StoredRows.opened(Context(grid, config), (), graph.row_map) as stored:
        links = known_links(stored)
    weights = saved.checkpoint.best.get("scorer.relations")
    if weights is not None:
        with agree(grid.world):
            numbers = len(links.names), len(weights)
            require_equal(config.graph.store, "number of predicted relations", *numbers)
    pairs = DrawnPairs(grid, graph.row_map, graph.products.node_ids, links, options)
    return LinkObjective(graph, config, links, pairs)


@torch.no_grad()
@collective
def best_targets(
    task: LinkObjective,
    model: LinkModel,
    source_ids: GlobalIndices | None,
    relation: int,
    count: int,
    *,
    with_known: bool,
) -> NodeRows:
    """Return the targets with the largest scores for each source of this rank's share.

    Sources keep the order of the request; the targets of each are sorted from best to worst. A
    source is never its own target. Targets have the node types that the relation's edges lead to
    from the source's type, or any type if the relation has no edge.

    `source_ids` (m,) are original ids, equal on all ranks; None for all nodes in ascending order. A
    source gets at most `count` targets; `with_known` allows targets of known edges.
    """
    grid, graph = task.grid, task.graph
    row_map, ids = graph.row_map, graph.products.node_ids
    if source_ids is None:
        rows = np.arange(row_map.start, row_map.stop, dtype=np.int64)
        (rows,) = in_order(grid.layer, ids, rows)
    else:
        rows = find_rows(graph, source_ids)[share_of(grid, len(source_ids))]
    queries = Queries(rows, np.full(len(rows), relation, np.int64))
    known_targets = None if with_known else KnownTargets.of(grid, row_map, task.links, queries)
    types, joined = task.links.types, task.links.joined_types(grid.layer, relation)
    embeddings = model.embed(graph.view, graph.features)
    best = torch.full((len(rows), count), -torch.inf, dtype=embeddings.dtype)
    top_targets = torch.full((len(rows), count), -1, dtype=torch.int64)
    for block in score_all(grid, row_map, embeddings, model.scorer, queries):
        chunk, scores = block.queries, block.scores
        block.set_aside(rows[chunk])
        if types is not None and joined is not None:
            block.keep(joined[types[rows[chunk]]][:, types[block.rows]])
        if known_targets is not None:
            scores[known_targets.between(chunk, block.first, scores.shape[1])] = -np.inf
        joint_scores = torch.cat([best[chunk], torch.from_numpy(scores)], dim=1)
        best[chunk], best_columns = joint_scores.topk(count, dim=1)
        block_rows = torch.arange(block.first, block.first + scores.shape[1])
        candidates = torch.cat([top_targets[chunk], block_rows.expand(len(scores), -1)], dim=1)
        top_targets[chunk] = candidates.gather(1, best_columns)
    exists = (best > -torch.inf).numpy()
    sources = np.repeat(rows, exists.sum(axis=1))
    from_ids = rows_of(grid.layer, row_map, sources, ids)
    to_ids = rows_of(grid.layer, row_map, top_targets.numpy()[exists], ids)
    ids_of_pairs = np.stack([from_ids, to_ids, np.full(len(sources), relation, np.int64)], axis=1)
    return NodeRows(ids_of_pairs, best.numpy()[exists].astype(np.float32))
