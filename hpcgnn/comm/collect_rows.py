"""Collect the rows of all ranks on rank 0, in an order of choice, a piece at a time.

Nodes are distributed in the order of the parts. `in_order` sorts rows over the ranks by a key, so
that rank 0's rows come first, then rank 1's. `RowStream` then passes them through rank 0, which
never holds more than a piece.
"""

import math
from collections.abc import Iterator

import numpy as np

from hpcgnn import watchdog
from hpcgnn.comm import Communicator, ProcessGrid, redistribute
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, GlobalIndices, LocalIndices

PIECE_BYTES = 32 << 20
_SAMPLES_PER_RANK = 64


@collective
def in_order(layer: Communicator, keys: GlobalIndices, *arrays: Array) -> tuple[Array, ...]:
    """Sort rows over the ranks by key, and rows with equal keys by rank and position.

    This is a sample sort; if few keys repeat, ranks end up with about equally many rows. `keys`
    (m,) int64 and `arrays` (m, ...) belong to this rank's rows; dtypes and trailing shapes are
    equal on all ranks. Returns this rank's sorted rows; its keys are below those of the next rank.
    """
    sorted_keys, *rows = redistribute(layer, owners_in_order(layer, keys), keys, *arrays)
    order = np.argsort(sorted_keys, kind="stable")
    return tuple(column[order] for column in rows)


@collective
def owners_in_order(layer: Communicator, keys: GlobalIndices) -> LocalIndices:
    """Return (m,) int32 the ranks that keys are sorted to; equal keys go to one rank."""
    return np.searchsorted(_bounds(layer, keys), keys, side="right").astype(np.int32)


def _bounds(layer: Communicator, keys: GlobalIndices) -> GlobalIndices:
    """Return (ranks - 1,) the keys at which the rows of ranks 1, 2, ... begin."""
    if layer.size == 1:
        return np.zeros(0, np.int64)
    total = int(layer.allreduce(len(keys)))
    num_samples = _SAMPLES_PER_RANK * layer.size
    # Ranks give samples in proportion to their rows, so that the samples represent all rows.
    num_local = min(len(keys), -(-num_samples * len(keys) // max(total, 1)))
    positions = (np.arange(num_local) * 2 + 1) * len(keys) // max(2 * num_local, 1)
    samples = np.sort(np.concatenate(layer.allgather(np.sort(keys)[positions])))
    cuts = np.arange(1, layer.size) * len(samples) // layer.size
    bounds: GlobalIndices = samples[cuts] if len(samples) else np.zeros(layer.size - 1, np.int64)
    return bounds


class RowStream:
    """Yields the rows of all ranks, in rank order, in pieces on rank 0; other ranks yield nothing.

    Use it as a context manager and iterate over it on every rank. If rank 0 leaves the block early,
    after an error, the other ranks stop without sending the rest. `arrays` (m, ...) have equal
    dtypes and trailing shapes on all ranks; a piece has about `piece_bytes`.
    """

    @collective
    def __init__(self, layer: Communicator, *arrays: Array, piece_bytes: int = PIECE_BYTES) -> None:
        self._layer, self._arrays = layer, arrays
        row_bytes = sum(array.itemsize * math.prod(array.shape[1:]) for array in arrays)
        self._step = max(1, piece_bytes // max(1, row_bytes))
        counts = layer.gather(len(arrays[0]), root=0) or []
        self._unsent = dict(enumerate(counts[1:], start=1))

    def __enter__(self) -> "RowStream":
        return self

    def __exit__(self, *exception: object) -> None:
        for source, count in self._unsent.items():
            if count > 0:
                self._layer.send(False, dest=source)

    @collective
    def __iter__(self) -> Iterator[tuple[Array, ...]]:
        """Yield the pieces on rank 0; send them elsewhere."""
        if self._layer.rank > 0:
            self._send_when_asked()
            return
        yield from self._own_pieces()
        for source, count in list(self._unsent.items()):
            for start in range(0, count, self._step):
                yield self._fetch(source, min(self._step, count - start))

    def _own_pieces(self) -> Iterator[tuple[Array, ...]]:
        for start in range(0, len(self._arrays[0]), self._step):
            yield tuple(array[start : start + self._step] for array in self._arrays)

    def _fetch(self, source: int, rows: int) -> tuple[Array, ...]:
        watchdog.beat()
        self._layer.send(True, dest=source)
        piece = tuple(np.empty((rows, *array.shape[1:]), array.dtype) for array in self._arrays)
        for column in piece:
            self._layer.Recv(column, source=source)
        self._unsent[source] -= rows
        return piece

    def _send_when_asked(self) -> None:
        for piece in self._own_pieces():
            if not self._layer.recv(source=0):
                return
            watchdog.beat()
            for column in piece:
                self._layer.Send(np.ascontiguousarray(column), dest=0)


@collective
def in_order_of_ends(grid: ProcessGrid, ids: GlobalIndices, *rows: Array) -> tuple[Array, ...]:
    """Sort edges over the ranks of a layer by source, target and relation.

    `ids` (E, 2) or (E, 3) int64 hold these columns; `rows` (E, ...) are sorted with them.
    """
    ids, *rest = in_order(grid.layer, ids[:, 0], ids, *rows)
    # All edges of a source are on one rank.
    order = np.lexsort(ids.T[::-1])
    return ids[order], *(array[order] for array in rest)
