"""What a trained model says of pairs of nodes: scores of given ones, and the best targets."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from hpcgnn.comm import ProcessGrid, agree, allreduce_sum, raise_on_all, rows_of
from hpcgnn.comm.collect_rows import in_order
from hpcgnn.comm.row_map import found_among
from hpcgnn.config.options import known
from hpcgnn.errors import InputError, named
from hpcgnn.graph.context import Context
from hpcgnn.graph.stored import StoredRows
from hpcgnn.nn import LinkModel
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.links.edges import LinkEdges, known_links
from hpcgnn.train.links.objective import LinkObjective
from hpcgnn.train.links.pairs import DrawnPairs, Pairs
from hpcgnn.train.links.ranking import KnownTargets, Queries, score_all
from hpcgnn.train.run.saved_model import SavedModel, load_saved_graph
from hpcgnn.typing import Array, FloatArray, GlobalIndices

_COLUMNS = ("source", "target", "relation")


@dataclass(frozen=True, eq=False)
class LinkRows:
    """Pairs of nodes with their scores.

    `sources` and `targets` (m,) int64 are original ids, `relations` (m,) int64 numbers of the
    predicted ones, `scores` (m,) float32.
    """

    sources: GlobalIndices
    targets: GlobalIndices
    relations: GlobalIndices
    scores: FloatArray

    @property
    def columns(self) -> tuple[Array, ...]:
        """What `write_edges` takes."""
        return np.stack([self.sources, self.targets], axis=1), self.relations, self.scores


@collective
def links_of_other(grid: ProcessGrid, saved: SavedModel) -> LinkObjective:
    """Return the graph of another store than the run's: all its edges are aggregated over.

    Raises `CollectiveInputError` when it does not fit the model.
    """
    graph, config = load_saved_graph(grid, saved, TraceRecorder.off()), saved.config
    # Nothing is drawn but what no edge is ranked against.
    options = replace(config.links, negatives="uniform")
    with agree(grid.world):
        store = GraphStore.open(config.graph.store, grid.world)
    with store:
        links = known_links(StoredRows(Context(grid, config), store, graph.row_map))
    pairs = DrawnPairs(grid, graph.row_map, graph.products.node_ids, links, options)
    return LinkObjective(graph, config, links, pairs)


def read_pairs(
    path: Path, store: GraphStore, relations: Sequence[str], relation: str | None
) -> tuple[GlobalIndices, GlobalIndices, GlobalIndices]:
    """Return the original ids of sources and targets, and relations, of a table of pairs.

    The table is text with a header: source, target, and where several relations are predicted
    relation. Nodes are identified by name where the store has names, else by original id.
    `relation` is that of all pairs, where the table has no such column.

    Raises `InputError` when the table does not read, or names what is not there.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *rows = list(csv.reader(file)) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--pairs {path}: {reason}; give a table source,target") from None
    rows = [row for row in rows if row]
    columns = [name for name in _COLUMNS if name in header]
    if len(columns) < 2 or columns[:2] != list(_COLUMNS[:2]) or not rows:
        raise InputError(f"--pairs {path}: needs a header source,target, and pairs below it")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise InputError(f"--pairs {path}, row {number}: {len(row)} fields, not {len(header)}")
    texts = {name: [row[header.index(name)] for row in rows] for name in columns}
    sources, targets = (_ids(path, store, texts[name]) for name in _COLUMNS[:2])
    named = texts.get("relation") or [relation_of(relations, relation)] * len(rows)
    for name in dict.fromkeys(named):
        known(name, relations, f"relation of {path}")
    numbers = {name: number for number, name in enumerate(relations)}
    return sources, targets, np.array([numbers[name] for name in named], np.int64)


def relation_of(relations: Sequence[str], relation: str | None) -> str:
    """Return the relation that is meant; raises `InputError` where that is not told."""
    if relation is None and len(relations) > 1:
        raise InputError(f"--relation: several are predicted; give one of {', '.join(relations)}")
    if relation is not None:
        known(relation, relations, "relation, predicted are")
    return relation or relations[0]


def _ids(path: Path, store: GraphStore, texts: Sequence[str]) -> GlobalIndices:
    if store.has_names:
        numbers = store.find_names(texts)
        if numbers.min(initial=0) < 0:
            missing = [text for text, row in zip(texts, numbers, strict=True) if row < 0]
            raise InputError(
                f"--pairs {path}: {store.path} has no node {named(missing)}; name nodes of it"
            )
        return numbers
    try:
        return np.array([int(text) for text in texts], np.int64)
    except (ValueError, OverflowError):
        raise InputError(
            f"--pairs {path}: nodes of {store.path} have no names; give original ids, integers"
        ) from None


