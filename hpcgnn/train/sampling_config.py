"""The section of the configuration for sampled subgraphs."""

from dataclasses import dataclass

from hpcgnn.train.options import choice, option, require

__all__ = ["SAMPLERS", "SamplingConfig"]

SAMPLERS = ("frontier", "multidimensional", "walk", "edge", "node", "neighbour")
"""Names of samplers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """What a step trains on, with train.task=sampled."""

    sampler: str = option(
        "frontier", f"{', '.join(SAMPLERS)} (layer-wise fan-out from batches of training nodes)"
    )
    budget: int = option(
        8000, "nodes drawn for a subgraph, repeats included; neighbour: training nodes of a batch"
    )
    walkers: int = option(1000, "of the frontier and of the multidimensional walk")
    enlargement: float = option(3.0, "of the frontier's Dashboard over what it holds at one time")
    walk_length: int = option(2, "steps of a walk")
    fan_outs: tuple[int, ...] = option(
        (), "neighbour: neighbours drawn in each aggregation of the model, the first one first"
    )
    subgraphs: int = option(1, "subgraphs of a step, shared among the ranks")
    steps: int = option(0, "steps of an epoch; 0: as many as draw the graph's nodes once")
    coverage: int = option(
        20,
        "how often a node is in the subgraphs that are counted before training, on average; they "
        "weigh losses and edges so that sums estimate the whole graph's; 0: do neither",
    )
    clip: int = option(16, "drop random nodes of a subgraph down to a multiple of this; 1: none")
    threads: int = option(1, "threads of a rank that sample ahead of training; 0: do not")
    ahead: int = option(4, "subgraphs that a rank holds ahead of training")

    def __post_init__(self) -> None:
        choice("sampling.sampler", self.sampler, SAMPLERS)
        for key in ("budget", "walkers", "subgraphs", "clip", "ahead"):
            value = getattr(self, key)
            require(value >= 1, f"sampling.{key}", value, "must be at least 1")
        for key in ("walk_length", "steps", "coverage", "threads"):
            value = getattr(self, key)
            require(value >= 0, f"sampling.{key}", value, "must not be negative")
        larger = self.enlargement > 1
        require(larger, "sampling.enlargement", self.enlargement, "must be above 1")
        by_layer = self.sampler == "neighbour"
        positive = all(each > 0 for each in self.fan_outs) and bool(self.fan_outs) == by_layer
        require(positive, "sampling.fan_outs", self.fan_outs, "neighbour needs them, nothing else")
