"""Objectives in a plan: what they read from a whole graph, and their traffic beside products."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from hpcgnn.autograd import GraphMembers
from hpcgnn.comm import RowMap, RowRequest
from hpcgnn.config.config import Config
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.config.multi_task import width_of, with_one_width
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.label_inputs import training_mask
from hpcgnn.graph.labels import Labelled, owners_of_graphs
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.plan.counted_messages import WantedRows
from hpcgnn.plan.traffic import PatternKey
from hpcgnn.sparse import HiddenEdges
from hpcgnn.spmd import collective
from hpcgnn.storage import NodeBlock, Split
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.edges.labelled import EdgeTargets
from hpcgnn.train.edges.objective import EdgeObjective
from hpcgnn.train.edges.predicted import PredictedEdges, encoder_facts, read_predicted
from hpcgnn.train.fields.dynamics import unit_scales
from hpcgnn.train.fields.frames import Columns
from hpcgnn.train.fields.measure_scales import measure
from hpcgnn.train.fields.objective import FieldObjective, field_facts
from hpcgnn.train.fields.samples import Series
from hpcgnn.train.fields.windows import PARTS, Windows
from hpcgnn.train.links.edges import SHARES, LinkEdges, Links, deal_links
from hpcgnn.train.links.objective import LinkObjective, link_facts
from hpcgnn.train.links.pairs import DrawnPairs, Pairs, Tested
from hpcgnn.train.objectives.multi_task import MultiTaskObjective, train_together
from hpcgnn.train.objectives.nodes import GraphsObjective
from hpcgnn.train.objectives.objective import GraphObjective, Objective
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Mask, Offsets

GRAPHS: PatternKey = (None, "graphs")
"""The key of the pieces of graphs, which the owners of graphs fetch."""


def pair_key(share: str) -> PatternKey:
    """Return the key of the rows that the pairs of a share of the edges need."""
    return (None, f"pairs.{share}")


Requests = Mapping[PatternKey, RowRequest]


@dataclass(frozen=True, eq=False)
class PlannedObjective:
    """A rank's part of an objective; this base class needs only the nodes that the rank owns."""

    objective_type: Any

    def objective(self, graph: LocalGraph, config: Config, requests: Requests) -> GraphObjective:
        """Return the objective of a rehearsed rank, whose requests are counted. Collective."""
        return self.objective_type(graph, config)

    def repeats(self, config: Config) -> Sequence[int] | None:
        """Return how often each rehearsed step occurs in an epoch; None: once."""
        return None

    def groups(self, config: Config) -> Sequence[int]:
        """Return for each group of ranks the first group with the same exchanges."""
        return [0] * config.exchange.groups

    @property
    def judgements(self) -> tuple[int, int]:
        """The number of equal parts of an evaluation, and how many of them are rehearsed."""
        return 1, 1


@dataclass(frozen=True, eq=False)
class ReadRows:
    """A whole graph, without its edges, as one process has read it."""

    stored: StoredRows
    nodes: NodeBlock
    labelled: Labelled


class Predictions:
    """The objective of a whole graph; this base class predicts nodes, without further traffic.

    `hidden` are edges that are left out when the graph is read, if any. `trains` (n,) masks the
    nodes for which a rank has something to train on. `cuts_rows` tells that the loss reads only
    these rows, so that others may be left out.
    """

    hidden: HiddenEdges | None = None
    cuts_rows = True
    trains: Mask
    _objective: Any

    def __init__(self, objective: type[Objective], read: ReadRows) -> None:
        labelled, self._objective = read.labelled, objective
        assert labelled.labels is not None
        assert labelled.split is not None
        self.trains = training_mask(labelled.labels, labelled.split)

    def facts(self, facts: GraphFacts, config: Config) -> GraphFacts:
        """Return the facts about the graph as the objective changes them."""
        return facts

    def trained(self, starts: Offsets) -> Array:
        """Return (blocks,) int64 the number of nodes, graphs or edges that each rank trains on."""
        counts = np.add.reduceat(np.append(self.trains, False), starts[:-1], dtype=np.int64)
        return np.where(np.diff(starts) > 0, counts, 0)

    def requested(self, starts: Offsets) -> Mapping[PatternKey, WantedRows]:
        """Return the rows that ranks fetch beside the products; `starts` are ranks' first rows."""
        return {}

    def copies(self, exchange: ExchangeConfig) -> set[int]:
        """Return the numbers of copies of the graph that are computed together."""
        return set()

    def share(self, starts: Offsets, block: int) -> PlannedObjective:
        """Return the part of the rank of a block row."""
        return PlannedObjective(self._objective)