@collective
def find_rows(task: LinkObjective, node_ids: GlobalIndices) -> GlobalIndices:
    """Return (m,) the global rows of original ids (m,), which are equal on all ranks.

    Raises `CollectiveInputError` when there is no node of such an id.
    """
    ids = task.graph.products.node_ids
    order = np.argsort(ids)
    positions, is_local = found_among(ids[order], node_ids)
    rows = np.zeros(len(node_ids), np.int64)
    rows[is_local] = order[positions[is_local]] + task.graph.row_map.start + 1
    allreduce_sum(task.grid.layer, rows)
    missing = named(node_ids[rows == 0].tolist())
    fault = InputError(f"{task.facts.name} has no node {missing}; give ids of the original graph")
    raise_on_all(task.grid.world, fault if missing else None)
    return rows - 1


@torch.no_grad()
@collective
def score_pairs(
    task: LinkObjective,
    model: LinkModel,
    ids: tuple[GlobalIndices, GlobalIndices],
    relations: GlobalIndices,
) -> LinkRows:
    """Return this rank's share of the pairs, in their order, with scores.

    `ids` are original ones of sources and targets (m,), with their `relations` (m,); equal on all
    ranks.
    """
    rows = [find_rows(task, column) for column in ids]
    share = _share(task.grid, len(relations))
    sources, targets = (column[share] for column in rows)
    edges = LinkEdges(sources, targets, relations[share], np.zeros_like(sources))
    row_map, no_wrong = task.graph.row_map, np.empty((len(edges), 0), np.int64)
    pairs = Pairs.of(edges, no_wrong, row_map.num_rows).asked(task.grid.layer, row_map)
    embeddings = model.embed(task.graph.view, task.graph.features)
    scores = task.score(model, embeddings, pairs).edges.astype(np.float32)
    return LinkRows(ids[0][share], ids[1][share], relations[share], scores)


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
) -> LinkRows:
    """Return the targets with the largest scores for each source of this rank's share.

    Sources come in the order of the request, the targets of each from best to worst. A source
    is never its own target. Targets are of the node types that edges of the relation lead to from
    the source's type; where the relation has no edge, of any.

    Parameters
    ----------
    source_ids
        Original ids (m,) of sources, equal on all ranks; None: all nodes, by increasing id.
    count
        Targets of a source, where there are so many.
    with_known
        Whether targets of known edges count.
    """
    grid, graph = task.grid, task.graph
    row_map, ids = graph.row_map, graph.products.node_ids
    if source_ids is None:
        rows = np.arange(row_map.start, row_map.stop, dtype=np.int64)
        (rows,) = in_order(grid.layer, ids, rows)
    else:
        rows = find_rows(task, source_ids)[_share(grid, len(source_ids))]
    queries = Queries(rows, np.full(len(rows), relation, np.int64))
    known_targets = None if with_known else KnownTargets.of(grid, row_map, task.links, queries)
    types, joined = task.links.types, task.links.joined_types(grid.layer, relation)
    embeddings = model.embed(graph.view, graph.features)
    best = torch.full((len(rows), count), -torch.inf, dtype=embeddings.dtype)
    top_targets = torch.full((len(rows), count), -1, dtype=torch.int64)
    for block in score_all(grid, row_map, embeddings, model.scorer, queries):
        some, scores = block.queries, block.scores
        block.set_aside(rows[some])
        if types is not None and joined is not None:
            block.keep(joined[types[rows[some]]][:, types[block.rows]])
        if known_targets is not None:
            scores[known_targets.between(some, block.first, scores.shape[1])] = -np.inf
        both = torch.cat([best[some], torch.from_numpy(scores)], dim=1)
        best[some], best_columns = both.topk(count, dim=1)
        numbers = torch.arange(block.first, block.first + scores.shape[1])
        candidates = torch.cat([top_targets[some], numbers.expand(len(scores), -1)], dim=1)
        top_targets[some] = candidates.gather(1, best_columns)
    exists = (best > -torch.inf).numpy()
    sources = np.repeat(rows, exists.sum(axis=1))
    from_ids = rows_of(grid.layer, row_map, sources, ids)
    to_ids = rows_of(grid.layer, row_map, top_targets.numpy()[exists], ids)
    relations = np.full(len(sources), relation, np.int64)
    return LinkRows(from_ids, to_ids, relations, best.numpy()[exists].astype(np.float32))


def _share(grid: ProcessGrid, count: int) -> slice:
    """Return which of some rows, of which all ranks know, are this rank's."""
    bounds = np.arange(grid.num_blocks + 1) * count // grid.num_blocks
    return slice(int(bounds[grid.block]), int(bounds[grid.block + 1]))
