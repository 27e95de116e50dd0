"""The section of the configuration that describes the optimisation."""

import math
from dataclasses import dataclass

from hpcgnn.autograd import PRECISIONS
from hpcgnn.config.options import choice, option, require


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Optimisation."""

    task: str = option(
        "full",
        "what a step trains on: full (the whole graph), sampled (subgraphs of it), links (edges of "
        "the whole graph, that are predicted), graphs (many graphs, each predicted as a whole) or "
        "programs (many program graphs)",
    )
    device: str = option("cpu", "where a rank computes: cpu, or cuda for a GPU of its host")
    group_size: str = option(
        "paper",
        "neighbour groups on GPUs: paper (the published regression), or a file of "
        "calibrate_group_size (.json) or train_group_size (.safetensors)",
    )
    epochs: int = option(100, "epochs for each seed")
    seeds: tuple[int, ...] = option((1,), "a model is trained for each; results are averaged")
    splits: tuple[str, ...] = option(
        (), "splits of the store, each trained on with all seeds in run.dir/split-NAME"
    )
    optimizer: str = option("adam", "adam, adamw or sgd")
    learning_rate: float = option(0.01, "after warm-up, before the schedule lowers it")
    weight_decay: float = option(0.0, "as the optimiser defines it")
    weight_decay_layers: str = option("all", "layers that decay: all or first")
    momentum: float = option(0.9, "for sgd")
    nesterov: bool = option(False, "for sgd")
    schedule: str = option("constant", "constant, linear, cosine, step or exponential")
    schedule_gamma: float = option(
        0.1, "factor at each step (step) or at the last epoch (all others)"
    )
    schedule_steps: tuple[int, ...] = option((), "epochs at which step multiplies by gamma")
    decay_steps: int = option(
        0,
        "steps after which linear, cosine and exponential have fallen to gamma; 0: at the last "
        "epoch",
    )
    warmup_epochs: int = option(0, "epochs of linear warm-up")
    clip_norm: float = option(0.0, "largest norm of the gradient; 0: no clipping")
    label_smoothing: float = option(0.0, "in [0, 1)")
    label_augmentation: float = option(
        0.0, "share of training labels that are inputs in an epoch; the others are predicted"
    )
    evaluate_every: int = option(1, "epochs between evaluations")
    evaluate_growth: float = option(
        1.0, "factor by which the epochs between evaluations grow with each; 1: they stay"
    )
    patience: int = option(0, "evaluations without a better validation value to stop; 0: never")
    inductive: bool = option(
        False,
        "training sees edges between training nodes only, evaluation all; task=full or sampled",
    )
    threshold: str = option(
        "valid",
        "which of several labels are predicted: valid, those above the probability by which micro "
        "F1 on the validation nodes is largest; top, as many most probable ones of each node as "
        "make it largest; half, those above one half",
    )
    select: str = option(
        "best", "model that is kept: best or best_loss on validation nodes, or last"
    )
    dtype: str = option("float32", "float32 or float64: features, weights and rows on the wire")
    reproducible: bool = option(
        False,
        "equal bits of losses, weights and predictions at any number of ranks and threads, any "
        "exchange, schedule and replication, for more time and bytes (docs/sharp_bits.md)",
    )
    precision: str = option(
        "float32",
        "float32; or bfloat16: features and rows between layers in 16 bits, in memory and on the "
        "wire, sums in float32; weights, optimiser, statistics and loss stay float32",
    )

    def __post_init__(self) -> None:
        choice("train.task", self.task, ("full", "sampled", "links", "graphs", "programs"))
        choice("train.device", self.device, ("cpu", "cuda"))
        choice("train.optimizer", self.optimizer, ("adam", "adamw", "sgd"))
        schedules = ("constant", "linear", "cosine", "step", "exponential")
        choice("train.schedule", self.schedule, schedules)
        choice("train.weight_decay_layers", self.weight_decay_layers, ("all", "first"))
        choice("train.threshold", self.threshold, ("valid", "top", "half"))
        choice("train.select", self.select, ("best", "best_loss", "last"))
        choice("train.dtype", self.dtype, ("float32", "float64"))
        choice("train.precision", self.precision, PRECISIONS)
        if self.precision == "bfloat16":
            remedy = "train.precision=bfloat16 has float32 weights: leave train.dtype out"
            require(self.dtype == "float32", "train.dtype", self.dtype, remedy)
            remedy = "train.precision=bfloat16 has no sums in which no order shows; leave it out"
            require(not self.reproducible, "train.reproducible", self.reproducible, remedy)
            remedy = "train.precision=bfloat16 is for graphs of nodes; leave it out"
            require(self.task != "programs", "train.task", self.task, remedy)
        for key in ("epochs", "evaluate_every"):
            value = getattr(self, key)
            require(value >= 1, f"train.{key}", value, "must be at least 1")
        amounts = ("weight_decay", "momentum", "warmup_epochs", "decay_steps", "clip_norm")
        for key in (*amounts, "patience"):
            value = getattr(self, key)
            finite = math.isfinite(value) and value >= 0
            require(finite, f"train.{key}", value, "must be finite and not negative")
        falls = self.decay_steps == 0 or self.schedule in ("linear", "cosine", "exponential")
        remedy = "needs schedule linear, cosine or exponential"
        require(falls, "train.decay_steps", self.decay_steps, remedy)
        growth = self.evaluate_growth
        grows = math.isfinite(growth) and growth >= 1
        require(grows, "train.evaluate_growth", growth, "must be at least 1")
        rate, gamma, smoothing = self.learning_rate, self.schedule_gamma, self.label_smoothing
        require(math.isfinite(rate) and rate > 0, "train.learning_rate", rate, "must be positive")
        require(0 < gamma <= 1, "train.schedule_gamma", gamma, "must lie in (0, 1]")
        require(0 <= smoothing < 1, "train.label_smoothing", smoothing, "must lie in [0, 1)")
        share = self.label_augmentation
        require(0 <= share < 1, "train.label_augmentation", share, "must lie in [0, 1)")
        require(len(self.seeds) > 0, "train.seeds", self.seeds, "give at least one seed")
        valid = len(set(self.seeds)) == len(self.seeds) and min(self.seeds) >= 0
        require(valid, "train.seeds", self.seeds, "must be different and not negative")
        different = len(set(self.splits)) == len(self.splits) and all(self.splits)
        require(different, "train.splits", self.splits, "must be different names of splits")
        of_nodes = not self.splits or self.task not in ("links", "programs")
        remedy = f"train.task = {self.task!r} reads no split of nodes; leave it out"
        require(of_nodes, "train.splits", self.splits, remedy)
        nesterov_works = not self.nesterov or (self.optimizer == "sgd" and self.momentum > 0)
        require(nesterov_works, "train.nesterov", self.nesterov, "needs sgd with momentum")
