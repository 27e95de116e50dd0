"""Edges whose sums have equal bits at any distribution of the nodes.

Those at targets add up in one order, by the number of the source; those at sources, which may be
anywhere, as integers.
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
    """Edges in an order that does not depend on ranks.

    `order` (E,) int32 are the edges by target, then by source, those of one pair as they are in the
    store; `ends` (E,) int32 are their targets, in that order.
    """

    @collective
    @override
    def __init__(self, *given: Any, states_again: bool = False) -> None:
        super().__init__(*given, states_again=states_again)
        places = source_places(self)
        # Numbers below 2^53, which float64 holds exactly.
        numbers = with_ghosts(self, self.column_numbers.astype(np.float64)[:, None])[places, 0]
        order = np.lexsort((numbers, self.targets))
        self.order, self.ends = order.astype(np.int32), self.targets[order].astype(np.int32)
        self._sources = places[order].astype(np.int32)
        self._count()

    @collective
    def source_rows(self, rows: FloatArray, kept: list[FloatArray] | None) -> FloatArray:
        """Return (E, width) the rows of the edges' sources, in `order`.

        `rows` are (columns, width). `kept` is what was fetched before, or empty: then it is put
        there. None: it is not kept.
        """
        rows_at_hand = kept[0] if kept else with_ghosts(self, rows)
        if kept is not None and not kept:
            kept.append(rows_at_hand)
        out = np.empty((self.num_edges, rows.shape[1]), rows.dtype)
        kernels.gather_rows(rows_at_hand, self._sources, out)
        return out

    @collective
    def sums_of_sources(self, of_edges: FloatArray) -> FloatArray:
        """Return (columns, width) the sums of (E, width), in `order`, at the edges' sources."""
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
    """The edges of graphs each of which a rank has whole: all add up in one order."""

    @override
    def _count(self) -> None:
        """Count nothing: there are no integers."""

    @collective
    @override
    def sums_of_sources(self, of_edges: FloatArray) -> FloatArray:
        return self._added(of_edges)
