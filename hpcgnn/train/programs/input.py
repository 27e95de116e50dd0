"""Make the supergraphs of a rank's steps: packed graphs that are ready for propagation."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, ClassVar

import numpy as np
import torch
from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.banded import Supergraph, Window, first_fit_decreasing, lay_out, pack_lanes
from hpcgnn.graph.context import Context
from hpcgnn.graph.local_graph import LocalRows
from hpcgnn.nn import Propagator, PropagatorName, make_propagator
from hpcgnn.sampling import Prefetch
from hpcgnn.spmd import collective
from hpcgnn.storage import InstanceBatch, InstanceSplit, InstanceStore
from hpcgnn.support import NOTHING, Reasons
from hpcgnn.train.sources.source import Ready, Source, numbered
from hpcgnn.typing import GlobalIndices

_EVALUATION_WINDOW = 512
_NODE_BITS = 32


@dataclass(frozen=True, eq=False)
class Prepared:
    """A supergraph and its propagator.

    `numbers` (g,) int64 are the store's numbers of its graphs; `num_supernode_edges` counts the
    edges held in dense rows and columns beside the band.
    """

    graph: Supergraph
    propagator: Propagator
    numbers: GlobalIndices
    num_supernode_edges: int


@dataclass(frozen=True, eq=False)
class ProgramStep:
    """A rank's supergraphs of a step, and the number of graphs in the step over all ranks."""

    own_graphs: tuple[Prepared, ...]
    num_graphs: int


class ProgramInput:
    """Reads graphs, packs them, and builds their propagators.

    `judged` is the store to evaluate: the same one, or one with the same types and buckets.
    Supergraph s of a step belongs to rank ``s % size``, and so does window s of an evaluation.
    """

    def __init__(
        self,
        store: InstanceStore,
        judged: InstanceStore,
        context: Context,
    ) -> None:
        self._store, self._judged, self.context = store, judged, context
        self._config = config = context.config.programs
        self._rank, self._num_ranks = context.grid.rank, context.grid.size
        self._num_forward = len(store.header.edge_names)
        low, high = store.split_range(InstanceSplit.TRAIN)
        numbers = np.arange(low, high)
        if config.filter:
            numbers = numbers[store.graphs["bandwidth"][numbers] < config.block]
        self.train_graphs: GlobalIndices = numbers

    def on_device(self, prepared: Prepared) -> Prepared:
        """Return a supergraph whose propagator is on the device of the model."""
        device = self.context.device
        if not device.is_gpu:
            return prepared
        propagator = prepared.propagator.on_gpu(device.torch_device, self._config.band_precision)
        return replace(prepared, propagator=propagator)

    def steps(self, seed: int, epoch: int) -> Iterator[ProgramStep]:
        """Yield the steps of an epoch, equally many on all ranks, in host memory."""
        config = self._config
        rng = np.random.default_rng([seed, epoch])
        graphs = self.train_graphs
        if 0 < config.epoch_graphs < len(graphs):
            graphs = np.sort(rng.choice(graphs, config.epoch_graphs, replace=False))
        sizes = self._store.graphs["num_nodes"][graphs]
        lanes = pack_lanes(sizes, config.nodes, config.supergraphs, config.window, rng)
        counts = [[len(numbers) for window in lane for numbers in window.bins] for lane in lanes]
        totals = [sum(row) for row in itertools.zip_longest(*counts, fillvalue=0)]
        own_lanes = [self._lane(graphs, lane) for lane in lanes[self._rank :: self._num_ranks]]
        for total in totals:
            step_parts = tuple(
                prepared for lane in own_lanes if (prepared := next(lane, None)) is not None
            )
            yield ProgramStep(step_parts, total)

    def evaluation(self, split: InstanceSplit, limit: int, *, block: int = 0) -> Iterator[Prepared]:
        """Yield this rank's supergraphs of the first `limit` graphs of a split, of all if it is 0.

        Messages pass along all edges, or only along those within blocks of size `block` if it is
        not 0. The store holds a split in random order, so its first graphs are a sample.
        """
        low, high = self._judged.split_range(split)
        high = min(high, low + limit) if limit else high
        firsts = range(low, high, _EVALUATION_WINDOW)[self._rank :: self._num_ranks]
        for first in firsts:
            numbers = np.arange(first, min(first + _EVALUATION_WINDOW, high))
            batch = self._judged.read_graphs(numbers)
            for graphs in first_fit_decreasing(batch.graphs["num_nodes"], self._config.nodes):
                yield self.on_device(self._prepare(batch, numbers, graphs, "sparse", block))

    def _lane(self, graphs: GlobalIndices, windows: list[Window]) -> Iterator[Prepared]:
        name: PropagatorName = self._config.propagator  # type: ignore[assignment]
        for window in windows:
            numbers = graphs[window.graphs]
            batch = self._store.read_graphs(numbers)
            for chosen in window.bins:
                yield self._prepare(batch, numbers, chosen, name, self._config.block)

    def _prepare(
        self,
        batch: InstanceBatch,
        numbers: GlobalIndices,
        graphs: GlobalIndices,
        name: PropagatorName,
        block: int,
    ) -> Prepared:
        graph_numbers, part, limit = numbers[graphs], batch.select(graphs), self._config.supernodes
        # Dropout masks are keyed by node, so that they do not depend on the packing.
        ids = graph_numbers << _NODE_BITS
        layout = lay_out(part, block, limit) if block and limit else None
        graph = Supergraph.build(
            part, self._num_forward, ids, layout, self_edges=self._config.self_edges
        )
        supernodes = graph.supernodes
        propagator = make_propagator(
            name,
            graph.edges,
            block=block,
            dtype=getattr(torch, self.context.config.train.dtype),
            trace=self.context.trace,
            supernodes=supernodes,
        )
        num_beside = 0 if supernodes is None else int(supernodes.touch(graph.edges).sum())
        return Prepared(graph, propagator, graph_numbers, num_beside)


class ProgramSource(Source):
    """Supergraphs that a thread reads and packs ahead."""

    lacks: ClassVar[Reasons] = NOTHING

    def __init__(self, context: Context, objective: Any, rows: LocalRows | None) -> None:
        self._context: Context = context
        self._input: ProgramInput = objective.input

    @collective
    @override
    def steps(self, seed: int, epoch: int) -> Iterator[tuple[Ready, DropoutKey]]:
        items, context = self._input.steps(seed, epoch), self._context
        depth = context.config.programs.prefetch
        with Prefetch(next, repeat(items), threads=1, depth=depth) as packed:
            ready = context.device.prepare_ahead(packed, self._on_device)
            yield from numbered(context.trace, ready, seed, epoch)

    def _on_device(self, step: ProgramStep) -> ProgramStep:
        return replace(
            step, own_graphs=tuple(self._input.on_device(prepared) for prepared in step.own_graphs)
        )
