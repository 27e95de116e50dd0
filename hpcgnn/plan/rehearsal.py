"""Rehearse the epochs of one rank to measure memory and computing, and to record its exchanges."""

import itertools
import mmap
import pickle
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import Communicator, ProcessGrid, RowMap
from hpcgnn.config.config import Config
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context, computing_as
from hpcgnn.graph.inputs import Scales, make_inputs
from hpcgnn.graph.local_graph import LocalGraph, node_traits
from hpcgnn.graph.operators import Adjacency, ExactOperators, Matrices, Operators, Products
from hpcgnn.kernels import loading, reused_memory
from hpcgnn.operator import Aggregation, AggregationOperator, RankSums
from hpcgnn.plan.clock import computing_s, waited_for_core
from hpcgnn.plan.counted_messages import CountedExchange, CountedSum, Log, SilentTransport, at_once
from hpcgnn.plan.forks import FORK, imported, resident, status_bytes
from hpcgnn.plan.planned_graph import OwnEdges, Share
from hpcgnn.plan.simulated_peers import KnownPeers
from hpcgnn.plan.traffic import (
    ALL,
    AllReduction,
    Movement,
    Moves,
    PatternKey,
    copies_key,
    exact_key,
    in_turn,
)
from hpcgnn.sparse import (
    MAIN,
    DistCSR,
    EdgeEntries,
    EdgeFeatures,
    Factors,
    IntegerCSR,
    LocalCSR,
    LocalMatrix,
    copies_of,
)
from hpcgnn.spmd import collective
from hpcgnn.spmm import Carrier, Channel, ExactProduct, Exchange, Ghosts, find_method
from hpcgnn.storage.atomic import scratch_folder
from hpcgnn.support import NOTHING, Reasons
from hpcgnn.trace import Span, TraceRecorder
from hpcgnn.train.process import prepare_process
from hpcgnn.train.sampled.source import prepare_products
from hpcgnn.train.seed_run import SeedRun
from hpcgnn.train.sources.source import Ready, Source
from hpcgnn.train.tasks import Task, find_pair
from hpcgnn.typing import Array, GlobalIndices, Mask


