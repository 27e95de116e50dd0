"""The first linear map of a message, most of which is computed once per node, not per edge."""

from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import (
    Chain,
    ChainMap,
    EdgeInputs,
    EdgeModule,
    EdgeResult,
    arithmetic,
    reduce_messages,
    rematerialised,
)
from hpcgnn.nn.perceptron import Perceptron
from hpcgnn.spmd import collective


class EdgeLinear(nn.Linear):
    """``W [x_i, x_j, e_ij] + b = W_t x_i + W_s x_j + W_e e_ij + b``, with one matrix W.

    ``W_t x_i`` and ``W_s x_j`` are computed once for each node. The latter is computed before rows
    are fetched if it has no more columns than them, otherwise, or with `rows_travel`, after.
    Without edge states `state_width` is 0.
    """

    def __init__(
        self,
        target_width: int,
        source_width: int,
        state_width: int,
        out_width: int,
        *,
        rows_travel: bool = False,
    ) -> None:
        super().__init__(target_width + source_width + state_width, out_width)
        self.ends = target_width, target_width + source_width
        self.maps_first = out_width <= source_width and not rows_travel

    def of_targets(self, x: Tensor) -> Tensor:
        """Return the targets' part of messages, (rows, out_width)."""
        return self._map(x, slice(self.ends[0]))

    def of_sources(self, x: Tensor) -> Tensor:
        """Return the rows to fetch for messages, given rows of sources (rows, source_width)."""
        return self.map_sources(x) if self.maps_first else x

    def arrived(self, rows: Tensor) -> Tensor:
        """Return the sources' part of messages, (rows, out_width), given the fetched rows."""
        return rows if self.maps_first else self.map_sources(rows)

    def map_sources(self, rows: Tensor) -> Tensor:
        """Return ``W_s x_j``, (rows, out_width)."""
        return self._map(rows, slice(*self.ends))

    def _map(self, rows: Tensor, columns: slice) -> Tensor:
        return arithmetic().linear(rows, self.weight[:, columns])

    @property
    def chain_map(self) -> ChainMap:
        """The part of the map for edge states, as the first map of a chain."""
        reads_states = self.in_features > self.ends[1]
        return ChainMap(self.weight, self.bias, [slice(self.ends[1], None)] if reads_states else [])

    def forward(  # type: ignore[override]
        self, targets: Tensor, sources: Tensor, states: Tensor | None = None
    ) -> Tensor:
        """Return (edges, out_width), given the targets' and sources' parts and edge states."""
        inner = targets + sources
        if states is None:
            return inner + arithmetic().for_rows(self.bias, len(inner))
        of_states = self.weight[:, self.ends[1] :]
        return inner + arithmetic().linear(states, of_states, self.bias)


class EdgeNetwork(EdgeModule):
    """A message that starts with an `EdgeLinear`; ``forward`` calls `first` with its arguments."""

    def __init__(self, first: EdgeLinear) -> None:
        super().__init__()
        self.first = first

    @override
    def arrived(self, rows: Tensor) -> Tensor:
        return self.first.arrived(rows)

    @collective
    def reduced(
        self, edges: EdgeInputs, own: Tensor, x: Tensor, states: Tensor | None, *reduce: str
    ) -> tuple[Tensor, Tensor | None]:
        """Reduce the messages of edges; see `reduce_messages`.

        `own` is (output rows, target_width), `x` (input rows, source_width).
        """
        first = self.first
        targets, sources = first.of_targets(own), first.of_sources(x)
        # To save memory, keep only the rows for the backward pass and recompute their maps.
        maps = [(targets, first.of_targets, own)]
        if first.maps_first:
            maps.append((sources, first.of_sources, x))
        with rematerialised(*(maps if edges.operator.states_again else ())):
            return reduce_messages(
                edges, self, targets=targets, sources=sources, states=states, reduce=reduce
            )


class EdgePerceptron(EdgeNetwork):
    """``[e_ij +] MLP [x_i, x_j, e_ij]``; with the state added, it is also the new state.

    `rest` follows the first map, if given. `residual` adds the edge's state.
    """

    def __init__(
        self, first: EdgeLinear, rest: Perceptron | None = None, *, residual: bool = False
    ) -> None:
        super().__init__(first)
        self.rest, self.residual = rest, residual

    @override
    def chain(self) -> Chain:
        if self.rest is None:
            return Chain([self.first.chain_map], "relu", residual=self.residual)
        return self.rest.chain(self.first.chain_map, residual=self.residual)

    def forward(self, targets: Tensor, sources: Tensor, states: Tensor | None) -> EdgeResult:
        """Return the messages (edges, width), which with `residual` are also the new states."""
        inputs = [] if states is None else [states]
        message = self.chain().whole(inputs, [targets, sources])
        return EdgeResult(message, states=message if self.residual else None)
