"""VarMisuse on program graphs: each rank trains on supergraphs of its own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import ProcessGrid, agree, allreduce_sum
from hpcgnn.errors import InputError
from hpcgnn.nn import GGNN, GGNNShape, candidate_loss, make_ggnn
from hpcgnn.storage import InstanceSplit, InstanceStore
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.config import Config
from hpcgnn.train.metrics import Evaluation
from hpcgnn.train.model_config import ModelConfig
from hpcgnn.train.prefetch import Prefetch
from hpcgnn.train.programs_input import ProgramInput, StepInput
from hpcgnn.train.programs_predictions import save_program_predictions
from hpcgnn.train.run_directory import RunDirectory
from hpcgnn.train.task import Facts, Step

__all__ = ["ProgramFacts", "ProgramsTask"]

_JUDGED = {
    "valid": InstanceSplit.VALID,
    "test": InstanceSplit.TEST,
    "unseen": InstanceSplit.UNSEEN,
}


@dataclass(frozen=True, kw_only=True)
class ProgramFacts(Facts):
    """A store of program graphs.

    Parameters
    ----------
    num_graphs, num_train
        Graphs of all splits, and those that are trained on.
    num_buckets, num_types, steps
        Buckets of sub-tokens, types of edges with their reverses, steps of message passing.
    """

    num_graphs: int
    num_train: int
    num_buckets: int
    num_types: int
    steps: int

    @property
    def metric(self) -> str:
        """Accuracy: the share of holes whose right variable scores highest."""
        return "accuracy"


class ProgramsTask:
    """The shard of one rank and the loss over all ranks.

    Collective.

    Parameters
    ----------
    grid
        The ranks, without replication.
    config
        The configuration.
    trace
        Where times are recorded.

    Raises
    ------
    CollectiveInputError
        When the store does not read, has nothing to train on, or options do not apply.
    """

    def __init__(self, grid: ProcessGrid, config: Config, trace: TraceRecorder) -> None:
        self.grid, self._config, self._trace = grid, config, trace
        self._dtype = getattr(torch, config.train.dtype)
        with agree(grid.world):
            _check_options(config)
            self._store = InstanceStore.open(config.graph.store)
            self._judged = self._open_judged()
            self._input = ProgramInput(
                self._store,
                self._judged,
                config.programs,
                rank=grid.rank,
                num_ranks=grid.size,
                dtype=self._dtype,
                trace=trace,
            )
            if len(self._input.train_graphs) == 0:
                raise InputError(f"{config.graph.store}: no graph is left to train on")
        self._edges = self._dropped = self._nodes = self._graphs = self._supergraphs = 0

    def _open_judged(self) -> InstanceStore:
        path = self._config.programs.judge_store
        if not path:
            return self._store
        judged = InstanceStore.open(path)
        for what in ("edge_names", "num_buckets", "steps"):
            mine, theirs = (getattr(each.header, what) for each in (self._store, judged))
            if mine != theirs:
                raise InputError(
                    f"programs.judge_store {path}: {what} {theirs}, but {mine} in "
                    f"{self._config.graph.store}; convert both with the same options"
                )
        return judged

    @property
    def facts(self) -> ProgramFacts:
        """Sizes of the store."""
        header = self._store.header
        return ProgramFacts(
            name=header.name,
            fingerprint=self._store.fingerprint,
            num_graphs=len(self._store),
            num_train=len(self._input.train_graphs),
            num_buckets=header.num_buckets,
            num_types=2 * len(header.edge_names),
            steps=header.steps,
        )

    def make_model(self, seed: int) -> GGNN:
        """Return a new model, equal on all ranks.

        Not collective.
        """
        facts, programs = self.facts, self._config.programs
        shape = GGNNShape(
            num_buckets=facts.num_buckets,
            num_types=facts.num_types,
            hidden=programs.hidden,
            steps=facts.steps,
            dropout=programs.dropout,
        )
        return make_ggnn(shape, seed=seed, dtype=self._dtype)

    def steps(self, seed: int, epoch: int) -> Iterator[Step]:
        """Yield the steps of an epoch; a thread reads and packs ahead.

        Not collective.
        """
        items = self._input.steps(seed, epoch)
        with Prefetch(items, self._config.programs.prefetch) as prefetch:
            ready, number = iter(prefetch), 0
            while True:
                with self._trace.span("wait.input"):
                    found = next(ready, None)
                if found is None:
                    return
                # Epochs have fewer steps than this.
                key = DropoutKey(seed, (epoch << 32) + number)
                yield partial(self._loss, found, key)
                number += 1

    def _loss(self, step: StepInput, key: DropoutKey, model: GGNN) -> Tensor:
        total = torch.zeros((), dtype=self._dtype, requires_grad=True)
        for each in step.mine:
            logits_M = model(each.graph, each.propagator, key)
            smoothing = self._config.train.label_smoothing
            loss, _ = candidate_loss(logits_M, each.graph, step.num_graphs, smoothing)
            total = total + loss
            self._edges += len(each.graph.edges)
            self._dropped += each.propagator.dropped
            self._nodes += each.graph.num_nodes
            self._graphs += each.graph.num_graphs
            self._supergraphs += 1
        return total

    def evaluate(self, model: GGNN) -> Evaluation:
        """Return loss and accuracy on the validation, test and unseen graphs.

        Collective.
        """
        return Evaluation(self._judge(model, self._config.programs.evaluate_graphs), "accuracy")

    def evaluate_kept(self, model: GGNN) -> dict[str, Any]:
        """Return the metrics on all graphs, where epochs judged a sample.

        Collective.
        """
        return {"all_graphs": self._judge(model, 0)}

    @torch.no_grad()
    def _judge(self, model: GGNN, limit: int) -> dict[str, float]:
        sums = np.zeros((len(_JUDGED), 3))
        for row, split in enumerate(_JUDGED.values()):
            for each in self._input.evaluation(split, limit):
                logits_M = model(each.graph, each.propagator, None)
                loss, correct = candidate_loss(logits_M, each.graph, 1)
                sums[row] += [each.graph.num_graphs, float(loss), int(correct.sum())]
        allreduce_sum(self.grid.world, sums)
        values = {}
        for prefix, (count, loss_sum, correct_sum) in zip(_JUDGED, sums, strict=True):
            if count:
                values[f"{prefix}_loss"] = loss_sum / count
                values[f"{prefix}_accuracy"] = correct_sum / count
        return values

    def tensors(self) -> Mapping[str, Tensor]:
        """Return nothing: a checkpoint keeps the model only.

        Not collective.
        """
        return {}

    def describe(self, threads: int) -> str:
        """Return the line that says what is about to run.

        Not collective.
        """
        facts, programs = self.facts, self._config.programs
        band = f" with blocks of {programs.block}" if programs.block else ""
        return (
            f"GGNN of width {programs.hidden} on {facts.name}: {facts.num_train} training graphs "
            f"of {facts.num_graphs}, {facts.steps} steps; {self.grid.size} ranks with {threads} "
            f"threads, {programs.supergraphs} supergraphs of {programs.nodes} nodes a step, "
            f"{programs.propagator}{band}, {self._config.train.dtype}"
        )

    def rank_details(self) -> dict[str, Any]:
        """Return what this rank trained on.

        Not collective.
        """
        return {
            "graphs": self._graphs,
            "supergraphs": self._supergraphs,
            "nodes": self._nodes,
            "edges": self._edges,
            "dropped_edges": self._dropped,
        }

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the store, its baselines, and what all ranks trained on.

        Not collective.
        """
        names = ("graphs", "supergraphs", "nodes", "edges", "dropped_edges")
        chance = {}
        for prefix, split in _JUDGED.items():
            low, high = self._judged.split_range(split)
            counts = self._judged.graphs["num_candidates"][low:high]
            chance[prefix] = float((1 / counts).mean()) if high > low else None
        return {
            "propagator": self._config.programs.propagator,
            "block": self._config.programs.block,
            "chance": chance,
            "trained": {name: sum(rank[name] for rank in ranks) for name in names},
        }

    def save_predictions(self, directory: RunDirectory, seed: int) -> None:
        """Write the shares of all candidates by the model that `seed` kept.

        Collective.
        """
        save_program_predictions(
            self.grid, self._judged, self._input, self.make_model, directory, seed
        )


def _check_options(config: Config) -> None:
    """Refuse what this task would ignore."""
    if config.model != ModelConfig():
        raise InputError("[model] is for graphs of nodes; [programs] has the model of programs")
    if config.exchange.replication != 1:
        raise InputError("exchange.replication: supergraphs have no block rows; leave it at 1")
    if config.train.label_augmentation or config.train.activations != "native":
        raise InputError(
            "train.label_augmentation and train.activations are for graphs of nodes; leave them out"
        )
