"""Communicators of neighbours, used again by later plans once no rank needs them any more."""

import gc
import hashlib
import weakref
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm.mpi import MPI, Communicator
from hpcgnn.comm.transfer import allreduce_max, allreduce_xor
from hpcgnn.spmd import collective
from hpcgnn.typing import LocalIndices

_KEPT = 64
"""Communicators from which on the unused ones are freed."""


@dataclass
class _Made:
    """A communicator, the graph of neighbours that it was made for, and who uses it here."""

    comm: "MPI.Distgraphcomm"
    graph: bytes
    user: "weakref.ref[MPI.Distgraphcomm]"


class Neighbourhoods:
    """The communicators of neighbours in one communicator, the `layer`.

    MPICH and what is made of it have 2,048 communicators in a process, and a run on sampled
    subgraphs makes plans in every step. A plan ends when it is collected, which is at another time
    on every rank; so the ranks agree on what is in use when they ask for the next one.
    """

    def __init__(self, layer: Communicator) -> None:
        self._layer = layer
        self._entries: list[_Made] = []
        self._limit = _KEPT

    def __len__(self) -> int:
        """Return the number of communicators."""
        return len(self._entries)

    @collective
    def of(self, peers: LocalIndices) -> "MPI.Distgraphcomm":
        """Return a communicator whose neighbours are `peers`, and which has no other user.

        It is in use for as long as the returned object lives.
        """
        # All ranks know which graph they form together from this, and nobody keeps the graph.
        group = np.array([self._layer.rank, *peers.tolist()], np.int64)
        graph = np.frombuffer(hashlib.blake2b(group.tobytes(), digest_size=16).digest(), np.int64)
        graph = graph.copy()
        allreduce_xor(self._layer, graph)
        name = graph.tobytes()
        if len(self._entries) >= self._limit:
            self._free_unused()
        alike = [entry for entry in self._entries if entry.graph == name]
        for candidate, in_use in zip(alike, self._in_use(alike), strict=True):
            if not in_use:
                return self._hand_out(candidate)
        ranks = peers.tolist()
        comm = self._layer.Create_dist_graph_adjacent(ranks, ranks)
        entry = _Made(comm, name, weakref.ref(comm))
        self._entries.append(entry)
        return self._hand_out(entry)

    def _hand_out(self, entry: _Made) -> "MPI.Distgraphcomm":
        handle = MPI.Distgraphcomm(entry.comm)
        entry.user = weakref.ref(handle)
        return handle

    @collective
    def _in_use(self, some: list[_Made]) -> list[bool]:
        """Return of each whether a rank uses it."""
        in_use = np.array([entry.user() is not None for entry in some], np.int32)
        if len(in_use):
            allreduce_max(self._layer, in_use)
        return [bool(flag) for flag in in_use]

    @collective
    def _free_unused(self) -> None:
        # Cycles with a plan in them keep it until Python looks for cycles.
        gc.collect()
        in_use = self._in_use(self._entries)
        for entry, keep in zip(self._entries, in_use, strict=True):
            if not keep:
                entry.comm.Free()
        self._entries = [entry for entry, keep in zip(self._entries, in_use, strict=True) if keep]
        self._limit = max(_KEPT, 2 * len(self._entries))

    @collective
    def close(self) -> None:
        """Free all; what was handed out ends with it."""
        for entry in self._entries:
            entry.comm.Free()
        self._entries = []
