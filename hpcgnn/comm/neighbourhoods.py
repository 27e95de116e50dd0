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
    """The communicators of neighbours in one communicator.

    MPICH and what is made of it have 2,048 communicators in a process, and a run on sampled
    subgraphs makes plans in every step. A plan ends when it is collected, which is at another time
    on every rank; so the ranks agree on what is in use when they ask for the next one.

    Parameters
    ----------
    layer
        The ranks among which neighbours are.
    """

    def __init__(self, layer: Communicator) -> None:
        self._layer = layer
        self._made: list[_Made] = []
        self._limit = _KEPT

    def __len__(self) -> int:
        """Return the number of communicators."""
        return len(self._made)

    @collective
    def of(self, peers: LocalIndices) -> "MPI.Distgraphcomm":
        """Return a communicator whose neighbours are `peers`, and which has no other user.

        It is in use for as long as the returned object lives.
        """
        # All ranks know which graph they form together from this, and nobody keeps the graph.
        mine = np.array([self._layer.rank, *peers.tolist()], np.int64)
        graph = np.frombuffer(hashlib.blake2b(mine.tobytes(), digest_size=16).digest(), np.int64)
        graph = graph.copy()
        allreduce_xor(self._layer, graph)
        name = graph.tobytes()
        if len(self._made) >= self._limit:
            self._free_unused()
        alike = [made for made in self._made if made.graph == name]
        for made, used in zip(alike, self._in_use(alike), strict=True):
            if not used:
                return self._hand_out(made)
        ranks = peers.tolist()
        comm = self._layer.Create_dist_graph_adjacent(ranks, ranks)
        made = _Made(comm, name, weakref.ref(comm))
        self._made.append(made)
        return self._hand_out(made)

    def _hand_out(self, made: _Made) -> "MPI.Distgraphcomm":
        handle = MPI.Distgraphcomm(made.comm)
        made.user = weakref.ref(handle)
        return handle

    @collective
    def _in_use(self, some: list[_Made]) -> list[bool]:
        """Return of each whether a rank uses it."""
        used = np.array([made.user() is not None for made in some], np.int32)
        if len(used):
            allreduce_max(self._layer, used)
        return [bool(each) for each in used]

    @collective
    def _free_unused(self) -> None:
        # Cycles with a plan in them keep it until Python looks for cycles.
        gc.collect()
        used = self._in_use(self._made)
        for made, keep in zip(self._made, used, strict=True):
            if not keep:
                made.comm.Free()
        self._made = [made for made, keep in zip(self._made, used, strict=True) if keep]
        self._limit = max(_KEPT, 2 * len(self._made))

    @collective
    def close(self) -> None:
        """Free all; what was handed out ends with it."""
        for made in self._made:
            made.comm.Free()
        self._made = []