@dataclass(frozen=True)
class Rehearsal:
    """The needs of one rank.

    `idle_bytes` is the resident set of an idle process that has imported the training code,
    `peak_bytes` the peak, and `ghost_bytes` the most bytes of other ranks' rows in memory at a
    time. `epoch_s` (median) and `evaluate_s` are seconds of computing and copying in a training
    epoch and in an evaluation, without those in which other processes had the core. `once`, `epoch`
    and `evaluation` are the exchanges and sums before the first epoch or only in it, in a later
    epoch, and in one evaluation; for the rank at this position in each group of ranks, the busiest
    group first.
    """

    idle_bytes: int
    peak_bytes: int
    ghost_bytes: int
    epoch_s: float
    evaluate_s: float
    once: tuple[Moves, ...]
    epoch: tuple[Moves, ...]
    evaluation: tuple[Moves, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class RehearsedOperators(Operators):
    """Operators of a share.

    `share` has the answers of other ranks; `log` is called with every exchange.
    """

    share: Share
    log: Log

    @override
    def exchange(self, pattern: DistCSR, node_ids: GlobalIndices) -> Exchange:
        key, method = self._key_of(pattern), self.config.method
        channel = self.channel(KnownPeers(self.grid, self.share.patterns[key]), node_ids)
        make_ghosts = partial(self._counted, method, key)
        make_sum = partial(CountedSum, self.log, key)
        return Exchange(channel, pattern, find_method(method).cover, make_ghosts, make_sum)

    def _counted(self, method: str, key: PatternKey, channel: Channel, ghosts: Ghosts) -> Any:
        # This is the exchange of training; only the messages below it are simulated.
        exchange = find_method(method).make_ghosts(channel, ghosts)
        return CountedExchange(exchange, self.log, key, channel, pushed=ghosts.pushed)

    def _key_of(self, pattern: DistCSR) -> PatternKey:
        """Return the key of a pattern of the share, or of a scaling of one.

        They share index arrays, so compare identity: different patterns may have equal content.
        """
        patterns = self.share.patterns.items()
        return next(key for key, known in patterns if known.block.ghosts is pattern.ghosts)

    @override
    def sums(self) -> RankSums:
        def add_up(share: Array) -> None:
            if self.grid.num_blocks > 1:
                self.log(AllReduction(share.nbytes, at_once()))

        return add_up


class RehearsedExact(RehearsedOperators, ExactOperators):
    """Operators of a share in reproducible runs."""

    @collective
    @override
    def _moving(self, method: str, channel: Channel, pattern: DistCSR) -> Exchange:
        key = exact_key(self._key_of(pattern), method, pattern.num_relations)
        channel = replace(channel, peers=KnownPeers(channel.grid, self.share.patterns[key]))
        make_ghosts = partial(self._counted, method, key)
        return Exchange(channel, pattern, find_method(method).cover, make_ghosts)

    @override
    def _most(self, pattern: DistCSR) -> float | None:
        return self.share.largest[self._key_of(pattern)][1]

    @collective
    @override
    def _product(self, scaled: DistCSR, exchange: Exchange) -> AggregationOperator:
        assert isinstance(scaled, IntegerCSR)
        largest = self.share.largest.get(self._key_of(scaled))
        return ExactProduct(scaled, exchange, largest)


class RehearsedEdges(EdgeFeatures):
    """Features of a share's edges; edges of other ranks have zeros."""

    @classmethod
    def of(cls, comm: Communicator, share: Share) -> "RehearsedEdges | None":
        """Return the features that attention reads; None if it reads none."""
        table = share.edges.table
        if table is None or not all(a.attends for a in share.aggregations):
            return None
        count = np.array([0, len(table.features)], np.int64)
        moving = bool(share.config.fields.read_of_edges)
        entries = EdgeEntries.without_edges(len(table.features)) if moving else None
        return cls(comm, RowMap(count, 0), table.features, entries)

    @collective
    @override
    def others(self, blocks: Sequence[LocalMatrix]) -> tuple[LocalCSR, ...]:
        blocks_of_others = []
        for block in blocks:
            assert isinstance(block, LocalCSR)
            zeros = np.zeros((block.nnz, self.features.shape[1]), self.features.dtype)
            blocks_of_others.append(replace(block, values=None, features=zeros))
        return tuple(blocks_of_others)


@dataclass(frozen=True, eq=False)
class RehearsedAdjacency(Adjacency):
    """The adjacency for products of several copies of a share."""

    make: RehearsedOperators

    @collective
    @override
    def side_by_side(self, numbers: Sequence[int]) -> Products:
        share, key = self.make.share, copies_key(len(numbers))
        of_pattern, table = share.patterns[key], share.edges.table
        if table is not None:
            # Messages need numbered entries, which the survey of copies lacks.
            of_pattern = replace(of_pattern, block=copies_of(self.matrix, len(numbers), table))
            table = table.copies(len(numbers))
        wide = replace(share, edges=OwnEdges({key: of_pattern, ALL: of_pattern}, table))
        edges = RehearsedEdges.of(self.make.grid.layer, wide)
        make = replace(self.make, share=wide, table=table, edges=edges)
        return Products(make, ShareMatrices(wide), *self.copied_nodes(numbers))


class ShareMatrices(Matrices):
    """The matrices of a share, with values if training has them; see `Matrices`."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._whole = {kind: self._scaled(ALL, kind) for kind in share.aggregations}

    @property
    @override
    def whole(self) -> Mapping[Aggregation, DistCSR]:
        return self._whole

    @override
    def active_sets(self, targets: Mask, depth: int, last: int) -> Sequence[Mask]:
        sets = self._share.sets
        assert len(sets) == depth + 1
        assert np.array_equal(targets, sets[-1])
        return sets

    @override
    def restricted(self, kind: Aggregation, inputs: Mask, outputs: Mask) -> DistCSR | None:
        sets = self._share.sets
        index = next(i for i in range(len(sets) - 1) if sets[i] is inputs)
        assert sets[index + 1] is outputs
        is_planned = (index, kind.direction) in self._share.patterns
        return self._scaled((index, kind.direction), kind) if is_planned else None

    def _scaled(self, key: PatternKey, kind: Aggregation) -> DistCSR:
        block = self._share.patterns[key].block
        if self._share.edges.table is not None:
            return block
        if kind.attends:
            return block.with_values(None, None)
        parts = block.diagonal, block.remote
        # Use zeros, as for arriving rows: without normalisation, numbers could grow by layer.
        if self._share.config.train.reproducible:
            zeros = np.zeros(block.num_relations * block.row_map.num_local)
            factors = Factors(zeros, zeros) if kind.is_scaled else Factors()
            weights = (part.values if part.values is None else np.zeros(part.nnz) for part in parts)
            return IntegerCSR.of(block.with_values(*weights), factors)
        of_ones = all(part.values is None for part in parts)
        if of_ones and not kind.is_scaled:
            return block
        config, (for_row, for_column) = self._share.config.train, kind.powers or (0, 0)
        if of_ones:
            sizes = block.shape[0], block.shape[1], len(block.ghosts)
            powers = for_row, for_column, for_column
            scaled = block.with_factors(
                *(
                    np.zeros(size, config.dtype) if power else None
                    for size, power in zip(sizes, powers, strict=True)
                )
            )
        else:
            scaled = block.with_values(*(np.zeros(part.nnz, config.dtype) for part in parts))
        return replace(scaled, symmetric=block.symmetric and for_row == for_column)


_ENOUGH_S, _MOST_EPOCHS = 0.5, 20
"""Epochs are repeated until they take this long, up to so many, as disturbances are rare."""

_STILL = 1e-9
"""A learning rate that hardly changes weights and makes no number denormal."""


@collective
def rehearse(alone: ProcessGrid, share: Share, epochs: int) -> Rehearsal:
    """Train a share as its rank would; the present memory of this process counts as idle.

    Collective over `alone`, a grid of one rank.

    `epochs` is at least 2, since the first one also makes transposes and buffers.
    """
    idle_bytes = status_bytes("VmRSS")
    # Do not stop early, as only other ranks may have validation nodes, and do not learn: arriving
    # rows are zeros, from which weights could become infinite.
    whole_run = replace(share.config.train, patience=0, learning_rate=_STILL)
    training = replace(whole_run, epochs=epochs, evaluate_every=epochs)
    config = replace(share.config, train=training)
    moved: list[Movement | AllReduction] = []
    trace = HeardSums(moved.append)
    with (
        ProcessGrid(alone.world, position=share.position) as grid,
        computing_as(grid, config, trace),
        ExitStack() as stack,
    ):
        prepare_process(grid, config.run.threads)
        carrier = Carrier(grid, MAIN, SilentTransport(grid.block, moved.append))
        kind = RehearsedExact if config.train.reproducible else RehearsedOperators
        make = kind(
            grid,
            share.config.travel,
            trace,
            carrier,
            edges=RehearsedEdges.of(grid.layer, share),
            table=share.edges.table,
            share=share,
            log=moved.append,
        )
        nodes, ids, block = share.nodes, share.nodes.original_id, share.patterns[ALL].block
        # Keep the heap and buffers as training does, or each epoch would pay for their pages.
        with loading(lean=config.exchange.saves_memory):
            traits = node_traits(make.device, nodes, share.edges.means, config.train.precision)
            products = Products(make, ShareMatrices(share), ids, traits)
        moved.clear()
        # Preparation depends on the epochs of the run, not on those of the rehearsal.
        exchange = replace(config.exchange, prepare="before")
        prepared = replace(share.config, exchange=exchange, train=whole_run)
        dtype, aggregations = config.train.dtype, share.aggregations
        adjacency = RehearsedAdjacency(make, block, aggregations, dtype, ids, traits)
        graph = _local_graph(grid, share, products, adjacency)
        task, repeats = _task(alone, graph, prepared, share, moved.append)
        once = tuple(moved)
        stack.enter_context(reused_memory())
        run = SeedRun(task, config, config.train.seeds[0], TraceRecorder.off())
        seconds, movements = [], []
        for _ in range(epochs):
            steps = _epoch(run, task, repeats, moved)
            seconds.append(sum(step_s for _, step_s in steps))
            movements.append(in_turn(steps))
            began, before = computing_s(), waited_for_core()
            row = run.end_epoch(stop=False)[0]
        evaluate_s = max(row["evaluate_s"] - (waited_for_core() - before), 0)
        peak_bytes = status_bytes("VmHWM")
        before_more = tuple(moved)
        while sum(seconds) < _ENOUGH_S and len(seconds) < _MOST_EPOCHS:
            seconds.append(sum(step_s for _, step_s in _epoch(run, task, repeats, moved)))
        moved[:] = before_more
        parts, rehearsed = share.predicted.judgements
        of_part = _since(began, moved[: len(moved) // rehearsed])
        evaluation = in_turn([(of_part, evaluate_s / rehearsed)] * parts)
        groups = {0: (movements[0], movements[-1])}
        representatives = share.predicted.groups(config)
        for group in set(representatives) - {0}:
            # Record only its exchanges: the first group has most samples, so none needs more.
            grid.group = group
            run_of_group = SeedRun(task, config, config.train.seeds[0], TraceRecorder.off())
            first, later = (in_turn(_epoch(run_of_group, task, repeats, moved)) for _ in range(2))
            groups[group] = first, later
        # The last epoch includes the evaluation, of which equal parts may have been left out. The
        # first epoch makes transposes and buffers and is not counted.
        return Rehearsal(
            idle_bytes=idle_bytes,
            peak_bytes=peak_bytes,
            ghost_bytes=grid.buffers.ghosts.peak,
            epoch_s=statistics.median(seconds[1:]),
            evaluate_s=evaluate_s * parts / rehearsed,
            once=tuple((*once, *_left(*groups[group])) for group in representatives),
            epoch=tuple(groups[group][1] for group in representatives),
            evaluation=(evaluation,) * len(representatives),
        )


@collective
def _step(run: SeedRun, step: Callable[[Any], Any], moved: list[Any]) -> tuple[Moves, float]:
    """Run a step, whose exchanges are logged in `moved`; return these and its seconds."""
    began = computing_s()
    run.step(step)
    if run.gradient_bytes:
        moved.append(AllReduction(run.gradient_bytes, at_once()))
    seconds, moves = computing_s() - began, _since(began, moved)
    moved.clear()
    return moves, seconds


@collective
def _epoch(
    run: SeedRun, task: Task[Any], repeats: Sequence[int] | None, moved: list[Any]
) -> list[tuple[Moves, float]]:
    """Rehearse an epoch and return its steps; a rehearsed step may be repeated for several."""
    moved.clear()
    run.begin_epoch()
    steps = [_step(run, step, moved) for step in task.steps(run.seed, run.epoch)]
    counts = [1] * len(steps) if repeats is None else repeats
    return [step for step, count in zip(steps, counts, strict=True) for _ in range(count)]


def _since(began_s: float, moves: Moves) -> Moves:
    return in_turn([((), -began_s), (moves, 0.0)])


def _left(first: Moves, later: Moves) -> Moves:
    """Return the moves that only the first epoch has, in which copies of a graph are made."""
    assert not Counter(later) - Counter(first), "a later epoch has exchanges that the first lacks"
    return tuple((Counter(first) - Counter(later)).elements())


@collective
def _task(
    alone: ProcessGrid, graph: LocalGraph, config: Config, share: Share, log: Log
) -> tuple[Task[Any], Sequence[int] | None]:
    """Return the task of a rank, and how often each of its steps occurs in an epoch; None: once."""
    requests = {key: make(comm=graph.grid.layer, log=log) for key, make in share.requests.items()}
    objective = share.predicted.objective(graph, config, requests)
    pair, context = find_pair(config.train.task), Context(graph.grid, config, graph.products.trace)
    kind: Any = pair.source_of(config)
    if not kind.needs_rows:
        return Task(objective, kind(context, objective, None)), share.predicted.repeats(config)
    # Steps are sampled from the whole graph, which every host has; this rank gets its shares.
    prepare_products(context, objective)
    exchange = replace(ExchangeConfig(), prepare="first_epoch")
    whole, rows = pair.objective.load(
        Context(alone, replace(config, exchange=exchange)), with_rows=True
    )
    drawn = kind(replace(context, config=replace(config, exchange=exchange)), whole, rows)
    count = drawn.num_steps(config.train.seeds[0], 0)
    few = min(count, _DRAWN_STEPS)
    repeats = [1] * few
    repeats[-1] += count - few
    return Task(objective, FirstSteps(drawn, few)), repeats


_DRAWN_STEPS = 4
"""Number of sampled steps of an epoch that are rehearsed."""


class FirstSteps(Source):
    """The first steps of each epoch of another source."""

    lacks: ClassVar[Reasons] = NOTHING

    def __init__(self, inner: Source, count: int) -> None:
        self._inner, self._count = inner, count

    @collective
    @override
    def steps(self, seed: int, epoch: int) -> Iterator[tuple[Ready, DropoutKey]]:
        return itertools.islice(self._inner.steps(seed, epoch), self._count)


_HEARD = ("reduce.statistics", "reduce.exact", "reduce.largest")


class HeardSums(TraceRecorder):
    """A trace that records nothing but logs sums and maxima over the block rows."""

    def __init__(self, log: Log) -> None:
        super().__init__(None, enabled=False)
        self._log = log

    @override
    def span(self, name: str, **details: Any) -> Span:
        if name in _HEARD and details["bytes"]:
            self._log(AllReduction(details["bytes"], at_once()))
        return super().span(name, **details)


def _local_graph(
    grid: ProcessGrid, share: Share, products: Products, adjacency: Adjacency
) -> LocalGraph:
    scales = Scales()
    features = make_inputs(grid, share.config, share.facts, share.nodes, scales)
    return LocalGraph(
        grid=grid,
        row_map=share.row_map,
        facts=share.facts,
        view=products.view,
        adjacency=adjacency,
        products=products,
        features=features,
        scales=scales,
        labels=share.nodes.labels,
        split=share.nodes.split,
        smoother=None,
        details={},
    )


def in_fresh_process(share: Share, epochs: int, beside: int = 1) -> Rehearsal:
    """Rehearse in a new process that has nothing but the share in memory.

    Every rehearsal needs its own process, because the peak of a process never falls. Raises
    `InputError` if the process was killed, for instance because memory ran out.

    `beside` processes rehearse the share at the same time, so that they share the bandwidth of
    memory as the ranks of a host do; seconds are their medians. Each needs the memory of a rank.
    """
    with scratch_folder() as folder:
        path = folder / "share"
        # Protocol 5 avoids a second copy of the arrays when reading, which would count as memory.
        with path.open("wb") as file:
            pickle.dump(share, file, protocol=5)
        try:
            # All processes begin together; each rehearses once.
            together = FORK.Barrier(beside)
            with ProcessPoolExecutor(beside, FORK, together.wait) as pool:
                futures = [pool.submit(_rehearse_file, path, epochs) for _ in range(beside)]
                rehearsals = [run.result() for run in futures]
        except BrokenProcessPool:
            alone = ", or without --beside" if beside > 1 else ""
            raise InputError(
                f"the rehearsal of block row {share.position.block} of {share.position.num_blocks} "
                "was killed, probably because memory ran out: plan more ranks, or on a host with "
                f"more memory{alone}"
            ) from None
    return replace(
        rehearsals[0],
        epoch_s=statistics.median(run.epoch_s for run in rehearsals),
        evaluate_s=statistics.median(run.evaluate_s for run in rehearsals),
    )


def _rehearse_file(path: Path, epochs: int) -> Rehearsal:
    # A rank has the pages of libraries that are read by imports. A fork starts without them, so
    # add its parent's, less those that it reads again.
    parent, began = imported(), status_bytes("VmRSS")
    absent = parent.resident & ~resident(parent.files)
    with path.open("rb") as file:
        share: Share = pickle.load(file)
    with ProcessGrid.of_this_process() as alone:
        rehearsal = rehearse(alone, share, epochs)
    twice = mmap.PAGESIZE * int(np.count_nonzero(absent & resident(parent.files)))
    peak_bytes = rehearsal.peak_bytes + parent.idle_bytes - began - twice
    return replace(rehearsal, idle_bytes=parent.idle_bytes, peak_bytes=peak_bytes)
