"""The pairs of a rehearsed rank: rows of other ranks are zeros, and are counted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import Communicator, RowMap, RowRequest
from hpcgnn.plan.link_pairs import LinkShare, pair_key
from hpcgnn.plan.stand_ins import Log, Movement
from hpcgnn.train.links.pairs import Pairs, Tested
from hpcgnn.typing import Array, GlobalIndices, LocalIndices


@dataclass(frozen=True, eq=False)
class SilentRequest(RowRequest):
    """A request whose rows of other ranks are zeros; see `RowRequest`.

    Parameters
    ----------
    note
        Hears whether rows go back to owners, and of their bytes.
    own, own_rows
        Which of the wanted rows are this rank's, and their local rows.
    """

    note: Callable[[bool, int], None]
    own: GlobalIndices
    own_rows: LocalIndices

    def rows(self, array: Array) -> Array:
        """Return the wanted rows."""
        self.note(False, array.shape[1] * array.itemsize)
        # Packed as for other ranks, which takes its time and memory.
        np.ascontiguousarray(array[self.asked])
        found = np.zeros((len(self.owners), *array.shape[1:]), array.dtype)
        found[self.own] = array[self.own_rows]
        return found

    def add_back(self, array: Array) -> Array:
        """Return the sums for this rank's rows."""
        self.note(True, array.shape[1] * array.itemsize)
        total = np.zeros((self.num_rows, *array.shape[1:]), array.dtype)
        arrived = np.zeros((len(self.asked), *array.shape[1:]), array.dtype)
        total[self.asked] += arrived
        total[self.own_rows] += array[self.own]
        return total


class RehearsedPairs:
    """The pairs of a share, whose messages a log hears of; see `hpcgnn.train.links.pairs`."""

    def __init__(self, comm: Communicator, row_map: RowMap, share: LinkShare, log: Log) -> None:
        def request(name: str) -> SilentRequest:
            rows, asked = share.needed[name].rows, share.asked[name]
            own = np.flatnonzero(row_map.is_local(rows))

            def note(reverse: bool, row_bytes: int) -> None:
                log(Movement(pair_key(name), "fetched", reverse, row_bytes))

            askers = np.zeros(len(asked), np.int32)
            owners, count = row_map.owner(rows), row_map.num_local
            local = row_map.to_local(rows[own])
            return SilentRequest(comm, askers, asked, owners, count, note, own, local)

        self._trained = Pairs(share.needed["train"], request("train"))
        self.tested: Mapping[str, Tested] = {
            name: Tested(edges, Pairs(share.needed[name], request(name)), None)
            for name, edges in share.judged.items()
        }

    def trained(self, seed: int, epoch: int) -> Pairs:
        """Return the same pairs for every epoch."""
        return self._trained
