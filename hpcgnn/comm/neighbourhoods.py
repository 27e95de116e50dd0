"""Neighbourhood communicators, reused by later plans once no rank uses them any more."""

import gc
import hashlib
import weakref
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm.mpi import MPI, Communicator
from hpcgnn.comm.transfer import allreduce_max, allreduce_xor
from hpcgnn.spmd import collective
from hpcgnn.typing import LocalIndices

_MOST_UNUSED = 64
"""Number of communicators above which unused ones are freed."""


@dataclass
class _Entry:
    """A communicator, the hash of its graph of neighbours, and its user on this rank."""

    comm: "MPI.Distgraphcomm"
    graph: bytes
    user: "weakref.ref[MPI.Distgraphcomm]"


class Neighbourhoods:
    """The neighbourhood communicators within one communicator, the `layer`.

    MPICH and its derivatives allow 2,048 communicators in a process, and a run on sampled subgraphs
    makes plans in every step. Each rank garbage-collects a plan at a different time, so ranks agree
    on which communicators are in use when they request the next one.
    """

    def __init__(self, layer: Communicator) -> None:
        self._layer = layer
        self._entries: list[_Entry] = []
        self._limit = _MOST_UNUSED

    def __len__(self) -> int:
        """Return the number of communicators that exist."""
        return len(self._entries)

    @collective
    def of(self, peers: LocalIndices) -> "MPI.Distgraphcomm":
        """Return a communicator whose neighbours are `peers`, and which has no other user.

        It is in use as long as the returned object lives.
        """
        # Identify the whole graph by a hash that all ranks know, so that no rank has to store it.
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
        entry = _Entry(comm, name, weakref.ref(comm))
        self._entries.append(entry)
        return self._hand_out(entry)

    def _hand_out(self, entry: _Entry) -> "MPI.Distgraphcomm":
        handle = MPI.Distgraphcomm(entry.comm)
        entry.user = weakref.ref(handle)
        return handle

    @collective
    def _in_use(self, entries: list[_Entry]) -> list[bool]:
        """Return for each entry whether any rank uses it."""
        in_use = np.array([entry.user() is not None for entry in entries], np.int32)
        if len(in_use):
            allreduce_max(self._layer, in_use)
        return [bool(flag) for flag in in_use]

    @collective
    def _free_unused(self) -> None:
        # Plans in reference cycles live until Python collects the cycles.
        gc.collect()
        in_use = self._in_use(self._entries)
        for entry, keep in zip(self._entries, in_use, strict=True):
            if not keep:
                entry.comm.Free()
        self._entries = [entry for entry, keep in zip(self._entries, in_use, strict=True) if keep]
        self._limit = max(_MOST_UNUSED, 2 * len(self._entries))

    @collective
    def close(self) -> None:
        """Free all communicators, those still in use too."""
        for entry in self._entries:
            entry.comm.Free()
        self._entries = []
