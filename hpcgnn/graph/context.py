"""What travels with every part of a run on one rank: ranks, configuration, recorder, device."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from hpcgnn.autograd import ExactArithmetic, computing_with
from hpcgnn.comm import ProcessGrid
from hpcgnn.config.config import Config
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.graph.device import CPU, Device, open_device
from hpcgnn.graph.inputs import Scales
from hpcgnn.graph.products import Operators, make_operators
from hpcgnn.nn import find_model
from hpcgnn.operator import Aggregation
from hpcgnn.sparse import EdgesOutside, HiddenEdges
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder


@dataclass(frozen=True, eq=False)
class Context:
    """What travels with every part of a run on one rank.

    Models, features and operators are on the `device`. `aggregations` are those to make operators
    of, where no model of the configuration says which; else empty. Graphs are read without the
    edges `hidden`. `takes_sparse`: what the graph is for takes features that are sparse;
    `scales` are what features are scaled by.
    """

    grid: ProcessGrid
    config: Config
    trace: TraceRecorder = field(default_factory=TraceRecorder.off)
    device: Device = CPU
    aggregations: tuple[Aggregation, ...] = ()
    hidden: HiddenEdges | EdgesOutside | None = None
    takes_sparse: bool = False
    scales: Scales = field(default_factory=Scales)

    @classmethod
    @collective
    def open(cls, grid: ProcessGrid, config: Config, trace: TraceRecorder) -> "Context":
        """Return the context with the device of the configuration; see `open_device`."""
        return cls(grid, config, trace, open_device(grid, config, trace))

    @property
    def wanted(self) -> tuple[Aggregation, ...]:
        """The aggregations to make operators of, on a graph that has them all; at least one.

        A model that names none, since it reads edges itself or nothing but rows, has sums.
        """
        named = self.aggregations or find_model(self.config.model.name).aggregations
        return named or (Aggregation.SUM_IN,)

    def operators(self, *, wide: bool = False) -> Operators:
        """Return what makes operators of the whole graph; `wide` ones are for float64, on CPUs."""
        grid = self.grid.unreplicated() if self.grid.groups > 1 else self.grid
        travel, device = (self.config.exchange, CPU) if wide else (self.config.travel, self.device)
        make = make_operators(grid, travel, self.trace, device)
        return make.exact() if self.config.train.reproducible else make

    def operators_of_subgraphs(self) -> Operators:
        """Return what makes operators of graphs each of which a rank has whole."""
        make = make_operators(self.grid.alone(), ExchangeConfig(), self.trace, self.device)
        if self.config.train.reproducible:
            return make.ordered(ExactArithmetic(self.grid, self.trace))
        return make


def computing_as(
    grid: ProcessGrid, config: Config, trace: TraceRecorder | None = None
) -> AbstractContextManager[None]:
    """Return the context in which models compute as the configuration says."""
    if config.train.reproducible:
        return computing_with(ExactArithmetic(grid, trace))
    return nullcontext()
