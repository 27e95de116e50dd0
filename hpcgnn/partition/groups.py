"""The share of a rank in refinement: all nodes of a group of parts, with their nets.

A group of parts is on one rank with all its nodes. So the rank knows how many pins of every net are
in each part of the group, and can compute the exact change of loads when nodes move between these
parts. The sums of the groups' counts are exactly the loads of all parts.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpcgnn import watchdog
from hpcgnn.comm import (
    Communicator,
    RowRequest,
    allreduce_max,
    allreduce_sum,
    redistribute,
    redistribute_lists,
)
from hpcgnn.comm.row_map import distinct, numbered
from hpcgnn.partition import _volpart
from hpcgnn.partition.nets import Pins
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets


@dataclass(frozen=True, eq=False)
class Counts:
    """The communication and the weights of a partition, counted over all ranks.

    `loads` (K, 2) int64 are the rows that each part sends and receives; `work` and `heaviest` (K,)
    int64 are its weight and that of its heaviest node. `readers` (num_local, kinds) int32 is the
    number of parts with a pin of each net of this rank's nodes. `nearest` (K, nearest) int32 are
    the parts that own most of the nets with a pin in each part, and `nearest_nets`, int64, the
    number of these nets; -1 and 0 if there are fewer parts. `cut_pins` is the number of pins of
    fetch nets outside of their owner's part, `max_pair_rows` the most rows between two parts.
    """

    loads: Array
    work: Offsets
    heaviest: Offsets
    readers: LocalIndices
    nearest: LocalIndices
    nearest_nets: Offsets
    cut_pins: int
    max_pair_rows: int

    def excess(self, imbalance: float) -> int:
        """Return the sum over parts of the weight above the limit."""
        average = self.work.sum() / len(self.work)
        limit = ((1 + imbalance) * np.maximum(average, self.heaviest)).astype(np.int64)
        return int(np.maximum(self.work - limit, 0).sum())


@dataclass(frozen=True, eq=False)
class _Named:
    """Net names stored as packed numbers, unpacked a few at a time."""

    packed: Array
    names: Array

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the names."""
        return self.names.dtype

    def __getitem__(self, positions: GlobalIndices) -> Array:
        return self.names[_volpart.unpack(self.packed, len(self.names), positions)]