@dataclass(frozen=True, eq=False)
class PredictedGraphs(PlannedObjective):
    """A rank's part of predictions for graphs.

    `node_graph` (num_local,) int64 are the graphs of the rank's nodes, `trained` (num_local,) masks
    nodes of training graphs, and `fetched` (R,) int64 are the graphs of the pieces that it fetches.
    `labels` and `split` are those of the graphs that it owns, in ascending order.
    """

    node_graph: GlobalIndices
    trained: Mask
    fetched: GlobalIndices
    labels: Array
    split: Array

    @override
    def objective(self, graph: LocalGraph, config: Config, requests: Requests) -> GraphObjective:
        graphs, pieces = np.unique(self.node_graph, return_inverse=True)
        ids, positions = np.unique(self.fetched, return_inverse=True)
        members = _RehearsedMembers(
            pieces=torch.from_numpy(pieces.astype(np.int64)),
            num_pieces=len(graphs),
            graphs=torch.from_numpy(positions.astype(np.int64)),
            ids=ids,
            request=requests[GRAPHS],
            trace=TraceRecorder.off(),
            trained=self.trained,
        )
        of_graphs = replace(
            graph,
            view=graph.view.of_graphs(members),
            labels=self.labels,
            split=self.split,
            graph_ids=members.ids,
            node_graph=self.node_graph,
        )
        return super().objective(of_graphs, config, requests)


@dataclass(frozen=True, eq=False)
class _RehearsedMembers(GraphMembers):
    """Members whose owners send nodes only whether they are `trained`."""

    trained: Mask

    @override
    def at_nodes(self, values: Array) -> Array:
        return self.trained


class WholeGraphs(Predictions):
    """Predictions for graphs, of all ranks."""

    def __init__(self, objective: type[Objective], read: ReadRows) -> None:
        super().__init__(objective, read)
        assert read.nodes.graph is not None
        self._node_graph, self._labelled = read.nodes.graph, read.labelled
        self.trains = self.trains[np.searchsorted(self._labelled.ids, self._node_graph)]

    def _pieces(self, starts: Offsets) -> tuple[Offsets, GlobalIndices, LocalIndices]:
        """Return each rank's first piece, the graph of each piece, and the rank that owns it."""
        parts = [
            np.unique(self._node_graph[start:stop]) for start, stop in pairwise(starts.tolist())
        ]
        begins = np.append(0, np.cumsum([len(part) for part in parts])).astype(np.int64)
        graphs = np.concatenate(parts)
        return begins, graphs, self._owners(graphs, len(parts))

    def _owners(self, graphs: GlobalIndices, blocks: int) -> LocalIndices:
        return owners_of_graphs(graphs, int(self._labelled.ids[-1]) + 1, blocks)

    @override
    def trained(self, starts: Offsets) -> Array:
        # The owner of a graph has its loss, whichever ranks own its nodes.
        graphs, blocks = np.unique(self._node_graph[self.trains]), len(starts) - 1
        return np.bincount(self._owners(graphs, blocks), minlength=blocks)

    @override
    def requested(self, starts: Offsets) -> Mapping[PatternKey, WantedRows]:
        begins, _, owners = self._pieces(starts)
        rows = [np.flatnonzero(owners == block) for block in range(len(starts) - 1)]
        return {GRAPHS: WantedRows(begins, rows)}

    @override
    def share(self, starts: Offsets, block: int) -> PredictedGraphs:
        rows = slice(starts[block], starts[block + 1])
        _, graphs, owners = self._pieces(starts)
        graphs = graphs[owners == block]
        labels, split = self._labelled.labels, self._labelled.split
        assert labels is not None
        assert split is not None
        owned = np.searchsorted(self._labelled.ids, np.unique(graphs))
        of_nodes = self._node_graph[rows], self.trains[rows]
        return PredictedGraphs(self._objective, *of_nodes, graphs, labels[owned], split[owned])


