"""The configuration's section on sampled subgraphs."""

from dataclasses import dataclass
from typing import Annotated

from hpcgnn.config.options import Count, Natural, Part, Range, check_values, option, require
from hpcgnn.support import Trait, lacks, needs

_OF_SUBGRAPHS = lacks({Trait.OTHER_ENDS: "its negatives are the nodes of a subgraph"})
_BY_NEIGHBOURS = lacks(
    {
        Trait.REVERSE_EDGES: "it draws along one direction of edges",
        Trait.EDGE_STATES: "it draws other edges for each layer",
    }
)
SAMPLERS = dict.fromkeys(
    ("frontier", "multidimensional", "walk", "edge", "node"), _OF_SUBGRAPHS
) | {"neighbour": _BY_NEIGHBOURS}
"""Names of samplers, with the traits that they lack."""
_FRONTIERS = ("frontier", "multidimensional")


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """How subgraphs are sampled for a training step, with train.task=sampled."""

    sampler: str = option(
        "frontier",
        f"{', '.join(SAMPLERS)} (layer-wise fan-out from batches of training nodes)",
        values=tuple(SAMPLERS),
        traits=SAMPLERS,
    )
    budget: Count = option(
        8000, "nodes drawn for a subgraph, repeats included; neighbour: training nodes of a batch"
    )
    walkers: Count = option(
        1000,
        "walkers of the frontier and of the multidimensional walk",
        read_with={"sampler": _FRONTIERS},
    )
    enlargement: Annotated[float, Range(lambda value: value > 1, "must be above 1")] = option(
        3.0,
        "size of the frontier's Dashboard, relative to its contents at one time",
        read_with={"sampler": _FRONTIERS},
    )
    walk_length: Natural = option(2, "steps of a walk", read_with={"sampler": ("walk",)})
    fan_outs: tuple[int, ...] = option(
        (), "neighbour: neighbours drawn in each aggregation of the model, the first one first"
    )
    subgraphs: Count = option(
        1,
        "subgraphs per step, divided among the ranks; neighbour, with train.reproducible: pieces "
        "of a batch, divided likewise",
    )
    topology: str = option(
        "shared",
        "shared: every host holds the whole graph; partitioned: a rank holds a part, and draws its "
        "share of each subgraph from it",
        values=("shared", "partitioned"),
        traits=needs(
            Trait.PARTS,
            lacks={
                Trait.EQUAL_BITS: "ranks draw from their own parts",
                Trait.PLANNED: "what ranks fetch of their parts is not counted",
            },
        ),
    )
    halo: Natural = option(
        1,
        "partitioned: a rank also holds nodes within so many steps of its part",
        only_with={"topology": ("partitioned",)},
    )
    reshuffle_epochs: Natural = option(
        0,
        "partitioned: epochs between reshuffles of parts; 0: none",
        only_with={"topology": ("partitioned",)},
    )
    reshuffle_share: Part = option(
        0.1,
        "partitioned: probability that a node moves from its rank's part to a random one",
        read_with={"topology": ("partitioned",)},
    )
    steps: Natural = option(0, "steps per epoch; 0: enough to draw as many nodes as the graph has")
    coverage: Natural = option(
        20,
        "average number of times that a node is in the subgraphs counted before training; the "
        "counts weight losses and edges so that sums estimate those of the whole graph; 0: neither",
    )
    estimator: str = option(
        "unbiased",
        "estimator of sums from the counts: unbiased, or ratio (divided by the sampled weights: "
        "less noise, a small bias)",
        values=("unbiased", "ratio"),
    )
    clip: Count = option(
        1,
        "drop random nodes of a subgraph down to a multiple of this; 1: none, since kernels here "
        "do not depend on the number of rows",
    )
    threads: Natural = option(1, "threads of a rank that sample ahead of training; 0: none")
    ahead: Count = option(4, "subgraphs that a rank samples ahead of training")

    def __post_init__(self) -> None:
        check_values("sampling", self)
        by_layer = self.sampler == "neighbour"
        positive = all(fan_out > 0 for fan_out in self.fan_outs) and bool(self.fan_outs) == by_layer
        remedy = "neighbour needs one per layer, as [10, 5]; other samplers need none"
        require(positive, "sampling.fan_outs", self.fan_outs, remedy)
        counts = self.estimator == "unbiased" or (self.coverage > 0 and not by_layer)
        remedy = "needs sampling.coverage above 0, and another sampler than neighbour"
        require(counts, "sampling.estimator", self.estimator, remedy)
