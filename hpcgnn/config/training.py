"""The configuration's section on training."""

from dataclasses import dataclass
from math import inf
from typing import Annotated

from hpcgnn.autograd import PRECISIONS
from hpcgnn.config.options import (
    Amount,
    Chance,
    Count,
    Natural,
    Part,
    Positive,
    Range,
    check_values,
    choice,
    option,
    require,
)
from hpcgnn.support import Trait, lacks, needs

TASKS = ("full", "sampled", "links", "edges", "graphs", "fields", "programs")
JOINED = ("full", "links", "edges")
"""Tasks on one whole graph, of which one encoder can learn several at once."""

_Growth = Annotated[float, Range(lambda value: 1 <= value < inf, "must be at least 1")]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """The task, optimiser and schedule of training."""

    task: str = option(
        "full",
        "what a step trains on: full (the whole graph), sampled (subgraphs of it), links (link "
        "prediction), edges (classes or numbers of edges), graphs (many, each predicted as a "
        "whole), fields (samples of fields over time) or programs (many program graphs); several "
        "of full, links and edges at once: full+links; or package.module:NAME, a "
        "hpcgnn.train.tasks.Pair",
        values=TASKS,
    )
    task_weights: tuple[Amount, ...] = option(
        (), "weights of the losses of several tasks, in the order of train.task; empty: ones"
    )
    device: str = option(
        "cpu",
        "device of a rank: cpu, or cuda for a GPU of its host",
        values=("cpu", "cuda"),
        traits=needs(
            Trait.GPU,
            lacks={
                Trait.EQUAL_BITS: "its sums have no fixed order",
                Trait.PLANNED: "only CPU ranks are rehearsed",
            },
        ),
    )
    group_size: str = option(
        "measured",
        "non-zeros of a neighbour group on GPUs: a number; measured or learned: a regression or a "
        "classifier fitted to an H100; paper: as published; or a file of calibrate_group_size "
        "(.json) or train_group_size (.safetensors)",
        read_with={"device": ("cuda",)},
    )
    epochs: Count = option(100, "epochs for each seed")
    seeds: tuple[int, ...] = option((1,), "train a model for each; results are averaged")
    splits: tuple[str, ...] = option(
        (),
        "splits of the store, each with a run of all seeds in run.dir/split-NAME",
        traits=needs(Trait.NODE_SPLITS),
    )
    optimizer: str = option("adam", "adam, adamw or sgd", values=("adam", "adamw", "sgd"))
    learning_rate: Positive = option(0.01, "after warm-up, before the schedule lowers it")
    weight_decay: Amount = option(0.0, "weight decay as the optimiser defines it")
    weight_decays: tuple[str, ...] = option(
        (),
        "weight decay of some weights, as ['layers.0.*=5e-4', '*bias=0']: patterns of the names in "
        "model.safetensors, or of their ends after a dot, of which the last that fits counts; all "
        "other weights: weight_decay",
    )
    momentum: Amount = option(0.9, "for sgd", read_with={"optimizer": ("sgd",)})
    nesterov: bool = option(False, "for sgd")
    schedule: str = option(
        "constant",
        "constant, linear, cosine, step or exponential",
        values=("constant", "linear", "cosine", "step", "exponential"),
    )
    schedule_gamma: Part = option(
        0.1,
        "factor at each step (step) or at the last epoch (all others)",
        read_with={"schedule": ("linear", "cosine", "step", "exponential")},
    )
    schedule_steps: tuple[int, ...] = option(
        (), "epochs at which step multiplies by gamma", read_with={"schedule": ("step",)}
    )
    decay_steps: Natural = option(
        0,
        "steps after which linear, cosine and exponential reach gamma; 0: at the last epoch",
        only_with={"schedule": ("linear", "cosine", "exponential")},
    )
    warmup_epochs: Natural = option(
        0,
        "epochs n of linear warm-up, with 1/(n + 1), 2/(n + 1) ... of the rate; then the schedule "
        "begins, but decay_steps count from the start",
    )
    clip_norm: Amount = option(0.0, "largest norm of the gradient; 0: no clipping")
    label_smoothing: Chance = option(0.0, "in [0, 1)", traits=needs(Trait.CLASSES))
    label_augmentation: Chance = option(
        0.0,
        "share of training labels used as inputs in an epoch; the others are predicted",
        traits=needs(Trait.CLASSES, Trait.LABELLED_NODES, Trait.LABEL_INPUTS),
    )
    evaluate_every: Count = option(1, "epochs between evaluations")
    evaluate_growth: _Growth = option(
        1.0, "factor by which the epochs between evaluations grow each time; 1: constant"
    )
    patience: Natural = option(0, "stop after so many evaluations without improvement; 0: never")
    inductive: bool = option(
        False,
        "training sees edges between training nodes only, evaluation all; task=full or sampled",
        traits=needs(
            Trait.SOME_EDGES,
            Trait.CHOSEN_STATISTICS,
            lacks={Trait.PLANNED: "its second graph is not counted"},
        ),
    )
    threshold: str = option(
        "valid",
        "which labels to predict in multi-label problems: valid: those above the probability that "
        "maximises micro F1 on the validation nodes; top: the k most probable of each node, with k "
        "that maximises it; half: those above one half",
        values=("valid", "top", "half"),
        traits={"top": needs(Trait.SEVERAL_LABELS)},
    )
    select: str = option(
        "best",
        "model to keep: best or best_loss on validation nodes, or last",
        values=("best", "best_loss", "last"),
    )
    metric: str = option(
        "",
        "metric of select=best, such as macro_f1, auc or rmse; empty: that of the task",
        only_with={"select": ("best",)},
    )
    dtype: str = option(
        "float32",
        "float32 or float64: features, weights and rows on the wire",
        values=("float32", "float64"),
        traits=lacks({Trait.SIXTEEN_BITS: "16-bit rows have weights in float32"}),
    )
    reproducible: bool = option(
        False,
        "bit-identical losses, weights and predictions for any number of ranks and threads, any "
        "exchange, schedule and replication, at the cost of time and bytes (docs/sharp_bits.md)",
        traits=needs(
            Trait.EQUAL_BITS,
            lacks={Trait.OWN_LOOPS: "your own loops have no such sums"},
        ),
    )
    precision: str = option(
        "float32",
        "float32; or bfloat16: features and rows between layers in 16 bits, in memory and on the "
        "wire, with sums in float32; weights, optimiser, statistics and loss stay float32",
        values=PRECISIONS,
        traits=needs(
            Trait.SIXTEEN_BITS,
            lacks={Trait.EQUAL_BITS: "its rows round after each product"},
        ),
    )
    products: str = option(
        "floats",
        "floats, or int8: training on CPUs multiplies nodes' rows and weights that are rounded to "
        "8 bits, from 1,024 rows and 64 columns (bfloat16: 32); evaluations and predictions are "
        "not rounded",
        values=("floats", "int8"),
        traits={
            "int8": needs(
                Trait.INTEGER_PRODUCTS,
                lacks={
                    Trait.EQUAL_BITS: "its products are rounded",
                    Trait.GPU: "its products are those of CPUs",
                    Trait.OWN_LOOPS: "your own loops multiply as they say",
                },
            )
        },
        only_with={"dtype": ("float32",)},
    )

    def __post_init__(self) -> None:
        # A pair in a user's module is looked up when the run begins.
        check_values("train", self, ("task",) if ":" in self.task or "+" in self.task else ())
        if "+" in self.task:
            for name in self.tasks:
                choice("train.task", name, JOINED)
            different = len(set(self.tasks)) == len(self.tasks)
            require(different, "train.task", self.task, "must join different tasks")
        count = len(self.tasks) if "+" in self.task else 0
        weighted = not self.task_weights or (
            len(self.task_weights) == count and min(self.task_weights) >= 0 < sum(self.task_weights)
        )
        remedy = "give one weight for each task that train.task joins, none negative, not all 0"
        require(weighted, "train.task_weights", self.task_weights, remedy)
        require(len(self.seeds) > 0, "train.seeds", self.seeds, "give at least one seed")
        valid = len(set(self.seeds)) == len(self.seeds) and min(self.seeds) >= 0
        require(valid, "train.seeds", self.seeds, "must be different and not negative")
        different = len(set(self.splits)) == len(self.splits) and all(self.splits)
        require(different, "train.splits", self.splits, "must be different names of splits")
        nesterov_works = not self.nesterov or (self.optimizer == "sgd" and self.momentum > 0)
        require(nesterov_works, "train.nesterov", self.nesterov, "needs sgd with momentum")
        _ = self.decays

    @property
    def decays(self) -> list[tuple[str, float]]:
        """The patterns of `weight_decays` and their numbers.

        Raises `InputError` for a text that is not a pattern, "=" and a number of at least 0.
        """
        decays = []
        for text in self.weight_decays:
            name, _, number = text.rpartition("=")
            try:
                decay = float(number)
            except ValueError:
                decay = -1.0
            remedy = "write PATTERN=NUMBER, with a number of at least 0"
            require(bool(name) and 0 <= decay < inf, "train.weight_decays", text, remedy)
            decays.append((name, decay))
        return decays

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that `task` joins; a single one if it joins none."""
        return tuple(self.task.split("+"))
