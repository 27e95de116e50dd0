"""Random cases for tests/oracle.py: settings of a run and the graph that it trains on."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.autograd import ACTIVATIONS
from hpcgnn.config.multi_task import OF_PAIRS
from hpcgnn.config.training import JOINED
from hpcgnn.nn import JUMPING, LINK_LOSSES, MODELS, NORMS, READOUTS, SCORERS
from hpcgnn.spmm import METHODS
from hpcgnn.support import Reasons
from tests.support.oracle_fields import edge_words, field_words, with_series
from tests.support.oracle_graphs import (
    OracleGraph,
    draw_graph,
    with_few_features,
    with_signs,
)
from tests.support.training import PARTITIONERS

EPOCHS, RATE = 3, 0.01
FIXED = (
    f"train.epochs={EPOCHS}",
    "train.optimizer=sgd",
    "train.momentum=0",
    f"train.learning_rate={RATE}",
    "train.select=last",
    "run.checkpoint_every=1",
    f"run.keep_checkpoints={EPOCHS}",
    "run.threads=1",
    "run.stall_s=60",
    "trace.enabled=false",
)
TASKS = {"full": 0.4, "edges": 0.22, "links": 0.2, "graphs": 0.18}
"""The task, and its share of the cases; also labels of nodes from samples."""
FIELDS = 0.12
"""The share of fields, chosen before these."""


@dataclass(frozen=True, eq=False)
class Case:
    """A run: `words` are settings, in which ``TARGETS`` stands for the file of numbers."""

    ranks: int
    parts: int
    partition: str
    words: tuple[str, ...]
    graph: OracleGraph

    @property
    def model(self) -> str:
        """Its name."""
        return self.words[0].partition("=")[2]

    def reproducible(self, *, on: bool) -> "Case":
        """Return it with equal bits, without settings that refuse these; or without equal bits."""
        gone = ("train.reproducible", *(("exchange.wire", "train.precision") if on else ()))
        words = [word for word in self.words if not word.startswith(gone)]
        return replace(self, words=(*words, *(["train.reproducible=true"] if on else [])))

    def settings(self, folder: Path) -> list[str]:
        """Return the settings for a graph that is written to a folder."""
        targets = str(folder / "targets.npy")
        return [*FIXED, *(word.replace("TARGETS", targets) for word in self.words)]

    def command(self) -> str:
        """Return the case as a command line."""
        words = shlex.join([*FIXED, *self.words])
        kind = f"{self.graph.num_nodes} nodes in {self.parts} parts ({self.partition})"
        return f"mpi_run {self.ranks} hpcgnn train graph.store=graph.h5 {words}  # {kind}"


def draw_case(seed: int, index: int, ranks: Sequence[int], task: str = "") -> Case:
    """Return the case of a seed and an index, the same in every process.

    `task` is "", or fields, to make all cases of fields.
    """
    rng = np.random.default_rng([seed, index])
    name = str(rng.choice(list(MODELS)))
    kind, size = MODELS[name], int(rng.choice(ranks))
    reads = any(each.passes_messages for each in kind.aggregations)
    attends = any(each.attends for each in kind.aggregations)
    weighs = rng.random() < (0.05 if reads else 0.4)
    drawn = str(rng.choice(list(TASKS), p=list(TASKS.values())))
    # Later additions have their own draws, so that other cases stay the same.
    later, of_fields = (np.random.default_rng([seed, index, number]) for number in (1, 2))
    task = "fields" if task or of_fields.random() < FIELDS else drawn
    joined = _joined(later, task)
    graph = draw_graph(rng, joined, reads_edges=reads, weighs=weighs)
    if later.random() < 0.2:
        graph = with_few_features(later, graph)
    if all(each.powers == (0, 0) for each in kind.aggregations):
        graph = with_signs(np.random.default_rng([seed, index, 4]), graph)
    if task == "fields":
        graph = with_series(of_fields, graph)
    words = [
        f"model.name={name}",
        *_model(rng, name, graph),
        *_exchange(rng, size, kind.traits().lacks),
        *_graph(rng, graph, reads=not attends),
    ]
    words += _training(rng, task, words)
    if task == "fields":
        # Other sources read no labels, have no parts of nodes, and all their rows have losses.
        words = [word for word in words if _goes_with_fields(of_fields, word)]
        # Groups of ranks have no replicas.
        has_copies = "exchange.replication=2" in words
        words += field_words(of_fields, graph, 1 if has_copies else size)
        words += edge_words(np.random.default_rng([seed, index, 3]), graph, kind, words)
    words += [word for name in joined for word in _objective(rng, name)]
    words += _source(rng, task, words) if len(joined) == 1 else ()
    words += _together(later, joined)
    sparse = 0.01 if task == "fields" else 0.15
    words += _chance(later, sparse, "graph.sparse_features=always")
    scaling = later.choice(["row", "l2", "standard"])
    words += _chance(later, 0.2, f"graph.normalize_features={scaling}")
    of_edges = np.random.default_rng([seed, index, 5])
    featured = any(each.features is not None for each in graph.relations.values())
    scaling = of_edges.choice(["row", "l2", "standard"])
    words += _chance(
        of_edges, 0.3 if featured else 0.01, f"graph.normalize_edge_features={scaling}"
    )
    parts = size + int(rng.integers(0, 3))
    method = str(rng.choice(list(PARTITIONERS)))
    # METIS needs a node for each part.
    method = "random" if method == "metis" and graph.num_nodes < 2 * parts else method
    return Case(size, parts, method, tuple(words), graph)


def _chance(rng: np.random.Generator, share: float, *words: str) -> tuple[str, ...]:
    return words if rng.random() < share else ()


_NOT_WITH_FIELDS = (
    *("exchange.active_sets=true", "graph.targets", "model.embeddings"),
    *("train.label_smoothing", "train.label_augmentation", "train.inductive"),
)


def _goes_with_fields(rng: np.random.Generator, word: str) -> bool:
    """Tell whether a setting works with fields; a few that do not are kept."""
    return not word.startswith(_NOT_WITH_FIELDS) or rng.random() < 0.03


def _model(rng: np.random.Generator, name: str, graph: OracleGraph) -> Iterator[str]:
    options, heads = MODELS[name].options, int(rng.integers(1, 4))
    hidden = int(rng.integers(1, 4)) * (heads if "heads" in options else 3)
    layers = int(rng.choice([1, 2, 2, 3]))
    values: dict[str, Any] = {
        "heads": heads,
        "hops": int(rng.integers(0, 4)),
        "teleport": float(rng.choice([0.0, 0.1, 0.5])),
        "num_bases": int(rng.integers(0, 3)),
        "norm": rng.choice(list(NORMS)),
        "activation": rng.choice(list(ACTIVATIONS)),
        "residual": "true",
        "jumping": rng.choice(JUMPING),
        "edge_features": "true",
    }
    yield f"model.hidden={hidden}"
    yield f"model.num_layers={layers + (name == 'sign' and layers == 1)}"
    shares = dict.fromkeys(values, 0.5)
    featured = any(each.features is not None for each in graph.relations.values())
    shares["edge_features"] = 0.5 if featured else 0.02
    for option, value in values.items():
        if option in options:
            yield from _chance(rng, shares[option], f"model.{option}={value}")
    own = {"gate": "true", "theta": 0.8, "inner": 3, "maps": int(rng.integers(1, 3))}
    for option in MODELS[name].own_options:
        yield from _chance(rng, 0.5, f"model.options.{option}={own[option]}")
    if graph.types is not None:
        yield from _chance(rng, 0.3, f"model.input_width={hidden}")
    bare = graph.features is None
    yield from _chance(
        rng, (0.5 if graph.types is not None else 0.95) if bare else 0.01, "model.embeddings=true"
    )


def _training(rng: np.random.Generator, task: str, words: Sequence[str]) -> Iterator[str]:
    # Few options work with all tasks.
    yield f"model.dropout={rng.choice([0, 0, 0.3])}"
    chance = rng.random()
    if chance < 0.75:
        yield "train.dtype=float64"
    elif chance < 0.8:
        yield f"exchange.wire={rng.choice(['bfloat16', 'float16', 'int8', 'int4/int8', 'int2'])}"
    elif chance < 0.85:
        yield "train.precision=bfloat16"
    elif chance < 0.9 or task != "full":
        yield "train.dtype=float32"
    else:
        yield "train.reproducible=true"
    yield from _chance(rng, 0.5, "train.clip_norm=1")
    numbers = rng.random() < (0.2 if task in ("full", "graphs") else 0.01)
    yield from _chance(rng, numbers, "graph.targets=TARGETS")
    smooths = 0.01 if task == "links" else 0.05 if numbers else 0.2
    yield from _chance(rng, smooths, "train.label_smoothing=0.1")
    alone = task == "full" and not numbers
    yield from _chance(rng, 0.15 if alone else 0.005, "train.label_augmentation=0.5")
    alone = task == "full" and "model.embeddings=true" not in words
    yield from _chance(rng, 0.12 if alone else 0.01, "train.inductive=true")


def _joined(rng: np.random.Generator, task: str) -> tuple[str, ...]:
    """Return the tasks that one encoder learns: sometimes one or two more."""
    others = [name for name in JOINED if name != task]
    if task not in JOINED or rng.random() > 0.15:
        return (task,)
    return (task, *map(str, rng.permutation(others)[: rng.integers(1, len(others) + 1)]))


def _together(rng: np.random.Generator, tasks: tuple[str, ...]) -> Iterator[str]:
    if len(tasks) == 1:
        return
    yield f"train.task={'+'.join(tasks)}"
    width = 2 * rng.integers(1, 4)
    yield from (f"{name}.width={width}" for name in tasks if name in OF_PAIRS)
    weights = [float(each) for each in rng.choice([0.5, 1, 2], len(tasks))]
    yield from _chance(rng, 0.6, f"train.task_weights={weights}")


def _objective(rng: np.random.Generator, task: str) -> Iterator[str]:
    if task in ("full", "fields"):
        return
    yield f"train.task={task}"
    yield from _chance(rng, 0.4, f"{task}.width={2 * rng.integers(1, 4)}")
    if task == "graphs":
        yield f"graphs.readout={rng.choice(list(READOUTS))}"
    elif task == "edges":
        yield from _chance(rng, 0.3, "edges.features=false")
        yield from _chance(rng, 0.3, "edges.hidden=5")
    else:
        yield f"links.scorer={rng.choice(list(SCORERS))}"
        yield f"links.loss={rng.choice(list(LINK_LOSSES))}"
        yield f"links.num_negatives={rng.integers(1, 5)}"
        yield from _chance(rng, 0.3, "links.ends=both")
        yield from _chance(rng, 0.3, "links.disjoint=false")
        yield from ("links.ranked=7", "links.train=0.6", "links.valid=0.15", "links.test=0.15")


def _exchange(rng: np.random.Generator, ranks: int, lacks: Reasons) -> Iterator[str]:
    methods = [n for n, each in METHODS.items() if not each.needs & lacks.keys()]
    yield f"exchange.method={rng.choice(list(METHODS) if rng.random() < 0.05 else methods)}"
    if rng.random() < 0.3:
        yield "exchange.schedule=sequential"
        yield f"exchange.prefetch={rng.integers(0, 3)}"
    if ranks % 2 == 0:
        yield from _chance(rng, 0.3, "exchange.replication=2")
    yield f"exchange.active_sets={rng.choice(['backward', 'true', 'false'])}"
    yield from _chance(rng, 0.3, "exchange.prepare=first_epoch")
    yield from _chance(rng, 0.3, f"exchange.keep_products={rng.choice(['always', 'never'])}")
    yield from _chance(rng, 0.3, f"exchange.keep_states={rng.choice(['always', 'never'])}")


def _graph(rng: np.random.Generator, graph: OracleGraph, *, reads: bool) -> Iterator[str]:
    featured = any(each.features is not None for each in graph.relations.values())
    yield from _chance(rng, 0.02 if featured else 0.25, "graph.undirected=true")
    names = [name for name in graph.relations if name]
    if len(names) > 1:
        yield from _chance(rng, 0.3, f"graph.relations={[str(rng.choice(names))]}")
    yield from _chance(rng, 0.2, "graph.reverse=false")
    weighted = any(each.weights is not None for each in graph.relations.values())
    if weighted:
        yield from _chance(rng, 0.2 if reads else 0.95, "graph.weights=ignore")


def _source(rng: np.random.Generator, task: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return the settings of a source that sees the whole graph in each step, in any way."""
    if task == "fields":
        return ()
    if task == "graphs":
        return ("graphs.batch=64" if rng.random() < 0.5 else "graphs.batch=0",)
    name = words[0].partition("=")[2]
    by_relation = any(each.by_relation for each in MODELS[name].aggregations)
    rare = by_relation or "train.dtype=float64" not in words
    way = rng.random() * (8 if rare else 1)
    if way > 0.25:
        return ()
    chosen = "train.task=sampled" if task == "full" else f"{task}.sampled=true"
    sampled = (chosen, "sampling.steps=1", "sampling.coverage=0", "sampling.budget=40000")
    # The order of a subgraph's rows determines the negatives of its links.
    if way < 0.1 and task != "links":
        return (*sampled, "sampling.sampler=node")
    fan_outs = [1000] * depth_of(name, words)
    return (*sampled, "sampling.sampler=neighbour", f"sampling.fan_outs={fan_outs}")


def depth_of(name: str, words: Sequence[str]) -> int:
    """Return the number of consecutive aggregations of a model with some options."""
    given = dict(word.split("=", 1) for word in words)
    layers, hops = int(given["model.num_layers"]), int(given.get("model.hops", 0))
    by_hops = {"appnp": hops or 10, "sign": hops or 3, "mixhop": layers * (hops or 2)}
    return by_hops.get(name, layers)
