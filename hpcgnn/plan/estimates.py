"""Estimates of a configuration on chosen numbers of ranks, exchanges, schedules and grids."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from hpcgnn.comm import Network, Sent
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.choose_exchange import ExchangeChoice, candidates, joins_messages, row_bytes
from hpcgnn.plan.planned_graph import Planned, Survey
from hpcgnn.plan.rehearsal import Rehearsal, in_fresh_process
from hpcgnn.plan.traffic import (
    ALL,
    MOVEMENTS,
    ExchangeTimes,
    Movement,
    Moves,
    PatternKey,
    Ranks,
    Traffic,
    between_hosts,
    sent_by_groups,
    sent_by_rank,
)
from hpcgnn.spmd import collective, threads_of
from hpcgnn.spmm import AUTO, find_method
from hpcgnn.train.optimizer import num_evaluations
from hpcgnn.typing import Array, FloatArray

TURN_S = 1e-3
"""Seconds that a rank whose rows have arrived waits for its core, used by another rank."""

CLOSE = 1.5
"""Choices within this factor of the fastest one's seconds are rehearsed again."""


@dataclass(frozen=True)
class Machine:
    """The machine of a run: the links between its ranks, and the cores of a host.

    `cores` None: every rank has its own.
    """

    network: Network
    cores: int | None = None

    def threads(self, config: Config, ranks: int) -> int:
        """Return the threads of a rank, as a run chooses them; without `cores` as on this host."""
        if config.run.threads:
            return config.run.threads
        host, mates = os.sched_getaffinity(0), 1
        if self.cores is not None:
            host, mates = set(range(self.cores)), min(self.network.ranks_per_host or ranks, ranks)
        return threads_of(host, [host] * mates, os.environ.get("OMP_NUM_THREADS"))

    def crowding(self, computing: FloatArray, threads: int) -> float:
        """Return the factor by which sharing cores prolongs the slowest rank's computing.

        `computing` (ranks,) are the seconds of each rank with `threads`.
        """
        if self.cores is None:
            return 1.0
        hosts = np.arange(len(computing)) // (self.network.ranks_per_host or len(computing))
        busiest = np.bincount(hosts, computing).max() * threads / self.cores
        return max(float(busiest / computing.max()), 1.0)


@dataclass(frozen=True)
class Choice:
    """One way to run.

    `is_auto` tells that the exchange was chosen by its cost. `block` is the block row to rehearse;
    None: those that may take longest.
    """

    ranks: int
    replication: int
    exchange: str
    schedule: str
    prefetch: int = 0
    is_auto: bool = False
    block: int | None = None
    groups: int = 1

    @property
    def blocks(self) -> int:
        """Number of block rows of a group."""
        return self.ranks // (self.replication * self.groups)

    def overrides(self) -> list[str]:
        """Return the configuration words for the command line of ``hpcgnn.train``."""
        words = [f"exchange.method={self.exchange}", f"exchange.schedule={self.schedule}"]
        if self.prefetch:
            words.append(f"exchange.prefetch={self.prefetch}")
        words.append(f"exchange.replication={self.replication}")
        return [*words, f"exchange.groups={self.groups}"] if self.groups > 1 else words

    @property
    def way(self) -> "Choice":
        """The same choice for all that run alike: with one block row exchanges do not differ."""
        if self.blocks > 1:
            return replace(self, is_auto=False)
        return Choice(self.ranks, self.replication, "", "", groups=self.groups)


