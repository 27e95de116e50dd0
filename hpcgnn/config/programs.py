"""The configuration's section on program graphs, and a random search over it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcgnn.autograd.band import BAND_PRECISIONS
from hpcgnn.config.options import Chance, Count, Natural, check_values, option, require
from hpcgnn.nn import PROPAGATORS


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramsConfig:
    """A gated graph neural network on supergraphs, with train.task=programs."""

    propagator: str = option(
        "sparse",
        f"how to propagate messages in training: {', '.join(PROPAGATORS)}; evaluation: sparse",
        values=PROPAGATORS,
    )
    block: Natural = option(
        0, "size of the band's blocks; with sparse: drop edges outside such a band, 0: none"
    )
    supernodes: Natural = option(
        0,
        "most dense rows and columns in addition to the band, for the nodes with most neighbours "
        "in graphs that do not fit it; the other nodes are reordered",
    )
    band_precision: str = option(
        "native",
        "precision of the band's products on GPUs: native (train.dtype), tf32 or bfloat16",
        values=BAND_PRECISIONS,
    )
    filter: bool = option(False, "train only on graphs with a bandwidth below the block size")
    self_edges: bool = option(False, "add an edge from each node to itself, with its own type")
    hidden: Count = option(128, "width of node states")
    dropout: Chance = option(0.0, "probability, for the messages into the GRU cell")
    nodes: Count = option(4096, "nodes of a supergraph; a larger graph is a supergraph by itself")
    supergraphs: Count = option(4, "supergraphs per step, divided among the ranks")
    window: Count = option(2048, "graphs that are packed together")
    epoch_graphs: Natural = option(0, "graphs per epoch, drawn again in each; 0: all")
    prefetch: Count = option(2, "steps that are read and packed ahead")
    judge_store: str = option(
        "", "store of the validation, test and unseen graphs; empty: graph.store"
    )
    evaluate_graphs: Natural = option(
        0, "graphs of a split to evaluate after an epoch; 0: all; the selected model: always all"
    )

    def __post_init__(self) -> None:
        check_values("programs", self)
        banded = self.propagator == "sparse" or self.block > 0
        require(banded, "programs.block", self.block, "a band needs blocks of at least 1")
        filtered = not self.filter or self.block > 0
        require(filtered, "programs.filter", self.filter, "needs programs.block")
        allowed = self.supernodes == 0 or (self.block > 0 and not self.filter)
        remedy = "is for graphs that do not fit programs.block: set that, without programs.filter"
        require(allowed, "programs.supernodes", self.supernodes, remedy)


RANGES: Mapping[str, Sequence[object]] = {
    "train.optimizer": ("sgd",),
    "train.schedule": ("linear",),
    "train.learning_rate": (0.03, 0.1, 0.3, 1.0, 3.0),
    "train.decay_steps": (100_000, 300_000),
    "train.schedule_gamma": (0.1, 1.0),
    "train.momentum": (0.3, 0.5, 0.7, 0.9, 0.95, 0.97),
    "train.nesterov": (False, True),
    "train.clip_norm": (0.003, 0.01, 0.1, 0.3),
    "train.weight_decay": (0.1, 1e-6, 1e-5, 1e-4, 1e-3),
    "train.label_smoothing": (0.0, 0.005, 0.05),
    "programs.dropout": (0.4, 0.3, 0.2, 0.1),
}
"""The values in Appendix E of the dense-hardware paper."""

LARGE_BATCH: Mapping[str, Sequence[object]] = {
    "train.learning_rate": (1.0, 3.0, 7.0, 10.0, 30.0),
    "train.decay_steps": (500, 1000, 5000, 10_000),
}
"""The values in Appendix E for steps of many supergraphs. The paper has no rule for scaling rates
with the batch size, but repeats the search for each size."""


def sample_overrides(seed: int, *, large_batch: bool = False) -> list[str]:
    """Return ``section.key=value`` for each key of `RANGES`, drawn by `seed`.

    `large_batch`: draw from `LARGE_BATCH` if it has the key.
    """
    rng = np.random.default_rng(seed)
    ranges = {**RANGES, **(LARGE_BATCH if large_batch else {})}
    drawn = {key: values[int(rng.integers(len(values)))] for key, values in ranges.items()}
    return [f"{key}={json.dumps(value)}" for key, value in drawn.items()]
