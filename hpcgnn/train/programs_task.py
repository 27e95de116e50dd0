"""VarMisuse on program graphs: each rank trains on supergraphs of its own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.errors import InputError
from hpcgnn.nn import GGNN, candidate_loss
from hpcgnn.storage import InstanceStore
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.ahead import ready_ahead
from hpcgnn.train.config import Config
from hpcgnn.train.device import open_device
from hpcgnn.train.metrics import Evaluation
from hpcgnn.train.model_config import ModelConfig
from hpcgnn.train.prefetch import Prefetch
from hpcgnn.train.programs_facts import (
    JUDGED,
    ProgramFacts,
    model_of,
    open_judged,
    program_facts,
)
from hpcgnn.train.programs_input import Prepared, ProgramInput, StepInput
from hpcgnn.train.programs_predictions import save_program_predictions
from hpcgnn.train.programs_scores import chance, judge
from hpcgnn.train.run_directory import RunDirectory
from hpcgnn.train.task import Step

__all__ = ["ProgramsTask"]

_COUNTED = (
    "graphs",
    "supergraphs",
    "nodes",
    "edges",
    "dropped_edges",
    "supernodes",
    "supernode_edges",
)


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
        self._device = open_device(grid, config, trace)
        with agree(grid.world):
            _check_options(config)
            self._store = InstanceStore.open(config.graph.store)
            self._judged = open_judged(self._store, config.programs.judge_store)
            self._input = ProgramInput(
                self._store,
                self._judged,
                config.programs,
                rank=grid.rank,
                num_ranks=grid.size,
                dtype=self._dtype,
                trace=trace,
                device=self._device,
            )
            if len(self._input.train_graphs) == 0:
                raise InputError(f"{config.graph.store}: no graph is left to train on")
        self._trained = dict.fromkeys(_COUNTED, 0)

    @property
    def facts(self) -> ProgramFacts:
        """Sizes of the store."""
        return program_facts(self._store, len(self._input.train_graphs))

    def make_model(self, seed: int) -> GGNN:
        """Return a new model, equal on all ranks.

        Not collective.
        """
        model = model_of(self.facts, self._config.programs, seed, self._dtype)
        return model.to(self._device.place)

    def steps(self, seed: int, epoch: int) -> Iterator[Step]:
        """Yield the steps of an epoch; a thread reads and packs ahead.

        Not collective.
        """
        items = self._input.steps(seed, epoch)
        with Prefetch(items, self._config.programs.prefetch) as prefetch:
            ready, number = ready_ahead(self._device, prefetch, self._on_device), 0
            while True:
                with self._trace.span("wait.input"):
                    found = next(ready, None)
                if found is None:
                    return
                # Epochs have fewer steps than this.
                key = DropoutKey(seed, (epoch << 32) + number)
                yield partial(self._loss, found, key)
                number += 1

    def _on_device(self, step: StepInput) -> StepInput:
        return replace(step, mine=tuple(self._input.on_device(each) for each in step.mine))

    def _loss(self, ready: Callable[[], StepInput], key: DropoutKey, model: GGNN) -> Tensor:
        step, place = ready(), self._device.place
        total = torch.zeros((), dtype=self._dtype, device=place, requires_grad=True)
        for each in step.mine:
            logits_M = model(each.graph, each.propagator, key)
            smoothing = self._config.train.label_smoothing
            loss, _ = candidate_loss(logits_M, each.graph, step.num_graphs, smoothing)
            total = total + loss
            self._count(each)
        return total

    def _count(self, each: Prepared) -> None:
        graph, supernodes = each.graph, each.graph.supernodes
        found = {
            "graphs": graph.num_graphs,
            "supergraphs": 1,
            "nodes": graph.num_nodes,
            "edges": len(graph.edges),
            "dropped_edges": each.propagator.dropped,
            "supernodes": 0 if supernodes is None else len(supernodes),
            "supernode_edges": each.num_supernode_edges,
        }
        for name, count in found.items():
            self._trained[name] += count

    def evaluate(self, model: GGNN) -> Evaluation:
        """Return loss and accuracy on the validation, test and unseen graphs.

        Collective.
        """
        limit = self._config.programs.evaluate_graphs
        return Evaluation(judge(self.grid, self._input, model, limit), "accuracy")

    def evaluate_kept(self, model: GGNN) -> dict[str, Any]:
        """Return the metrics on all graphs, where epochs judged a sample.

        Collective.
        """
        return {"all_graphs": judge(self.grid, self._input, model, 0)}

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
        if programs.supernodes:
            band += f" and up to {programs.supernodes} supernodes a graph"
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
        return dict(self._trained)

    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the store, its baselines, and what all ranks trained on.

        Not collective.
        """
        return {
            "propagator": self._config.programs.propagator,
            "block": self._config.programs.block,
            "supernodes": self._config.programs.supernodes,
            "chance": {name: chance(self._judged, split) for name, split in JUDGED.items()},
            "trained": {name: sum(rank[name] for rank in ranks) for name in _COUNTED},
        }

    def save_predictions(self, directory: RunDirectory, seed: int) -> None:
        """Write the shares of all candidates by the model that `seed` kept.

        Collective.
        """
        save_program_predictions(self.grid, self._judged, self._input, directory, seed)


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