@dataclass(frozen=True, eq=False)
class PredictedLinks(PlannedObjective):
    """A rank's part of link prediction.

    `links` are the edges with targets on the rank. `needed` are the pairs of each of `SHARES`, for
    training those of the first epoch; `judged` are the edges of the tested shares that the rank
    evaluates.
    """

    links: Links
    needed: Mapping[str, Pairs]
    judged: Mapping[str, LinkEdges]

    @override
    def objective(self, graph: LocalGraph, config: Config, requests: Requests) -> GraphObjective:
        pairs = {
            share: replace(needed, request=requests[pair_key(share)])
            for share, needed in self.needed.items()
        }
        tested = {name: Tested(edges, pairs[name], None) for name, edges in self.judged.items()}
        return self.objective_type(graph, config, self.links, _FirstPairs(pairs["train"], tested))


@dataclass(frozen=True, eq=False)
class _FirstPairs:
    """The pairs of the first epoch for every epoch; see `hpcgnn.train.links.pairs.PairSource`."""

    first: Pairs
    tested: Mapping[str, Tested]

    def trained(self, seed: int, epoch: int) -> Pairs:
        """Return the first pairs."""
        return self.first


class WholePairs(Predictions):
    """Link prediction of all ranks: pairs of the first epoch, drawn by one process."""

    cuts_rows = False

    @collective
    def __init__(self, objective: type[Objective], read: ReadRows) -> None:
        context, row_map = read.stored.context, read.stored.row_map
        grid, config = context.grid, context.config
        self._objective = objective
        self._links, self.hidden = deal_links(read.stored)
        drawn = DrawnPairs(grid, row_map, read.nodes.original_id, self._links, config.links)
        trained = self._links.shares["train"]
        self._pairs = {"train": (trained, drawn.wrong(config.train.seeds[0], 0))}
        for name, tested in drawn.tested.items():
            needed = tested.pairs
            self._pairs[name] = tested.edges, needed.rows[needed.wrong]
        self.trains = np.zeros(row_map.num_rows, np.bool_)
        self.trains[trained.targets] = True

    @override
    def facts(self, facts: GraphFacts, config: Config) -> GraphFacts:
        return link_facts(facts, config)

    @override
    def requested(self, starts: Offsets) -> Mapping[PatternKey, WantedRows]:
        blocks = range(len(starts) - 1)
        return {
            pair_key(share): WantedRows(
                starts, [self._needed(share, starts, b).rows for b in blocks]
            )
            for share in SHARES
        }

    @override
    def share(self, starts: Offsets, block: int) -> PredictedLinks:
        links, row_map = self._links, RowMap(starts, block)

        def own(edges: LinkEdges) -> LinkEdges:
            return edges[row_map.is_local(edges.targets)]

        shares = {name: own(edges) for name, edges in links.shares.items()}
        return PredictedLinks(
            self._objective,
            Links(links.names, own(links.every), shares, links.both_ways, links.types),
            {share: self._needed(share, starts, block) for share in SHARES},
            {share: self._edges(share, starts, block)[0] for share in SHARES[1:]},
        )

    def _needed(self, share: str, starts: Offsets, block: int) -> Pairs:
        return Pairs.of(*self._edges(share, starts, block), int(starts[-1]))

    def _edges(self, share: str, starts: Offsets, block: int) -> tuple[LinkEdges, GlobalIndices]:
        """Return the edges that the rank of a block scores, and their negative ends."""
        edges, wrong = self._pairs[share]
        if share == "train":
            ranks = RowMap(starts, 0).owner(edges.targets)
        else:
            ranks = edges.judges(len(starts) - 1)
        return edges[ranks == block], wrong[ranks == block]


@dataclass(frozen=True, eq=False)
class RankEdges(PlannedObjective):
    """A rank's part of predictions for edges; `edges` have not requested their rows yet."""

    edges: PredictedEdges

    @override
    def objective(self, graph: LocalGraph, config: Config, requests: Requests) -> GraphObjective:
        def requesting(share: str, needed: EdgeTargets) -> EdgeTargets:
            return replace(needed, pairs=replace(needed.pairs, request=requests[pair_key(share)]))

        edges = self.edges
        trained, judged = requesting("train", edges.trained), requesting("judged", edges.judged)
        return self.objective_type(graph, config, replace(edges, trained=trained, judged=judged))