class GroupShare:
    """The parts of this rank's group.

    `pins` are the nets of the nodes that this rank owns, `part` (num_local,) int32 the part of each
    node, and `group` (K,) int32 the rank that gets each part. The nets are moved out of `pins`,
    since memory does not suffice for two copies, until `return_nets`.
    """

    @collective
    def __init__(
        self, comm: Communicator, pins: Pins, group: LocalIndices, part: LocalIndices
    ) -> None:
        self._comm, self._pins = comm, pins
        row_map = pins.row_map
        self.parts = np.concatenate(
            [np.flatnonzero(group == comm.rank), np.flatnonzero(group != comm.rank)]
        )
        self.num_own = int(np.count_nonzero(group == comm.rank))
        self._number = np.empty(len(group), np.int32)
        self._number[self.parts] = np.arange(len(group), dtype=np.int32)
        # Nodes without an edge have no weight and no traffic, so they are not sent.
        owners = np.where(pins.weights > 0, group[part], -1).astype(np.int32)
        sent = np.flatnonzero(owners >= 0)
        self._order = sent[np.argsort(owners[sent], kind="stable")].astype(np.int32)
        self.nodes, self.weights, labels = redistribute(
            comm, owners[sent], sent + row_map.start, pins.weights[sent], part[sent]
        )
        self.part: LocalIndices = self._number[labels]
        self._indptr, nets = redistribute_lists(comm, owners, pins.begins, pins.nets, pins.lengths)
        pins.nets = pins.nets[:0].copy()
        self._names = names = distinct(nets, pins.net_map.num_rows)
        out = nets if nets.dtype == np.int32 else None
        numbers = numbered(names, np.arange(len(names), dtype=np.int32), nets, out)
        del nets, out
        self._nets = _volpart.pack(numbers, len(names))
        del numbers
        owner, kind = np.divmod(names, pins.kinds)
        self._push = kind.astype(np.uint8)
        # `nodes` ascend: each rank sends its nodes in order, and ranks own consecutive ranges.
        position = np.searchsorted(self.nodes, owner)
        owned = np.zeros(len(position), bool)
        inside = position < len(self.nodes)
        owned[inside] = self.nodes[position[inside]] == owner[inside]
        self._position = np.where(owned, position, -1).astype(np.int32)
        del owner, position, owned, inside
        self._of_nets = RowRequest.make(comm, pins.net_map, names)
        self._of_nodes = RowRequest.make(comm, row_map, self.nodes)

    @collective
    def _arrays(self, part: LocalIndices) -> tuple[Any, ...]:
        """Return the arguments of the native library; `part` gives the parts of other owners."""
        owner_part = self._of_nets.rows(np.repeat(part, self._pins.kinds))
        outside = len(self.nodes) + self._number[owner_part] - self.num_own
        net_owner = np.where(self._position >= 0, self._position, outside).astype(np.int32)
        return (
            len(self._number),
            self.num_own,
            self._indptr,
            self._nets,
            net_owner,
            self._push,
            self.weights,
            self.part,
        )

    @collective
    def return_nets(self) -> None:
        """Return the nets to the ranks that own their nodes; this share then has none."""
        pins = self._pins
        owners = pins.row_map.owner(self.nodes)
        nets = _Named(self._nets, self._names)
        del self._nets
        indptr, pins.nets = redistribute_lists(self._comm, owners, self._indptr, nets)
        # Nets arrive in rank order, those of each rank in the order in which it got them.
        pins.begins = pins.begins.copy()
        pins.begins[self._order] = indptr[:-1]

    @cached_property
    def _is_empty(self) -> bool:
        return self.num_own == 0 or len(self.nodes) == 0

    def _count(self, arrays: tuple[Any, ...]) -> dict[str, Any]:
        if self._is_empty:
            return {
                "parts": np.zeros(len(self._push), np.int32),
                "owner_holds": np.zeros(len(self._push), np.uint8),
                "fetched": np.zeros(self.num_own, np.int64),
                "pushed": np.zeros(self.num_own, np.int64),
                "nearest": np.full(self.num_own * _volpart.NEAREST, -1, np.int32),
                "nearest_nets": np.zeros(self.num_own * _volpart.NEAREST, np.int64),
                "cut_pins": 0,
                "max_pair_rows": 0,
            }
        return _volpart.count_share(arrays)

    def _per_node(self, per_net: Array) -> Array:
        """Arrange counts of nets as (n, kinds) by the share's nodes; 0 without a pin in it."""
        counts = np.zeros((len(self.nodes), self._pins.kinds), np.int64)
        owned = np.flatnonzero(self._position >= 0)
        counts[self._position[owned], self._push[owned]] = per_net[owned]
        return counts

    @collective
    def count(self, part: LocalIndices) -> Counts:
        """Count everything from the pins; `part` are the parts of the nodes that this rank owns.

        Nodes of the share must be in parts of the share.
        """
        counts = self._count(self._arrays(part))
        readers = self._of_nets.add_back(counts["parts"]).reshape(-1, self._pins.kinds)
        sent = self._of_nodes.rows(readers) - self._per_node(counts["owner_holds"])
        num_parts = len(self._number)
        # Rows sent, rows received, and work of each part.
        sums = np.zeros((3, num_parts), np.int64)
        np.add.at(sums[0], self.part, sent[:, 0])
        if self._pins.kinds == 2:
            np.add.at(sums[1], self.part, sent[:, 1])
        sums[1, : self.num_own] += counts["fetched"]
        sums[0, : self.num_own] += counts["pushed"]
        np.add.at(sums[2], self.part, self.weights)
        heaviest = np.zeros(num_parts, np.int64)
        np.maximum.at(heaviest, self.part, self.weights)
        most = np.zeros(num_parts + 1, np.int64)
        most[self.parts], most[-1] = heaviest, counts["max_pair_rows"]
        total = np.zeros((3, num_parts), np.int64)
        total[:, self.parts] = sums
        pins = np.array([counts["cut_pins"]], np.int64)
        allreduce_sum(self._comm, total)
        allreduce_sum(self._comm, pins)
        allreduce_max(self._comm, most)
        loads = np.ascontiguousarray(total[:2].T)
        return Counts(
            loads,
            total[2],
            most[:-1],
            readers,
            *self._nearest(counts),
            int(pins[0]),
            int(most[-1]),
        )

    @collective
    def _nearest(self, counts_of_share: dict[str, Any]) -> tuple[LocalIndices, Offsets]:
        near = counts_of_share["nearest"].reshape(-1, _volpart.NEAREST)
        nearest = np.where(near >= 0, self.parts[near], -1).astype(np.int32)
        nets = counts_of_share["nearest_nets"].reshape(-1, _volpart.NEAREST)
        order = np.concatenate(self._comm.allgather(self.parts[: self.num_own]))
        parts, counts = np.empty((2, len(order), _volpart.NEAREST), np.int64)
        parts[order] = np.concatenate(self._comm.allgather(nearest))
        counts[order] = np.concatenate(self._comm.allgather(nets))
        return parts.astype(np.int32), counts

    @collective
    def receive_bound(self, average: float, imbalance: float) -> int:
        """Return a lower bound of the busiest receiver's rows that holds for every partition."""
        weights = self._of_nets.rows(np.repeat(self._pins.weights, self._pins.kinds))
        bound = np.zeros(1, np.int64)
        if not self._is_empty:
            arrays = (1, 1, self._indptr, self._nets, np.zeros(len(weights), np.int32))
            share = (*arrays, self._push, self.weights, np.zeros(len(self.nodes), np.int32))
            bound[0] = _volpart.receive_bound(share, weights, average, imbalance)
        allreduce_max(self._comm, bound)
        return int(bound[0])

    @collective
    def refine(
        self,
        part: LocalIndices,
        counts: Counts,
        options: tuple[str, str, float],
        bound: int,
        seed: int,
        cycle: tuple[int, int],
    ) -> None:
        """Move nodes among the parts of the share, on all ranks at the same time.

        `part` are the present parts of the nodes that this rank owns, with their `counts`;
        `options` are objective, preset and imbalance; `bound` is that of `receive_bound`, or 0 if
        receiving has no price; `cycle` is the number of this refinement, from 0, and their count.
        """
        arrays = self._arrays(part)
        own_counts = self._count(arrays)
        outside = self._of_nodes.rows(counts.readers) - self._per_node(own_counts["parts"])
        loads = np.zeros((len(self.nodes), 2), np.int64)
        loads[:, : self._pins.kinds] = outside
        del own_counts, outside
        last = np.zeros(2 * len(self._number) + 1, np.int64)

        def over_ranks(values: Array) -> Array:
            # Order by global part numbers, as each share numbers its own parts first. The last
            # number counts finished ranks, which keep taking part until all have finished.
            watchdog.beat()
            last[:-1].reshape(-1, 2)[self.parts] = values.reshape(-1, 2)
            total = last.copy()
            allreduce_sum(self._comm, total)
            self._ended = int(total[-1])
            return np.ascontiguousarray(total[:-1].reshape(-1, 2)[self.parts]).reshape(-1)

        if not self._is_empty:
            self.part = _volpart.refine_share(
                arrays,
                int(counts.work.sum()),
                loads.reshape(-1),
                np.ascontiguousarray(counts.loads[self.parts]).reshape(-1),
                bound,
                *options,
                seed,
                cycle,
                over_ranks,
            )
        last[-1] = 1
        self._ended = 0
        while self._ended < self._comm.size:
            over_ranks(last[:-1].reshape(-1, 2)[self.parts].reshape(-1))

    @collective
    def bring_home(self, part: LocalIndices) -> LocalIndices:
        """Send the parts of the share's nodes to their owners; return `part` updated."""
        row_map = self._pins.row_map
        owners = row_map.owner(self.nodes)
        labels = self.parts[self.part].astype(np.int32)
        nodes, labels_received = redistribute(self._comm, owners, self.nodes, labels)
        refined = part.copy()
        refined[nodes - row_map.start] = labels_received
        return refined
