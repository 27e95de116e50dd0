"""The first linear map of a message, of which two thirds are done on nodes instead of edges."""

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
    """``W [x_i, x_j, e_ij] + b = W_t x_i + W_s x_j + W_e e_ij + b``, of one matrix W.

    ``W_t x_i`` and ``W_s x_j`` are made once for each node, the second before rows are fetched or
    after it, wherever they have fewer columns, or after it if `rows_travel`. Without states
    `state_width` is 0.
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
        """Return what a message is given of its target, (rows, out_width)."""
        return self._map(x, slice(self.ends[0]))

    def of_sources(self, x: Tensor) -> Tensor:
        """Return what is fetched for a message, of (rows, source_width)."""
        return self.map_sources(x) if self.maps_first else x

    def arrived(self, rows: Tensor) -> Tensor:
        """Return what a message is given of its source, (rows, out_width), of what was fetched."""
        return rows if self.maps_first else self.map_sources(rows)

    def map_sources(self, rows: Tensor) -> Tensor:
        """Return ``W_s x_j``, (rows, out_width)."""
        return self._map(rows, slice(*self.ends))

    def _map(self, rows: Tensor, columns: slice) -> Tensor:
        return arithmetic().linear(rows, self.weight[:, columns])

    @property
    def chain_map(self) -> ChainMap:
        """The map as a chain's first: what it adds to what the ends give."""
        reads_states = self.in_features > self.ends[1]
        return ChainMap(self.weight, self.bias, [slice(self.ends[1], None)] if reads_states else [])

    def forward(  # type: ignore[override]
        self, targets: Tensor, sources: Tensor, states: Tensor | None = None
    ) -> Tensor:
        """Return (edges, out_width) for what a message is given of an edge."""
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
        self, edges: EdgeInputs, mine: Tensor, x: Tensor, states: Tensor | None, *reduce: str
    ) -> tuple[Tensor, Tensor | None]:
        """Return what `reduce_messages` does.

        `mine` is (output rows, target_width), `x` (input rows, source_width).
        """
        first = self.first
        targets, sources = first.of_targets(mine), first.of_sources(x)
        # Where memory is short the rows wait, and not their maps beside them.
        maps = [(targets, first.of_targets, mine)]
        if first.maps_first:
            maps.append((sources, first.of_sources, x))
        with rematerialised(*(maps if edges.operator.states_again else ())):
            return reduce_messages(
                edges, self, targets=targets, sources=sources, states=states, reduce=reduce
            )


class EdgePerceptron(EdgeNetwork):
    """``[e_ij +] MLP [x_i, x_j, e_ij]``, which is the new state too where the state is added.

    `rest` follows the first map; None: nothing. With `residual` the edge's state is added. Where it
    `keeps`, what the maps give waits for the backward pass, and is not made again.
    """

    def __init__(
        self,
        first: EdgeLinear,
        rest: Perceptron | None = None,
        *,
        residual: bool = False,
        keeps: bool = False,
    ) -> None:
        super().__init__(first)
        self.rest, self.residual, self.keeps = rest, residual, keeps

    @override
    def chain(self) -> Chain:
        if self.rest is None:
            return Chain([self.first.chain_map], "relu", residual=self.residual)
        return self.rest.chain(self.first.chain_map, residual=self.residual)

    def forward(self, targets: Tensor, sources: Tensor, states: Tensor | None) -> EdgeResult:
        """Return the messages (edges, width), and the new states."""
        inputs = [] if states is None else [states]
        message = self.chain().whole(inputs, [targets, sources])
        return EdgeResult(message, states=message if self.residual else None)
