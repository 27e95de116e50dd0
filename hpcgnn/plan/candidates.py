"""Predictions for a configuration on chosen numbers of ranks, exchanges, schedules and grids."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.plan.network import Network, sent_by_rank
from hpcgnn.plan.rehearsal import Rehearsal, in_fresh_process
from hpcgnn.plan.share import Share, make_share
from hpcgnn.plan.stand_ins import MOVEMENTS, Movement
from hpcgnn.plan.traffic import ALL, PatternKey, Ranks, Traffic, count_traffic
from hpcgnn.plan.whole_graph import WholeGraph
from hpcgnn.spmd import collective
from hpcgnn.train.optimizer import evaluation_is_due
from hpcgnn.typing import Array, Offsets


@dataclass(frozen=True)
class Choice:
    """One way to run.

    Parameters
    ----------
    ranks, replication
        The grid.
    exchange, schedule, prefetch
        As in the configuration.
    """

    ranks: int
    replication: int
    exchange: str
    schedule: str
    prefetch: int = 0

    def overrides(self) -> list[str]:
        """Return what to add to the command line of ``hpcgnn.train``."""
        words = [f"exchange.method={self.exchange}", f"exchange.schedule={self.schedule}"]
        if self.prefetch:
            words.append(f"exchange.prefetch={self.prefetch}")
        return [*words, f"exchange.replication={self.replication}"]


@dataclass(frozen=True)
class Candidate:
    """What one choice would need.

    Parameters
    ----------
    choice
        The way to run.
    rows_total, rows_max_send, rows_max_recv
        Of one product over all nodes.
    bytes_epoch, bytes_max_send
        Bytes that all ranks, and the busiest one, send in a training epoch.
    bytes_once, bytes_evaluation
        Bytes that all ranks send before the first epoch, and in an evaluation.
    rehearsed_rank
        The rank that was rehearsed.
    idle_bytes, peak_bytes, ghost_bytes
        Of that rank, see `Rehearsal`.
    compute_s, exchange_s
        Of a training epoch: computing, and messages at the given bandwidth if nothing hides them.
    evaluate_s
        Of an evaluation, its messages included.
    """

    choice: Choice
    rows_total: int
    rows_max_send: int
    rows_max_recv: int
    bytes_epoch: int
    bytes_max_send: int
    bytes_once: int
    bytes_evaluation: int
    rehearsed_rank: int
    idle_bytes: int
    peak_bytes: int
    ghost_bytes: int
    compute_s: float
    exchange_s: float
    evaluate_s: float

    @property
    def epoch_s(self) -> float:
        """Seconds of a training epoch."""
        return self.compute_s + self.exchange_s

    def train_s(self, config: Config) -> float:
        """Return the seconds of a whole run, without reading and planning."""
        train = config.train
        evaluations = sum(evaluation_is_due(train, epoch + 1) for epoch in range(train.epochs))
        seconds = train.epochs * self.epoch_s + evaluations * self.evaluate_s
        return len(train.seeds) * seconds


def choices(
    ranks: Sequence[int],
    replications: Sequence[int],
    exchanges: Sequence[str],
    schedules: Sequence[str],
    prefetch: int,
) -> Iterator[Choice]:
    """Yield every combination whose replication divides the ranks."""
    for count in ranks:
        for replication in replications:
            if count % replication:
                continue
            for exchange in exchanges:
                for schedule in schedules:
                    depth = prefetch if schedule == "sequential" else 0
                    yield Choice(count, replication, exchange, schedule, depth)


@collective
def predict(
    whole: WholeGraph,
    config: Config,
    wanted: Sequence[Choice],
    network: Network,
    epochs: int,
    progress: Callable[[], None] = lambda: None,
) -> Iterator[Candidate]:
    """Yield a prediction for every choice; each rehearses in a process of its own.

    Collective over the grid of one rank that `whole` was read on.

    Parameters
    ----------
    whole
        The graph.
    config
        The run.
    wanted
        The choices.
    network
        What messages cost.
    epochs
        To rehearse.
    progress
        Called after each choice.

    Raises
    ------
    InputError
        When a choice has more block rows than the store has parts, or no block row has a training
        node.
    """
    counted: dict[tuple[object, ...], dict[PatternKey, Traffic]] = {}
    for choice in wanted:
        exchange = replace(
            config.exchange,
            method=choice.exchange,
            schedule=choice.schedule,
            prefetch=choice.prefetch,
            replication=choice.replication,
        )
        chosen = replace(config, exchange=exchange)
        starts = whole.row_starts(choice.ranks // choice.replication)
        ranks = Ranks(starts, exchange, network.ranks_per_host)
        # Schedules move the same rows, but not between the same ranks of two hosts.
        key = choice.ranks, choice.replication, choice.exchange, choice.schedule
        if key not in counted:
            counted[key] = {
                name: count_traffic(matrix, ranks) for name, matrix in whole.patterns.items()
            }
            counted[key] |= whole.traffic(starts)
        traffic = counted[key]
        block = _heaviest(traffic, starts, whole.targets)
        share = make_share(whole, chosen, ranks, traffic, block)
        yield _candidate(choice, share, traffic, in_fresh_process(share, epochs), network)
        progress()


def _heaviest(traffic: Mapping[PatternKey, Traffic], starts: Offsets, targets: Array) -> int:
    """Return the block row with the most non-zeros among those with a training node."""
    entries = np.sum([each.entries for each in traffic.values()], axis=0)
    trains = np.add.reduceat(np.append(targets, False), starts[:-1], dtype=np.int64)
    trains[np.diff(starts) == 0] = 0
    if not trains.any():
        raise InputError(
            "no labelled node is in the training split, and no edge is trained on; convert the "
            "graph with a split"
        )
    return int(np.argmax(np.where(trains > 0, entries, -1)))


def _candidate(
    choice: Choice,
    share: Share,
    traffic: Mapping[PatternKey, Traffic],
    found: Rehearsal,
    network: Network,
) -> Candidate:
    once, epoch, evaluation = (
        sent_by_rank(moves, traffic, choice.replication)
        for moves in (found.once, found.epoch, found.evaluation)
    )
    product = sent_by_rank(
        [Movement(ALL, each, reverse=False, row_bytes=1) for each in MOVEMENTS],
        traffic,
        choice.replication,
    )
    return Candidate(
        choice=choice,
        rows_total=int(product.rows.sum()),
        rows_max_send=int(product.rows.max(initial=0)),
        rows_max_recv=int(product.bytes_in.max(initial=0)),
        bytes_epoch=int(epoch.bytes_out.sum()),
        bytes_max_send=int(epoch.bytes_out.max()),
        bytes_once=int(once.bytes_out.sum()),
        bytes_evaluation=int(evaluation.bytes_out.sum()),
        rehearsed_rank=share.place.block * choice.replication + share.place.replica,
        idle_bytes=found.idle_bytes,
        peak_bytes=found.peak_bytes,
        ghost_bytes=found.ghost_bytes,
        compute_s=found.epoch_s,
        exchange_s=network.seconds(epoch),
        evaluate_s=found.evaluate_s + network.seconds(evaluation),
    )
