"""Messages of modules that are chains, computed by fused kernels on blocks of edges."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from hpcgnn import kernels
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.messages.chain import Chain, ChainRun, Ends, Room
from hpcgnn.kernels import EdgeEnds


class ChainEdges(NamedTuple):
    """A block of edges.

    `ends` are the rows at their ends, `states` (B, F) or None; `place` is their slice of all edges.
    """

    ends: Ends
    states: Tensor | None
    place: slice

    @property
    def inputs(self) -> Sequence[Tensor]:
        """The inputs of the chain."""
        return [] if self.states is None else [self.states]


class EdgeChain:
    """Runs a chain on blocks of edges.

    `like` is a tensor with the dtype and memory of its inputs; `totals` are gradients of
    parameters, keyed by the parameters' `id`, that are added to.
    """

    def __init__(
        self, chain: Chain, like: Tensor, totals: Mapping[int, Tensor] | None = None
    ) -> None:
        self._chain, self._run, self._like = chain, ChainRun(chain, like, totals), like
        self.block_rows = chain.block_rows(like.element_size())
        self.width = self._run.widths[-1]
        self.gives_states = chain.residual
        self._room: Room | None = None

    def keep(self, num_edges: int, *, always: bool) -> Room | None:
        """Return memory for the maps' results for all edges, if it is small or `always`."""
        small = self._chain.is_small(num_edges, self._like.element_size())
        return self._run.room(num_edges) if always or small else None

    def messages(self, edges: ChainEdges, kept: Room | None, out: Tensor | None = None) -> Tensor:
        """Return the messages (B, width), in `out` if given; `kept` takes the maps' results."""
        room = self._rows(edges, kept)
        self._run.forward(edges.inputs, edges.ends, room)
        return self._result(edges, room, out)

    def recompute(self, edges: ChainEdges, kept: Room | None, *, reads: bool) -> Tensor | None:
        """Recompute what `add_gradients` needs, unless kept; return the messages if `reads`."""
        room = self._rows(edges, kept)
        if kept is None:
            run = self._run.forward if reads else self._run.recompute
            run(edges.inputs, edges.ends, room)
        return self._result(edges, room, None) if reads else None

    def gathered(self, shared: Tensor, target_ids: Tensor, beside: Tensor | None) -> Tensor:
        """Return the edges' rows of `shared` (N, width), plus `beside` (B, width) if given."""
        memory, rows = memory_of(shared), shared.to(self._like.dtype).contiguous()
        out = memory.empty(rows, (len(target_ids), self.width))
        source, ids, gathered = (memory.array(tensor) for tensor in (rows, target_ids, out))
        if beside is None:
            kernels.gather_rows(source, ids, gathered)
        else:
            kernels.combine_rows(memory.array(beside), gathered, ends=EdgeEnds(source, ids))
        return out

    def add_gradients(
        self, edges: ChainEdges, kept: Room | None, gradient: Tensor, of: ChainEdges
    ) -> None:
        """Add the gradients of parameters and ends, and write those of the states.

        `gradient` (B, width) is that of the messages, `of` has those of the block, None if not
        needed.
        """
        of_inputs = [of.states] if edges.inputs else []
        room = self._rows(edges, kept)
        self._run.backward(edges.inputs, of_inputs, of.ends, room, gradient.to(self._like.dtype))

    def _result(self, edges: ChainEdges, room: Room, out: Tensor | None) -> Tensor:
        if out is None:
            rows = edges.place.stop - edges.place.start
            out = memory_of(self._like).empty(self._like, (rows, self.width))
        self._run.result(edges.inputs, room, out)
        return out

    def _rows(self, edges: ChainEdges, kept: Room | None) -> Room:
        if kept is not None:
            return kept.rows(edges.place)
        if self._room is None:
            self._room = self._run.room(self.block_rows)
        return self._room.rows(slice(edges.place.stop - edges.place.start))
