"""The context that all parts of a run on one rank share: ranks, configuration, trace, device."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from hpcgnn.autograd import ExactArithmetic, IntegerArithmetic, computing_with
from hpcgnn.comm import ProcessGrid
from hpcgnn.config.config import Config
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.graph.device import CPU, Device, open_device
from hpcgnn.graph.inputs import Scales
from hpcgnn.graph.operators import Operators, make_operators
from hpcgnn.nn import find_model
from hpcgnn.operator import Aggregation
from hpcgnn.sparse import EdgesOutside, HiddenEdges
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder


@dataclass(frozen=True, eq=False)
class Context:
    """The context that all parts of a run on one rank share.

    Models, features and operators are on the `device`. `aggregations` are those to make operators
    for if the configuration's model does not name them; else empty. Graphs are read without the
    edges `hidden`. `takes_sparse` tells whether sparse features can be used; `scales` are the
    scales of features.
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
    def required_aggregations(self) -> tuple[Aggregation, ...]:
        """The aggregations to make operators for; at least one.

        A model that names none, because it reads edges itself or only rows, gets sums.
        """
        named = self.aggregations or find_model(self.config.model.name).aggregations
        return named or (Aggregation.SUM_IN,)

    def operators(self, *, wide: bool = False) -> Operators:
        """Return the factory of operators of the whole graph; if `wide`, for float64 on the CPU."""
        grid = self.grid.unreplicated() if self.grid.groups > 1 else self.grid
        travel, device = (self.config.exchange, CPU) if wide else (self.config.travel, self.device)
        make = make_operators(grid, travel, self.trace, device)
        return make.exact() if self.config.train.reproducible else make

    def operators_of_subgraphs(self) -> Operators:
        """Return the factory of operators of graphs that each lie on a single rank."""
        make = make_operators(self.grid.alone(), ExchangeConfig(), self.trace, self.device)
        if self.config.train.reproducible:
            return make.ordered(ExactArithmetic(self.grid, self.trace))
        return make


def computing_as(
    grid: ProcessGrid, config: Config, trace: TraceRecorder | None = None
) -> AbstractContextManager[None]:
    """Return a context manager for the arithmetic of models.

    It is exact with train.reproducible, and rounds to integers in training with train.products.
    """
    if config.train.reproducible:
        return computing_with(ExactArithmetic(grid, trace))
    if config.train.products == "int8":
        return computing_with(IntegerArithmetic(lambda: grid.run_position.trains))
    return nullcontext()