class WholeEdges(Predictions):
    """Predictions for edges, of all ranks, whose labelled edges one process has."""

    cuts_rows = False

    @collective
    def __init__(self, objective: type[Objective], read: ReadRows) -> None:
        self._objective, self._predicted = objective, read_predicted(read.stored)
        edges = self._predicted.edges
        self.trains = np.zeros(read.stored.row_map.num_rows, np.bool_)
        self.trains[edges.edges.targets[edges.split == Split.TRAIN]] = True

    @override
    def facts(self, facts: GraphFacts, config: Config) -> GraphFacts:
        return encoder_facts(facts, config)

    @override
    def requested(self, starts: Offsets) -> Mapping[PatternKey, WantedRows]:
        ranks = [self.share(starts, block).edges for block in range(len(starts) - 1)]
        return {
            pair_key("train"): WantedRows(starts, [rank.trained.pairs.rows for rank in ranks]),
            pair_key("judged"): WantedRows(starts, [rank.judged.pairs.rows for rank in ranks]),
        }

    @override
    def share(self, starts: Offsets, block: int) -> RankEdges:
        whole, num_rows = self._predicted, int(starts[-1])
        edges = whole.edges[RowMap(starts, block).is_local(whole.edges.edges.targets)]
        trained = edges[edges.split == Split.TRAIN].needing(num_rows)
        judged = edges.needing(num_rows)
        return RankEdges(
            self._objective, replace(whole, edges=edges, trained=trained, judged=judged)
        )


@dataclass(frozen=True, eq=False)
class PredictedFields(PlannedObjective):
    """A rank's part of predictions for fields; it reads the samples of a few steps only."""

    windows: Windows
    evaluated: int

    def _samples(self, config: Config) -> tuple[int, int, int]:
        """Return the number of whole batches, the samples left, and the batches to rehearse."""
        whole, rest = divmod(len(self.windows.anchors("train")), config.fields.batch)
        return whole, rest, min(whole, _WHOLE_BATCHES)

    @override
    def objective(self, graph: LocalGraph, config: Config, requests: Requests) -> GraphObjective:
        _, rest, rehearsed = self._samples(config)
        series = Series.open(Context(graph.grid, config), graph)
        samples = {"train": rehearsed * config.fields.batch + rest, "valid": 1}
        series = replace(series, windows=self.windows.first(samples))
        # Noise is drawn by the ids of edges' ends, which other ranks would send; leave it out, as
        # it moves no rows.
        noise = 0.0 if config.fields.edge_names else config.fields.noise
        few = replace(config, fields=replace(config.fields, evaluated=1, noise=noise))
        # Scale the fields, as numbers in arbitrary units could overflow.
        scales = measure(graph.grid, series, config.fields.predict)
        return self.objective_type(graph, few, series, scales)

    @override
    def repeats(self, config: Config) -> Sequence[int]:
        whole, rest, rehearsed = self._samples(config)
        counts = [1] * rehearsed
        if rehearsed:
            counts[-1] += whole - rehearsed
        return [*counts, *([1] if rest else [])]

    @override
    def groups(self, config: Config) -> Sequence[int]:
        _, rest, _ = self._samples(config)
        groups, samples = config.exchange.groups, list[tuple[object, ...]]()
        for group in range(groups):
            numbers = [range(group, size, groups) for size in (config.fields.batch, rest)]
            # A group with only the first sample needs no copies, just the graph, which all have.
            samples.append(tuple((len(steps), steps == range(1)) for steps in numbers))
        return [samples.index(sample) for sample in samples]

    @property
    @override
    def judgements(self) -> tuple[int, int]:
        judged = [len(self.windows.judged(part, self.evaluated)) for part in PARTS]
        return sum(judged), 1 + (judged[1] > 0)


def copies_of_groups(num_samples: int, batch: int, groups: int) -> set[int]:
    """Return the numbers of copies of a graph that groups of ranks join for samples of a batch.

    A group that has only the first sample needs no copies.
    """
    whole, rest = divmod(num_samples, batch)
    sizes = ([batch] if whole else []) + [rest]
    numbers = [range(group, size, groups) for size in sizes for group in range(groups)]
    return {len(samples) for samples in numbers if samples not in (range(0), range(1))}


