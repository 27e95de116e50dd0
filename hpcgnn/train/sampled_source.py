"""Where sampled training takes its graph from: one that all ranks share, or a part for each."""

from dataclasses import dataclass
from typing import Any, Protocol

from hpcgnn.comm import ProcessGrid
from hpcgnn.nn import Aggregations
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.config import Config
from hpcgnn.train.sampled_graph import HomeRows, SampledGraph, share_whole
from hpcgnn.train.sampled_input import BatchInput, SubgraphInput
from hpcgnn.train.sampled_part import choose_part, fetch_part
from hpcgnn.train.sampled_views import SampledViews

__all__ = ["PartSource", "Sampling", "SamplingSource", "SharedSource"]


@dataclass(frozen=True, eq=False)
class Sampling:
    """What the steps of some epochs are made of.

    Parameters
    ----------
    graph
        What is sampled.
    views
        Makes what models see of it.
    input
        Draws from it.
    """

    graph: SampledGraph
    views: SampledViews
    input: BatchInput | SubgraphInput


class SamplingSource(Protocol):
    """Gives what an epoch samples from: a function of seed and epoch."""

    def at(self, seed: int, epoch: int) -> Sampling:
        """Return it; collective."""
        ...

    def details(self) -> dict[str, Any]:
        """Return this rank's sizes for the summary; not collective."""
        ...


class SharedSource:
    """One graph for all ranks and epochs.

    Collective.

    Parameters
    ----------
    grid, config, home
        The ranks, the configuration, the rows of this rank.
    wanted
        The aggregations of the model.
    trace
        Where times are recorded.
    """

    def __init__(
        self,
        grid: ProcessGrid,
        config: Config,
        home: HomeRows,
        wanted: tuple[Aggregations, ...],
        trace: TraceRecorder,
    ) -> None:
        with trace.span("read.whole"):
            graph = share_whole(grid, home)
        views = SampledViews(grid, graph, wanted, config, trace, home.device)
        with trace.span("plan.sampling"):
            if config.sampling.sampler == "neighbour":
                drawn = BatchInput(grid, graph, config.sampling, parts=False)
                self._sampling = Sampling(graph, views, drawn)
            else:
                subgraphs = SubgraphInput.of_whole(grid, graph, config.sampling)
                self._sampling = Sampling(graph, views, subgraphs)

    def at(self, seed: int, epoch: int) -> Sampling:  # noqa: ARG002
        """Return the same for all.

        Not collective.
        """
        return self._sampling

    def details(self) -> dict[str, Any]:
        """Return what waited in the pool.

        Not collective.
        """
        return {"pool_bytes_max": self._sampling.input.pool_bytes}


class PartSource:
    """A part of the graph and its halo for each rank, another one from time to time.

    Not collective.

    Parameters
    ----------
    grid, config, home, wanted, trace
        As for `SharedSource`.
    """

    def __init__(
        self,
        grid: ProcessGrid,
        config: Config,
        home: HomeRows,
        wanted: tuple[Aggregations, ...],
        trace: TraceRecorder,
    ) -> None:
        self._grid, self._config, self._home = grid, config, home
        self._wanted, self._trace = wanted, trace
        self._sampling: Sampling | None = None
        self._period = (-1, -1)
        self._sizes = dict.fromkeys(("part_nodes", "halo_nodes", "part_bytes"), 0)
        self._moved = self._pool_bytes = 0

    def at(self, seed: int, epoch: int) -> Sampling:
        """Return this rank's part in an epoch; fetch it when the epoch begins a period.

        Collective.
        """
        every = self._config.sampling.reshuffle_epochs
        period = (seed, epoch // every if every > 0 else 0)
        if self._sampling is None or period != self._period:
            self._keep_peaks()
            # Two parts at a time would not fit where one does.
            self._sampling = None
            self._sampling, self._period = self._fetch(*period), period
        return self._sampling

    def details(self) -> dict[str, Any]:
        """Return what waited in the pools, and the largest part with its halo.

        Not collective.
        """
        self._keep_peaks()
        moved = {"reshuffle_rows": self._moved}
        return {"pool_bytes_max": self._pool_bytes, **self._sizes, **moved}

    def _keep_peaks(self) -> None:
        if self._sampling is not None:
            self._pool_bytes = max(self._pool_bytes, self._sampling.input.pool_bytes)

    def _fetch(self, seed: int, period: int) -> Sampling:
        grid, config, trace = self._grid, self._config, self._trace
        options = config.sampling
        with trace.span("plan.reshuffle"):
            share = options.reshuffle_share
            part = choose_part(grid, self._home.row_map, share, seed, period)
            graph, moved = fetch_part(grid, self._home, part, options.halo)
        sizes = {
            "part_nodes": len(part),
            "halo_nodes": graph.edges.num_nodes - len(part),
            "part_bytes": graph.nbytes,
        }
        self._sizes = {key: max(size, self._sizes[key]) for key, size in sizes.items()}
        self._moved += moved
        views = SampledViews(grid, graph, self._wanted, config, trace, self._home.device)
        with trace.span("plan.sampling"):
            if options.sampler == "neighbour":
                return Sampling(graph, views, BatchInput(grid, graph, options, parts=True))
            return Sampling(graph, views, SubgraphInput.of_part(grid, graph, options))