@dataclass(frozen=True)
class Candidate:
    """The predicted needs of one choice.

    Rows are those of one product over all nodes: total, of the busiest sender, to the busiest
    receiver. `bytes_epoch` and `bytes_max_send` are sent by all ranks and by the busiest one in a
    training epoch; `bytes_once` until the end of the first epoch, and `bytes_evaluation` in an
    evaluation, by all ranks. `idle_bytes`, `peak_bytes` and `ghost_bytes` are those of the
    rehearsed rank, see `Rehearsal`.

    `compute_s`, `exchange_s` and `hidden_s` are the seconds of a training epoch: computing,
    messages at the given bandwidth, and the part of these that overlaps with computing. `crowding`
    is a factor on `compute_s` because ranks of a host share its cores; 1 if they do not. `turns`
    counts the exchanges and sums of an epoch: ranks that share cores wait for a turn at each.
    `evaluate_s` includes messages; `computing_s` is summed over ranks. `spread_s` is the difference
    between two rehearsals of an epoch; 0 if there was one, see `contenders`.
    """

    choice: Choice
    rows_total: int
    rows_max_send: int
    rows_max_recv: int
    bytes_epoch: int
    bytes_max_send: int
    bytes_once: int
    bytes_evaluation: int
    store_bytes: int
    rehearsed_rank: int
    idle_bytes: int
    peak_bytes: int
    ghost_bytes: int
    compute_s: float
    exchange_s: float
    hidden_s: float
    crowding: float
    turns: int
    evaluate_s: float
    computing_s: float
    threads: int
    spread_s: float = 0.0

    @property
    def epoch_s(self) -> float:
        """Seconds of a training epoch.

        If ranks share cores, others compute while one waits for messages.
        """
        alone_s = self.compute_s + self.exchange_s - self.hidden_s
        return max(alone_s, crowded_s(self.compute_s, self.crowding, self.turns))

    @property
    def cpu_s(self) -> float:
        """Core seconds of a training epoch, of all ranks.

        A rank polls on its core while it waits for messages, but yields a shared core.
        """
        waits_s = self.choice.ranks * self.epoch_s - self.computing_s
        return self.computing_s * self.threads + (waits_s if self.crowding == 1 else 0.0)

    @property
    def rehearsed_choice(self) -> Choice:
        """The same choice with the block row whose rehearsal gave these seconds."""
        return replace(self.choice, block=self.rehearsed_rank // self.choice.replication)

    def fits(self, memory: int | None) -> bool:
        """Return whether a rank needs at most `memory` bytes; None: no limit."""
        return memory is None or self.peak_bytes <= memory

    def train_s(self, config: Config) -> float:
        """Return the seconds of all seeds and splits, without reading and setting up."""
        train = config.train
        evaluations = num_evaluations(train)
        seconds = train.epochs * self.epoch_s + evaluations * self.evaluate_s
        return max(len(train.splits), 1) * len(train.seeds) * seconds

    def with_second(self, other: "Candidate") -> "Candidate":
        """Return this candidate combined with a second rehearsal of the same choice.

        Disturbances only prolong a rehearsal, so the shorter times count.
        """
        return replace(
            self,
            compute_s=min(self.compute_s, other.compute_s),
            computing_s=min(self.computing_s, other.computing_s),
            evaluate_s=min(self.evaluate_s, other.evaluate_s),
            peak_bytes=max(self.peak_bytes, other.peak_bytes),
            spread_s=abs(self.compute_s - other.compute_s),
        )


def crowded_s(compute_s: float, crowding: float, turns: int) -> float:
    """Return the seconds of computing with `turns` exchanges if ranks share cores."""
    return crowding * compute_s + TURN_S * turns if crowding > 1 else compute_s


def contenders(candidates: Sequence[Candidate], memory: int | None) -> list[int]:
    """Return the positions of candidates that fit `memory` bytes and are nearly the fastest.

    They have to be rehearsed again, after all others, before one is chosen. Returns none if all of
    them run alike.
    """
    fitting = [index for index, candidate in enumerate(candidates) if candidate.fits(memory)]
    least_s = min((candidates[index].epoch_s for index in fitting), default=0.0)
    close = [index for index in fitting if candidates[index].epoch_s <= CLOSE * least_s]
    return close if len({candidates[index].choice.way for index in close}) > 1 else []


def fastest(candidates: Sequence[Candidate], memory: int | None) -> list[Candidate]:
    """Return the fastest candidates that fit `memory`, up to spread, fewest bytes first."""
    fitting = [candidate for candidate in candidates if candidate.fits(memory)]
    if not fitting:
        return []
    first = min(fitting, key=lambda candidate: candidate.epoch_s)
    # Differences within the spread of rehearsals do not count.
    equal = [
        candidate
        for candidate in fitting
        if candidate.epoch_s - first.epoch_s <= max(candidate.spread_s, first.spread_s)
    ]
    return sorted(equal, key=lambda candidate: (candidate.bytes_epoch, candidate.epoch_s))


def choices(
    ranks: Sequence[int],
    grids: Sequence[tuple[int, int]],
    exchanges: Iterable[str],
    schedules: Iterable[str],
    prefetch: int,
) -> Iterator[Choice]:
    """Yield every combination in which a grid of (replication, groups) divides the ranks."""
    for count, (replication, groups) in itertools.product(ranks, grids):
        if count % (replication * groups):
            continue
        for exchange, schedule in itertools.product(exchanges, schedules):
            depth = prefetch if schedule == "sequential" else 0
            yield Choice(count, replication, exchange, schedule, depth, groups=groups)


@collective
def predict(
    whole: Planned,
    config: Config,
    wanted: Sequence[Choice],
    machine: Machine,
    epochs: int,
    beside: int = 1,
    progress: Callable[[], None] = lambda: None,
) -> Iterator[Candidate]:
    """Yield a prediction for every choice; those that run alike are rehearsed once.

    Collective over the grid of one rank that `whole` was read on.

    Raises `InputError` if a choice has more block rows than the store has parts, or if no block row
    has a training node.

    A choice is rehearsed for `epochs` by `beside` processes at a time; see `in_fresh_process`.
    `progress` is called after each choice.
    """
    surveyed: tuple[object, ...] = ()
    surveys: dict[PatternKey, Survey] = {}
    predicted: dict[Choice, Candidate] = {}
    for asked in wanted:
        choice = asked
        if asked.exchange == AUTO:
            cheapest = _cheapest(whole, config, asked, machine.network)
            choice = replace(asked, exchange=cheapest, is_auto=True)
        if choice.way in predicted:
            yield replace(predicted[choice.way], choice=choice)
            progress()
            continue
        resolved = configured(config, choice)
        threads = machine.threads(config, choice.ranks)
        resolved = replace(resolved, run=replace(resolved.run, threads=threads))
        starts = whole.row_starts(choice.blocks)
        ranks = Ranks(starts, resolved.exchange, machine.network.ranks_per_host)
        # One survey serves both schedules, which need the same rows, though between hosts from
        # different ranks.
        key = choice.blocks, choice.replication, choice.groups, choice.exchange
        if key != surveyed:
            surveys.clear()
            surveys |= whole.surveys(ranks)
            surveyed = key
        traffic = {name: survey.traffic(ranks) for name, survey in surveys.items()}
        traffic |= {key: e.traffic(choice.replication) for key, e in whole.requests(starts).items()}
        rehearsed, one = [], choice.block
        largest = _largest(traffic, whole.trains(starts), np.diff(starts))
        for block in largest if one is None else [one]:
            share = whole.share(resolved, ranks, surveys, block)
            rehearsed.append((block, in_fresh_process(share, epochs, beside)))
        block, rehearsal = max(rehearsed, key=lambda pair: pair[1].epoch_s)
        rehearsal = replace(rehearsal, peak_bytes=max(run.peak_bytes for _, run in rehearsed))
        messages = _Messages(traffic, ranks, machine.network)
        of_blocks = _computing(
            {block: run.epoch_s for block, run in rehearsed}, _entries(traffic), np.diff(starts)
        )
        of_ranks = np.tile(np.repeat(of_blocks, choice.replication), choice.groups)
        work = _Work(of_ranks, threads, machine.crowding(of_ranks, threads))
        predicted[choice.way] = _candidate(
            choice, block, rehearsal, messages, work, whole.store_bytes
        )
        yield predicted[choice.way]
        progress()


def configured(config: Config, choice: Choice) -> Config:
    """Return `config` with the exchange and the grid of a choice."""
    exchange = replace(
        config.exchange,
        method=choice.exchange,
        schedule=choice.schedule,
        prefetch=choice.prefetch,
        replication=choice.replication,
        groups=choice.groups,
    )
    return replace(config, exchange=exchange)


@dataclass(frozen=True, eq=False)
class _Work:
    """Computing of ranks in an epoch: (ranks,) seconds, threads of a rank, and crowding factor."""

    seconds: FloatArray
    threads: int
    crowding: float


class _Messages:
    def __init__(
        self, traffic: Mapping[PatternKey, Traffic], ranks: Ranks, network: Network
    ) -> None:
        self._traffic, self._ranks, self._network = traffic, ranks, network
        self._away = between_hosts(traffic, ranks)

    def sent(self, *groups: Moves) -> Sent:
        """Return the traffic of each rank in the exchanges of its group."""
        return sent_by_groups(groups, self._traffic, self._ranks.exchange.replication)

    def seconds(self, moves: Moves) -> float:
        """Return the seconds of exchanges that begin together, for the slowest rank."""
        copying, link = self._of_ranks(moves)
        return float((copying + link).max(initial=0))

    def passing(self, moves: Moves) -> tuple[float, float]:
        """Return the seconds of the slowest rank's exchanges, and how many of them are hidden.

        Messages between hosts pass one after another while the rank computes, from the beginning of
        their window. The rank waits for those that take longer than the window. Copies between
        ranks of one host cannot be hidden.
        """
        by_move = [self._of_ranks([move]) for move in moves]
        if not by_move:
            return 0.0, 0.0
        copying, link = np.array(by_move).transpose(1, 0, 2)
        total = (copying + link).sum(axis=0)
        slowest = int(np.argmax(total))
        waits = waiting([move.window for move in moves], link[:, slowest])
        return float(total[slowest]), float(link[:, slowest].sum() - waits)

    def _of_ranks(self, moves: Moves) -> tuple[Array, Array]:
        """Return (ranks,) the seconds of each rank inside its host, and between hosts."""
        hosts, exchange = self._ranks.hosts_of_grid, self._ranks.exchange
        copies, per_host = exchange.replication, self._ranks.per_host
        # Sums over all ranks cross hosts if there are several.
        crosses = per_host is not None and len(hosts) * exchange.groups > per_host
        crossing = [move for move in moves if crosses or isinstance(move, Movement)]
        away = sent_by_rank(crossing, self._away, copies)
        return self._network.rank_seconds(self.sent(moves), away, hosts)


def product_moves(size: int, *, joined: bool) -> list[Movement]:
    """Return the movements of a product between block rows and replicas; rows have `size` bytes.

    `joined` tells whether short messages of its two exchanges are joined, see `joins_messages`.
    """
    # A push is an exchange from ghosts to owners.
    return [Movement(ALL, e, e == "pushed", size, joined=size * joined) for e in MOVEMENTS]


def product_seconds(
    traffic: Traffic, ranks: Ranks, network: Network, size: int, *, joined: bool
) -> float:
    """Return the seconds of the messages of one product with rows of `size` bytes, by the model.

    Sums over replicas are left out, as they are the same for every exchange.
    """
    messages = _Messages({ALL: traffic}, ranks, network)
    moves = product_moves(size, joined=joined)
    return messages.seconds([move for move in moves if move.transfer != "summed"])


def _cheapest(whole: Planned, config: Config, choice: Choice, network: Network) -> str:
    """Return the exchange that a run with ``exchange.method=auto`` chooses on this network.

    Exchanges that cannot be planned from this source are left out.
    """
    starts, costs = whole.row_starts(choice.blocks), {}
    plain = configured(config, replace(choice, exchange="aware"))
    hosts = Ranks(starts, plain.exchange, network.ranks_per_host).hosts_of_grid
    for name in candidates(plain, hosts):
        if whole.counts_by in find_method(name).lacks:
            continue
        tried = replace(plain.exchange, method=name)
        ranks = Ranks(starts, tried, network.ranks_per_host)
        traffic, size = whole.survey(ALL, ranks).traffic(ranks), row_bytes(plain)
        joined = joins_messages(plain)
        costs[name] = product_seconds(traffic, ranks, network, size, joined=joined)
    return ExchangeChoice.of(costs, network).method


def _largest(traffic: Mapping[PatternKey, Traffic], trains: Array, rows: Array) -> list[int]:
    """Return the block row with the most non-zeros and, if it has 1 % more rows, that with most.

    The time of products depends on non-zeros, that of dense layers on rows, and either may
    dominate. Only block rows with a training node count. `trains` and `rows` (blocks,) are the
    numbers of training nodes and of rows.
    """
    entries = _entries(traffic)
    if not trains.any():
        raise InputError(
            "no labelled node is in the training split, and no edge is trained on; convert the "
            "graph with a split"
        )
    by_entries, by_rows = (
        int(np.argmax(np.where(trains > 0, sizes, -1))) for sizes in (entries, rows)
    )
    return [by_entries, by_rows] if rows[by_rows] > 1.01 * rows[by_entries] else [by_entries]


def _entries(traffic: Mapping[PatternKey, Traffic]) -> Array:
    """Return (blocks,) the non-zeros of each block row in all patterns."""
    return np.asarray(np.sum([pattern.entries for pattern in traffic.values()], axis=0))


def _computing(rehearsed: Mapping[int, float], entries: Array, rows: Array) -> FloatArray:
    """Estimate (blocks,) the seconds of each block row from those of the `rehearsed` ones.

    The model is linear in non-zeros and in rows: with equal shares if one block row was rehearsed,
    fitted to both if two were.
    """
    sizes = np.stack([entries / max(entries.max(), 1), rows / rows.max()], axis=1)
    known = sizes[list(rehearsed)]
    seconds = np.array(list(rehearsed.values()))
    same = np.full(2, seconds[0] / known.sum())
    factors = same if len(seconds) == 1 else scipy.optimize.nnls(known, seconds)[0]
    return np.asarray(sizes @ factors)


def waiting(windows: Sequence[ExchangeTimes], seconds: FloatArray) -> float:
    """Return the seconds that a rank waits for exchanges that share one link, in their order.

    An exchange takes the given `seconds` once it has begun and those before it are complete. At the
    end of its window the rank waits for the rest, which delays everything after it.
    """
    events = [(window.began_s, 0, number) for number, window in enumerate(windows)]
    events += [(window.ended_s, 1, number) for number, window in enumerate(windows)]
    waited = free_s = 0.0
    passed = np.zeros(len(windows))
    for clock_s, is_end, number in sorted(events):
        now = clock_s + waited
        if is_end:
            waited += max(passed[number] - now, 0.0)
        else:
            passed[number] = free_s = max(now, free_s) + seconds[number]
    return float(waited)


def _candidate(
    choice: Choice,
    block: int,
    rehearsal: Rehearsal,
    messages: _Messages,
    work: _Work,
    store_bytes: int,
) -> Candidate:
    crowding = work.crowding
    once, epoch, evaluation = (
        messages.sent(*groups) for groups in (rehearsal.once, rehearsal.epoch, rehearsal.evaluation)
    )
    exchange_s, hidden_s = messages.passing(rehearsal.epoch[0])
    evaluation_s, evaluation_hidden_s = messages.passing(rehearsal.evaluation[0])
    waits = evaluation_s - evaluation_hidden_s
    product = messages.sent(product_moves(1, joined=False))
    return Candidate(
        choice=choice,
        rows_total=int(product.rows.sum()),
        rows_max_send=int(product.rows.max(initial=0)),
        rows_max_recv=int(product.bytes_in.max(initial=0)),
        bytes_epoch=int(epoch.bytes_out.sum()),
        bytes_max_send=int(epoch.bytes_out.max()),
        bytes_once=int(once.bytes_out.sum()),
        bytes_evaluation=int(evaluation.bytes_out.sum()),
        store_bytes=store_bytes,
        rehearsed_rank=block * choice.replication + block % choice.replication,
        idle_bytes=rehearsal.idle_bytes,
        peak_bytes=rehearsal.peak_bytes,
        ghost_bytes=rehearsal.ghost_bytes,
        compute_s=rehearsal.epoch_s,
        exchange_s=exchange_s,
        hidden_s=hidden_s,
        crowding=crowding,
        turns=len(rehearsal.epoch[0]),
        evaluate_s=max(
            rehearsal.evaluate_s + waits,
            crowded_s(rehearsal.evaluate_s, crowding, len(rehearsal.evaluation[0])),
        ),
        computing_s=float(work.seconds.sum()),
        threads=work.threads,
    )
