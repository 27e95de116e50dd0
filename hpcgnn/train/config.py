"""The configuration: frozen sections that check themselves.

A TOML file gives a table for each section; ``section.key=value`` arguments override it, and
``hpcgnn train --keys`` lists every key with its default and meaning.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import TypeVar

from hpcgnn.errors import InputError
from hpcgnn.nn import ACTIVATIONS, JUMPING, MODELS, NORMS, ModelShape
from hpcgnn.spmm import EXCHANGES, SCHEDULES, WIRES

__all__ = [
    "Config",
    "ExchangeConfig",
    "GraphConfig",
    "ModelConfig",
    "RunConfig",
    "TraceConfig",
    "TrainConfig",
]

T = TypeVar("T")


def option(default: T, meaning: str) -> T:
    """Return a dataclass field with a default and the text that ``--keys`` shows."""
    made: T = field(default=default, metadata={"meaning": meaning})
    return made


def _require(holds: bool, key: str, value: object, remedy: str) -> None:
    if not holds:
        raise InputError(f"{key} = {value!r}: {remedy}")


def _choice(key: str, value: str, choices: Iterable[str]) -> None:
    names = list(choices)
    _require(value in names, key, value, f"choose one of {', '.join(names)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphConfig:
    """Which graph, and which of its edges and features."""

    store: str = option("", "path of the store (.h5)")
    relations: tuple[str, ...] = option((), "relations to aggregate over; empty: all")
    undirected: bool = option(False, "add the reverse of every edge")
    reverse: bool = option(
        True, "models that tell relations apart: each has its reverse as a relation beside it"
    )
    normalize_features: str = option(
        "none", "none; row, l2: rows of norm 1; standard: columns to mean 0, deviation 1"
    )

    def __post_init__(self) -> None:
        _require(bool(self.store), "graph.store", self.store, "give the path of a store")
        _choice(
            "graph.normalize_features", self.normalize_features, ("none", "row", "l2", "standard")
        )


_MODEL_SIZES = ("name", "hidden", "num_layers", "dropout", "input_dropout")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The model and its sizes."""

    name: str = option("sage", ", ".join(MODELS))
    hidden: int = option(128, "width of hidden layers")
    num_layers: int = option(2, "number of layers")
    dropout: float = option(0.5, "probability, for the input of every layer but the first")
    input_dropout: float = option(0.0, "probability, for the features")
    norm: str = option("none", "none; batch, layer or graph: normalises every hidden layer")
    activation: str = option("relu", f"between layers: {', '.join(ACTIVATIONS)}")
    residual: bool = option(False, "add a layer's own input to its output")
    jumping: str = option(
        "none", "none; concat or max: a linear map of all layers' outputs gives the logits"
    )
    heads: int = option(1, "attention heads of a layer")
    attention_dropout: float = option(0.0, "probability, for the coefficient of an edge and head")
    edge_dropout: float = option(0.0, "probability, for an edge before the softmax")
    hops: int = option(0, "aggregations of a layer that has several; 0: the model's own number")
    teleport: float = option(0.1, "share of the first rows in each propagation step, in [0, 1]")
    num_bases: int = option(
        0, "matrices that the weights of relations are combined from; 0: each has its own"
    )

    def __post_init__(self) -> None:
        _choice("model.name", self.name, MODELS)
        _choice("model.norm", self.norm, NORMS)
        _choice("model.activation", self.activation, ACTIVATIONS)
        _choice("model.jumping", self.jumping, JUMPING)
        self._check_heeded()
        _require(self.hidden >= 1, "model.hidden", self.hidden, "must be at least 1")
        _require(self.num_layers >= 1, "model.num_layers", self.num_layers, "must be at least 1")
        _require(self.heads >= 1, "model.heads", self.heads, "must be at least 1")
        _require(0 <= self.teleport <= 1, "model.teleport", self.teleport, "must lie in [0, 1]")
        for key in ("hops", "num_bases"):
            value = getattr(self, key)
            _require(value >= 0, f"model.{key}", value, "must not be negative")
        for key in ("dropout", "input_dropout", "attention_dropout", "edge_dropout"):
            value = getattr(self, key)
            _require(0 <= value < 1, f"model.{key}", value, "must lie in [0, 1)")
        # The graph's relations are not known here; they are compared when it is read.
        bases = max(self.num_bases, 1)
        shape = self.shape(num_features=1, num_classes=1, num_relations=bases)
        MODELS[self.name].check(shape)

    def shape(self, *, num_features: int, num_classes: int, num_relations: int = 1) -> ModelShape:
        """Return the sizes and options of the model on a graph with these sizes.

        Not collective.
        """
        options = {each.name: getattr(self, each.name) for each in fields(self)}
        del options["name"]
        return ModelShape(
            num_features=num_features,
            num_classes=num_classes,
            num_relations=num_relations,
            **options,
        )

    def _check_heeded(self) -> None:
        """Refuse an option that the model would ignore."""
        heeded = {*_MODEL_SIZES, *MODELS[self.name].options}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in heeded and value != each.default:
                others = [name for name, kind in MODELS.items() if each.name in kind.options]
                raise InputError(
                    f"model.{each.name} = {value!r}: {self.name} has no such option; leave it out, "
                    f"or choose model.name = {' or '.join(others)}"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Optimisation."""

    epochs: int = option(100, "epochs for each seed")
    seeds: tuple[int, ...] = option((1,), "a model is trained for each; results are averaged")
    optimizer: str = option("adam", "adam, adamw or sgd")
    learning_rate: float = option(0.01, "after warm-up, before the schedule lowers it")
    weight_decay: float = option(0.0, "as the optimiser defines it")
    weight_decay_layers: str = option("all", "layers that decay: all or first")
    momentum: float = option(0.9, "for sgd")
    nesterov: bool = option(False, "for sgd")
    schedule: str = option("constant", "constant, cosine, step or exponential")
    schedule_gamma: float = option(
        0.1, "factor at each step (step) or at the last epoch (cosine, exponential)"
    )
    schedule_steps: tuple[int, ...] = option((), "epochs at which step multiplies by gamma")
    warmup_epochs: int = option(0, "epochs of linear warm-up")
    clip_norm: float = option(0.0, "largest norm of the gradient; 0: no clipping")
    label_smoothing: float = option(0.0, "in [0, 1)")
    evaluate_every: int = option(1, "epochs between evaluations")
    patience: int = option(0, "evaluations without a better validation value to stop; 0: never")
    select: str = option(
        "best", "model that is kept: best or best_loss on validation nodes, or last"
    )
    dtype: str = option("float32", "float32 or float64: features, weights and rows on the wire")

    def __post_init__(self) -> None:
        _choice("train.optimizer", self.optimizer, ("adam", "adamw", "sgd"))
        _choice("train.schedule", self.schedule, ("constant", "cosine", "step", "exponential"))
        _choice("train.weight_decay_layers", self.weight_decay_layers, ("all", "first"))
        _choice("train.select", self.select, ("best", "best_loss", "last"))
        _choice("train.dtype", self.dtype, ("float32", "float64"))
        for key in ("epochs", "evaluate_every"):
            value = getattr(self, key)
            _require(value >= 1, f"train.{key}", value, "must be at least 1")
        for key in ("weight_decay", "momentum", "warmup_epochs", "clip_norm", "patience"):
            value = getattr(self, key)
            finite = math.isfinite(value) and value >= 0
            _require(finite, f"train.{key}", value, "must be finite and not negative")
        rate, gamma, smoothing = self.learning_rate, self.schedule_gamma, self.label_smoothing
        _require(math.isfinite(rate) and rate > 0, "train.learning_rate", rate, "must be positive")
        _require(0 < gamma <= 1, "train.schedule_gamma", gamma, "must lie in (0, 1]")
        _require(0 <= smoothing < 1, "train.label_smoothing", smoothing, "must lie in [0, 1)")
        _require(len(self.seeds) > 0, "train.seeds", self.seeds, "give at least one seed")
        valid = len(set(self.seeds)) == len(self.seeds) and min(self.seeds) >= 0
        _require(valid, "train.seeds", self.seeds, "must be different and not negative")
        nesterov_works = not self.nesterov or (self.optimizer == "sgd" and self.momentum > 0)
        _require(nesterov_works, "train.nesterov", self.nesterov, "needs sgd with momentum")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeConfig:
    """How rows travel between ranks."""

    method: str = option("aware", ", ".join(EXCHANGES))
    wire: str = option(
        "native", "number format on the wire: native (train.dtype), bfloat16, float16"
    )
    active_sets: bool = option(
        True, "train on the rows that the training nodes reach, layer by layer; same results"
    )
    replication: int = option(1, "copies of every block row (1.5D); divides the number of ranks")
    schedule: str = option(
        "resident",
        "resident (all rows of other ranks at once) or sequential (one rank's after another's: "
        "least memory); same results",
    )
    prefetch: int = option(
        0, "blocks of rows under way while one is multiplied; with schedule=sequential"
    )

    def __post_init__(self) -> None:
        _choice("exchange.method", self.method, EXCHANGES)
        _choice("exchange.wire", self.wire, WIRES)
        _choice("exchange.schedule", self.schedule, SCHEDULES)
        _require(self.replication >= 1, "exchange.replication", self.replication, "at least 1")
        _require(self.prefetch >= 0, "exchange.prefetch", self.prefetch, "must not be negative")
        prefetch_works = self.prefetch == 0 or self.schedule == "sequential"
        remedy = "needs exchange.schedule=sequential"
        _require(prefetch_works, "exchange.prefetch", self.prefetch, remedy)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Where results go, and how a run stops and continues."""

    dir: str = option("", "run directory")
    resume: str = option(
        "auto", "continue from the newest checkpoint in run.dir: auto (if any), never, must"
    )
    checkpoint_every: int = option(10, "epochs between checkpoints; 0: at the end and on signals")
    keep_checkpoints: int = option(2, "newest checkpoints to keep for each seed")
    save_predictions: bool = option(True, "write predictions.h5 with the best seed's kept model")
    threads: int = option(0, "threads of a rank; 0: the host's cores divided among its ranks")

    def __post_init__(self) -> None:
        _require(bool(self.dir), "run.dir", self.dir, "give a directory")
        _choice("run.resume", self.resume, ("auto", "never", "must"))
        keep = self.keep_checkpoints
        _require(keep >= 1, "run.keep_checkpoints", keep, "must be at least 1")
        for key in ("checkpoint_every", "threads"):
            value = getattr(self, key)
            _require(value >= 0, f"run.{key}", value, "must not be negative")


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceConfig:
    """What is recorded."""

    enabled: bool = option(False, "write trace/rankNNNNN.jsonl")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """All sections; the field names are the tables of the TOML file."""

    graph: GraphConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    run: RunConfig
    trace: TraceConfig = field(default_factory=TraceConfig)
