"""Edges whose sums have equal bits for every distribution of the nodes.

Sums at targets are taken in one order, by the number of the source. Sums at sources, whose edges
are spread over ranks, are taken in integers.
"""

from typing import Any

import numpy as np
from typing_extensions import override

from hpcgnn import kernels
from hpcgnn.messages.ghosts import source_places, take_home, with_ghosts
from hpcgnn.messages.operator import MessageOperator
from hpcgnn.spmd import collective
from hpcgnn.spmm import IntegerSums
from hpcgnn.typing import Array, FloatArray


class ExactMessages(MessageOperator):
    """Edges in an order that does not depend on the number of ranks.

    `order` (E,) int32 sorts the edges by target, then by source; parallel edges keep their order in
    the store. `ends` (E,) int32 are the targets in that order.
    """

    @collective
    @override
    def __init__(self, *arguments: Any, states_again: bool = False) -> None:
        super().__init__(*arguments, states_again=states_again)
        sources = source_places(self)
        # Numbers below 2^53, which float64 holds exactly.
        numbers = with_ghosts(self, self.column_numbers.astype(np.float64)[:, None])[sources, 0]
        order = np.lexsort((numbers, self.targets))
        self.order, self.ends = order.astype(np.int32), self.targets[order].astype(np.int32)
        self._sources = sources[order].astype(np.int32)
        self._count()

    @collective
    def source_rows(self, rows: FloatArray, kept: list[FloatArray] | None) -> FloatArray:
        """Return (E, width) the rows of the edges' sources, in `order`.

        `rows` are (columns, width). Fetched rows are taken from the list `kept`, or appended to it
        if it is empty; None: they are fetched and not kept.
        """
        with_remote = kept[0] if kept else with_ghosts(self, rows)
        if kept is not None and not kept:
            kept.append(with_remote)
        out = np.empty((self.num_edges, rows.shape[1]), rows.dtype)
        kernels.gather_rows(with_remote, self._sources, out)
        return out

    @collective
    def sums_of_sources(self, of_edges: FloatArray) -> FloatArray:
        """Return (columns, width) the sums at sources of edge values (E, width), in `order`."""
        return self._sums.run(self._added, of_edges)

    @collective
    def _count(self) -> None:
        ones = np.ones((self.num_edges, 1), np.int32)
        self._sums = IntegerSums.of(self.grid, self.trace, self._added(ones))

    @collective
    def _added(self, of_edges: Array) -> FloatArray:
        dtype = np.float64 if of_edges.dtype == np.int32 else of_edges.dtype
        count = sum(part.block.shape[1] for part in self.parts)
        sums = np.zeros((count, of_edges.shape[1]), dtype)
        kernels.scatter_add_rows(of_edges, self._sources, sums)
        return take_home(self, sums)


class OrderedMessages(ExactMessages):
    """The edges of graphs that are each whole on one rank, so all sums have one order."""

    @override
    def _count(self) -> None:
        """Do nothing, as no integer sums are needed."""

    @collective
    @override
    def sums_of_sources(self, of_edges: FloatArray) -> FloatArray:
        return self._added(of_edges)