class WholeFields(Predictions):
    """Predictions for fields, of all ranks; every sample has all nodes."""

    cuts_rows = False

    def __init__(self, objective: type[Objective], read: ReadRows) -> None:
        store, config = read.stored.store, read.stored.context.config
        self._objective, self._options = objective, config.fields
        self._columns = Columns.of(config, store)
        self._windows = Windows.of(self._options, store.trajectory_starts)
        self.trains = np.ones(read.stored.row_map.num_rows, np.bool_)

    @override
    def facts(self, facts: GraphFacts, config: Config) -> GraphFacts:
        return field_facts(facts, self._columns, self._windows, unit_scales(self._columns))

    @override
    def copies(self, exchange: ExchangeConfig) -> set[int]:
        num_samples = len(self._windows.anchors("train"))
        return copies_of_groups(num_samples, self._options.batch, exchange.groups)

    @override
    def share(self, starts: Offsets, block: int) -> PredictedFields:
        return PredictedFields(self._objective, self._windows, self._options.evaluated)


@dataclass(frozen=True, eq=False)
class PredictedTogether(PlannedObjective):
    """A rank's part of several objectives, by their names; `facts` are those that each reads.

    `objective_type` holds the objectives' types; the rehearsing process joins them.
    """

    parts: Mapping[str, PlannedObjective]
    facts: Mapping[str, GraphFacts]

    @override
    def objective(self, graph: LocalGraph, config: Config, requests: Requests) -> GraphObjective:
        parts: dict[str, Any] = {}
        config = with_one_width(config)
        for name, part in self.parts.items():
            own = {key: requests[_joined_key(name, key)] for key in _keys_of(name, requests)}
            parts[name] = part.objective(replace(graph, facts=self.facts[name]), config, own)
        return train_together(self.objective_type)(graph, config, parts)


def _joined_key(name: str, key: PatternKey) -> PatternKey:
    return key[0], f"{name}.{key[1]}"


def _keys_of(name: str, requests: Requests) -> list[PatternKey]:
    """Return the keys of one of several objectives, without its name."""
    keys = ((number, kind.partition(".")) for number, kind in requests)
    return [(number, rest) for number, (first, _, rest) in keys if first == name]


class WholeTogether(Predictions):
    """Several objectives, each with its own `Predictions`."""

    cuts_rows = False

    @collective
    def __init__(self, objective: type[MultiTaskObjective], read: ReadRows) -> None:
        self._objective = objective
        self._parts = {
            name: find_predictions(part)(part, read) for name, part in objective.kinds.items()
        }
        parts = self._parts.values()
        self.hidden = next((part.hidden for part in parts if part.hidden is not None), None)
        self.trains = np.logical_or.reduce([part.trains for part in parts])

    @override
    def facts(self, facts: GraphFacts, config: Config) -> GraphFacts:
        config = with_one_width(config)
        self._facts = {name: part.facts(facts, config) for name, part in self._parts.items()}
        return facts.with_embeddings(width_of(config))

    @override
    def requested(self, starts: Offsets) -> Mapping[PatternKey, WantedRows]:
        return {
            _joined_key(name, key): rows
            for name, part in self._parts.items()
            for key, rows in part.requested(starts).items()
        }

    @override
    def share(self, starts: Offsets, block: int) -> PredictedTogether:
        shares = {name: part.share(starts, block) for name, part in self._parts.items()}
        return PredictedTogether(dict(self._objective.kinds), shares, self._facts)


_WHOLE_BATCHES = 2
"""Number of whole batches of an epoch that are rehearsed, as all are alike."""

PREDICTIONS: Mapping[type[Objective], type[Predictions]] = {
    LinkObjective: WholePairs,
    EdgeObjective: WholeEdges,
    GraphsObjective: WholeGraphs,
    FieldObjective: WholeFields,
    MultiTaskObjective: WholeTogether,
}
"""The classes that count the traffic of objectives with more than the model's products."""


def find_predictions(objective: type[Objective]) -> type[Predictions]:
    """Return the `Predictions` of an objective or its nearest base class."""
    bases = (PREDICTIONS[base] for base in objective.__mro__ if base in PREDICTIONS)
    return next(bases, Predictions)
