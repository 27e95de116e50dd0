"""What each rank sends in the exchanges of a run."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from hpcgnn.comm import Sent, are_joined
from hpcgnn.plan.moves import Movement, Reduction
from hpcgnn.plan.traffic import PatternKey, Ranks, Traffic
from hpcgnn.typing import Array, Mask


def sent_by_rank(
    moves: Iterable[Movement | Reduction], traffic: Mapping[PatternKey, Traffic], replication: int
) -> Sent:
    """Return what each rank of a grid sends in some exchanges.

    Parameters
    ----------
    replication
        Rank ``block * replication + replica`` serves the block columns of its replica.
    """
    num_blocks = next(iter(traffic.values())).fetched.shape[0]
    found = np.zeros((4, num_blocks * replication), np.int64)
    for move in moves:
        if isinstance(move, Reduction):
            found += np.array([[0], [move.num_bytes], [move.num_bytes], [1]])
            continue
        rows, messages, arrived = _rows_of(move, traffic[move.pattern], replication)
        found += np.array([rows, rows * move.row_bytes, arrived * move.row_bytes, messages])
    return Sent(*found)


def between_hosts(traffic: Mapping[PatternKey, Traffic], ranks: Ranks) -> dict[PatternKey, Traffic]:
    """Return the traffic that leaves a host."""
    copies = ranks.exchange.replication
    hosts = np.stack([ranks.hosts_of_grid[replica::copies] for replica in range(copies)])
    blocks = np.arange(ranks.num_blocks)
    # The replica that serves a block column exchanges it with its own layer.
    served = hosts[blocks % copies]
    away = served[blocks, blocks] != served.T
    apart = hosts.T[:, :, None] != hosts.T[:, None, :]
    return {
        key: replace(
            each, fetched=each.fetched * away, pushed=each.pushed * away, sums=each.sums * apart
        )
        for key, each in traffic.items()
    }


def _rows_of(move: Movement, traffic: Traffic, replication: int) -> tuple[Array, Array, Array]:
    """Return the rows and messages that each rank sends, and the rows that it receives."""
    if move.what == "summed":
        sums = traffic.sums[int(move.reverse)]
        out, into = (sums.sum(axis=(0, axis)).reshape(-1) for axis in (3, 2))
        return out, (sums > 0).sum(axis=(0, 3)).reshape(-1), into
    is_pushed = move.what == "pushed"
    rows_of = traffic.pushed if is_pushed else traffic.fetched
    messages_of = rows_of > 0
    if move.joined and move.reverse:
        # The sums are the second of two exchanges, and come in messages of the first.
        messages_of &= ~are_joined(traffic.fetched, traffic.pushed, move.joined)
    counts = _by_rank(rows_of, messages_of, replication)
    # A fetch takes rows from owners, a push brings partial sums to owners: of fetched rows the
    # block column is the owner, of pushed ones the block row.
    outward = move.reverse == is_pushed
    rows, messages, arrived, _ = counts if outward else (*counts[2:], *counts[:2])
    return rows, messages, arrived


def _by_rank(rows: Array, messages: Mask, replication: int) -> tuple[Array, Array, Array, Array]:
    """Return rows and messages of each rank, sent by columns of both, and received by rows."""
    num_blocks = len(rows)
    served = np.arange(num_blocks) % replication
    out, into = np.zeros((2, 2, num_blocks, replication), np.int64)
    for index, each in enumerate((rows, messages.astype(np.int64))):
        out[index][np.arange(num_blocks), served] = each.sum(axis=0)
        for replica in range(replication):
            into[index][:, replica] = each[:, served == replica].sum(axis=1)
    sent, received = out.reshape(2, -1), into.reshape(2, -1)
    return sent[0], sent[1], received[0], received[1]
