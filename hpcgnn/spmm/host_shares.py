"""Which rows of the array that the ranks of a host share belong to which rank."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.typing import GlobalIndices, LocalIndices

__all__ = ["Share", "find_shares", "matches", "shared_rows"]


@dataclass(frozen=True, eq=False)
class Share:
    """What one mate puts into the shared array: its own rows, then the rows that it fetches."""

    own: GlobalIndices
    fetched: GlobalIndices
    start: int

    @property
    def stop(self) -> int:
        """The row behind its last one."""
        return self.start + len(self.own) + len(self.fetched)


def find_shares(row_map: RowMap, needs: list[GlobalIndices], mates: LocalIndices) -> list[Share]:
    """Return the share of each mate, in mate order.

    Not collective.

    Parameters
    ----------
    row_map
        Who owns which nodes.
    needs
        For each mate (n,) int64 increasing global ids of the ghosts that it reads.
    mates
        (mates,) int32 increasing ranks of the host.
    """
    everything = np.unique(np.concatenate(needs))
    owners = row_map.owner(everything)
    on_host = np.isin(owners, mates)
    readers = owners % len(mates)
    shares, start = [], 0
    for index, rank in enumerate(mates):
        own = everything[on_host & (owners == rank)]
        fetched = everything[~on_host & (readers == index)]
        shares.append(Share(own, fetched, start))
        start = shares[-1].stop
    return shares


def shared_rows(
    row_map: RowMap, nodes: GlobalIndices, shares: list[Share], mates: LocalIndices
) -> LocalIndices:
    """Return (ghosts,) int32: the row of each ghost in the shared array.

    Not collective.

    Parameters
    ----------
    row_map, mates
        As for `find_shares`.
    nodes
        (ghosts,) int64 increasing global ids.
    shares
        Of all mates.
    """
    owners = row_map.owner(nodes)
    rows = np.empty(len(nodes), np.int32)
    for share, rank in zip(shares, mates, strict=True):
        chosen = owners == rank
        rows[chosen] = share.start + np.searchsorted(share.own, nodes[chosen])
    off_host = np.flatnonzero(~np.isin(owners, mates))
    for index, share in enumerate(shares):
        chosen = off_host[owners[off_host] % len(mates) == index]
        first = share.start + len(share.own)
        rows[chosen] = first + np.searchsorted(share.fetched, nodes[chosen])
    return rows


def matches(nodes: GlobalIndices, chosen: GlobalIndices) -> tuple[LocalIndices, LocalIndices]:
    """Return where the common entries of two increasing lists stand, in each of them.

    Not collective.
    """
    _, left, right = np.intersect1d(nodes, chosen, assume_unique=True, return_indices=True)
    return left.astype(np.int32), right.astype(np.int32)
