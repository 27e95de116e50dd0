"""The configuration's section on predicting fields over time."""

from dataclasses import dataclass

from hpcgnn.config.options import (
    Amount,
    Chance,
    Count,
    Natural,
    check_values,
    option,
    require,
)
from hpcgnn.nn import EDGE_READER
from hpcgnn.support import Trait, lacks, needs, union

PREDICTIONS = ("same", "next", "difference")
"""What to predict of the targets."""

_OF_EDGES = union(
    EDGE_READER,
    needs(Trait.FIELDS, Trait.EDGE_FEATURES, Trait.MOVING_EDGES),
    lacks({Trait.PLANNED_FROM_MESH: "the mesh has no fields of edges"}),
)
_PREDICTED_OF_EDGES = {Trait.NODE_FIELDS: "a rollout has rows of edges too; write .h5"}


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldsConfig:
    """Which fields are predicted, from what, and how far."""

    inputs: tuple[str, ...] = option((), "fields that the model reads; empty: the targets")
    targets: tuple[str, ...] = option((), "fields that are predicted", traits=needs(Trait.FIELDS))
    edge_inputs: tuple[str, ...] = option(
        (),
        "fields of edges that the model reads as features of edges, after those of the store; "
        "empty, with inputs empty too: edge_targets",
        traits=_OF_EDGES,
    )
    edge_targets: tuple[str, ...] = option(
        (),
        "fields of edges that are predicted",
        traits=union(_OF_EDGES, needs(Trait.EDGE_OUTPUTS), lacks(_PREDICTED_OF_EDGES)),
    )
    predict: str = option(
        "difference",
        "which values of the targets: same (at the time of the inputs), next (after one step), or "
        "difference (what one step adds)",
        values=PREDICTIONS,
    )
    history: Count = option(1, "steps of the inputs that the model reads, the last one included")
    noise: Amount = option(0.0, "deviation of noise on inputs in training, in their own deviations")
    unroll: Count = option(
        1,
        "steps that a loss covers; each reads the predictions of the step before",
        only_with={"predict": ("next", "difference")},
    )
    batch: Count = option(1, "samples per training step")
    split: str = option(
        "time",
        "how to split: by time (each trajectory ends with valid, then test steps), or by "
        "trajectory",
        values=("time", "trajectory"),
    )
    valid: Chance = option(0.1, "share of steps or trajectories for validation, in [0, 1)")
    test: Chance = option(0.1, "share of steps or trajectories for testing, in [0, 1)")
    split_seed: Natural = option(
        1, "seed for drawing valid and test trajectories", read_with={"split": ("trajectory",)}
    )
    fixed: tuple[str, ...] = option(
        (),
        "nodes whose targets are given and not predicted: names of node types, or of features that "
        "are not 0 there, such as groups of a mesh; feature:N by number, from 0",
    )
    edge_fixed: tuple[str, ...] = option(
        (),
        "edges whose edge_targets are given and not predicted: names of features of edges, or "
        "feature:N",
    )
    loss: str = option(
        "",
        "module:FUNCTION with a custom loss for a step; empty: the squared error",
    )
    evaluated: Natural = option(32, "evenly spaced samples of each part for evaluation; 0: all")
    horizons: tuple[int, ...] = option(
        (1, 10, 50), "steps of a rollout after which the selected model is evaluated; empty: none"
    )
    rollouts: Count = option(2, "rollouts of each part to evaluate the selected model on")

    def __post_init__(self) -> None:
        check_values("fields", self)
        total = self.valid + self.test
        require(total < 1, "fields.valid + fields.test", round(total, 9), "must be below 1")
        for key in ("inputs", "targets", "edge_inputs", "edge_targets", "fixed", "edge_fixed"):
            names = getattr(self, key)
            different = len(set(names)) == len(names) and all(names)
            require(different, f"fields.{key}", names, "must be different names")
        for key, targets, inputs in (
            ("targets", self.targets, self.inputs),
            ("edge_targets", self.edge_targets, self.edge_inputs),
        ):
            both = [name for name in targets if name in inputs]
            holds = self.predict != "same" or not both
            remedy = "is an input and a target of the same time; name it in one of them"
            require(holds, f"fields.{key}", ", ".join(both), remedy)
        holds = not self.edge_fixed or bool(self.edge_targets)
        remedy = "is of fields.edge_targets, and there are none; leave it out"
        require(holds, "fields.edge_fixed", ", ".join(self.edge_fixed), remedy)
        has_inputs = bool(self.inputs or self.edge_inputs)
        holds = self.predict != "same" or not (self.targets or self.edge_targets) or has_inputs
        require(holds, "fields.inputs", self.inputs, "name the fields that the targets come from")
        positive = all(steps >= 1 for steps in self.horizons)
        require(positive, "fields.horizons", self.horizons, "must be at least 1")

    @property
    def names(self) -> tuple[str, ...]:
        """All fields of nodes in use: the targets, then the other inputs."""
        return tuple(dict.fromkeys((*self.targets, *self.inputs)))

    @property
    def edge_names(self) -> tuple[str, ...]:
        """All fields of edges in use: the targets, then the other inputs."""
        return tuple(dict.fromkeys((*self.edge_targets, *self.edge_inputs)))

    @property
    def read(self) -> tuple[str, ...]:
        """The fields of nodes that the model reads."""
        if self.predict == "same":
            return self.inputs
        return self.inputs or self.targets

    @property
    def read_of_edges(self) -> tuple[str, ...]:
        """The fields of edges that the model reads."""
        if self.predict == "same" or self.inputs:
            return self.edge_inputs
        return self.edge_inputs or self.edge_targets

    @property
    def ahead(self) -> int:
        """How many steps a sample extends beyond the last input."""
        return 0 if self.predict == "same" else self.unroll
