"""The section of the configuration on prediction for whole graphs."""

from dataclasses import dataclass

from hpcgnn.config.options import Natural, check_values, option
from hpcgnn.nn import READOUTS


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphsConfig:
    """How rows of nodes become rows of graphs, and how many graphs a step trains on."""

    readout: str = option(
        "mean", f"of the nodes of a graph: {', '.join(READOUTS)}", values=tuple(READOUTS)
    )
    width: Natural = option(0, "columns of a node that are read out; 0: model.hidden")
    batch: Natural = option(
        64,
        "graphs of a step, dealt out to the ranks; 0: all of them at once, over the exchange of "
        "the whole store",
    )

    def __post_init__(self) -> None:
        check_values("graphs", self)
