"""The section of the configuration for sampled subgraphs."""

from dataclasses import dataclass
from typing import Annotated

from hpcgnn.config.options import (
    Count,
    Natural,
    Part,
    Range,
    check_values,
    option,
    require,
)
from hpcgnn.support import Trait, lacks, needs

_OF_SUBGRAPHS = lacks({Trait.OTHER_ENDS: "it gives subgraphs, whose own nodes are the wrong ends"})
_BY_NEIGHBOURS = lacks(
    {
        Trait.REVERSE_EDGES: "it draws along one direction of edges",
        Trait.EDGE_STATES: "it draws other edges for each layer",
    }
)
SAMPLERS = dict.fromkeys(
    ("frontier", "multidimensional", "walk", "edge", "node"), _OF_SUBGRAPHS
) | {"neighbour": _BY_NEIGHBOURS}
"""Names of samplers, with what they lack."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """What a step trains on, with train.task=sampled."""

    sampler: str = option(
        "frontier",
        f"{', '.join(SAMPLERS)} (layer-wise fan-out from batches of training nodes)",
        values=tuple(SAMPLERS),
        traits=SAMPLERS,
    )
    budget: Count = option(
        8000, "nodes drawn for a subgraph, repeats included; neighbour: training nodes of a batch"
    )
    walkers: Count = option(1000, "of the frontier and of the multidimensional walk")
    enlargement: Annotated[float, Range(lambda value: value > 1, "must be above 1")] = option(
        3.0, "of the frontier's Dashboard over what it holds at one time"
    )
    walk_length: Natural = option(2, "steps of a walk")
    fan_outs: tuple[int, ...] = option(
        (), "neighbour: neighbours drawn in each aggregation of the model, the first one first"
    )
    subgraphs: Count = option(
        1,
        "subgraphs of a step, shared among the ranks; neighbour, with train.reproducible: pieces "
        "of a batch, shared likewise",
    )
    topology: str = option(
        "shared",
        "shared: every host holds the whole graph; partitioned: a rank holds a part, and draws its "
        "share of each subgraph there",
        values=("shared", "partitioned"),
        traits=needs(
            Trait.PARTS,
            lacks={
                Trait.EQUAL_BITS: "ranks draw from parts of their own",
                Trait.PLANNED: "what ranks fetch of their parts is not counted",
            },
        ),
    )
    halo: Natural = option(
        1, "partitioned: steps from the part within which a rank holds nodes too"
    )
    reshuffle_epochs: Natural = option(
        0,
        "partitioned: epochs between reshuffles of parts; 0: none",
        only_with={"topology": ("partitioned",)},
    )
    reshuffle_share: Part = option(
        0.1, "partitioned: chance of a node to leave its rank's part of the store for a random one"
    )
    steps: Natural = option(0, "steps of an epoch; 0: as many as draw the graph's nodes once")
    coverage: Natural = option(
        20,
        "how often a node is in the subgraphs that are counted before training, on average; they "
        "weigh losses and edges so that sums estimate the whole graph's; 0: do neither",
    )
    estimator: str = option(
        "unbiased",
        "what the counts make of sums: unbiased, or ratio (over the weights that were sampled: "
        "less noise, a small bias)",
        values=("unbiased", "ratio"),
    )
    clip: Count = option(
        1,
        "drop random nodes of a subgraph down to a multiple of this; 1: none, since where rows "
        "begin does not depend on their number here",
    )
    threads: Natural = option(1, "threads of a rank that sample ahead of training; 0: do not")
    ahead: Count = option(4, "subgraphs that a rank holds ahead of training")

    def __post_init__(self) -> None:
        check_values("sampling", self)
        by_layer = self.sampler == "neighbour"
        positive = all(fan_out > 0 for fan_out in self.fan_outs) and bool(self.fan_outs) == by_layer
        text = "neighbour needs one a layer, as [10, 5]; other samplers need none"
        require(positive, "sampling.fan_outs", self.fan_outs, text)
