"""The VarMisuse objective: predict which variable belongs in a hole of a program."""

from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import agree
from hpcgnn.console import number
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.graph.local_graph import LocalRows
from hpcgnn.nn import GGNN, candidate_loss
from hpcgnn.spmd import collective
from hpcgnn.storage import InstanceSplit, InstanceStore
from hpcgnn.storage.by_ranks import check_rows_read
from hpcgnn.support import Reasons, Trait
from hpcgnn.train.early_stopping import patience_fault
from hpcgnn.train.evaluation import Evaluation
from hpcgnn.train.objectives.objective import About, Objective, StoreKind
from hpcgnn.train.programs.facts import JUDGED, ProgramFacts, model_of, open_judged, program_facts
from hpcgnn.train.programs.input import Prepared, ProgramInput, ProgramStep
from hpcgnn.train.programs.predictions import chance, judge, save_program_predictions
from hpcgnn.train.run.directory import RunDirectory

_COUNTED = (
    "graphs",
    "supergraphs",
    "nodes",
    "edges",
    "dropped_edges",
    "supernodes",
    "supernode_edges",
)


class ProgramObjective(Objective, About):
    """Learns the variables that belong in the holes of programs; the grid has no replication.

    Raises `CollectiveInputError` if the store cannot be read or has nothing to train on, or if an
    option does not apply.
    """

    store: ClassVar[StoreKind] = InstanceStore
    lacks: ClassVar[Reasons] = {
        Trait.BLOCK_ROWS: "its model and data are in [programs]",
        Trait.EQUAL_BITS: "its sums round in the order of the ranks",
        Trait.SIXTEEN_BITS: "its rows are in train.dtype",
        Trait.INTEGER_PRODUCTS: "its products are those of its propagator",
        Trait.SOME_EDGES: "its splits are of programs",
        Trait.NODE_SPLITS: "its splits are of programs",
        Trait.LABELLED_NODES: "it reads no labels of nodes",
        Trait.PLANNED: "its supergraphs are not counted",
        Trait.EXPORTED: "its banded layers have no counterpart elsewhere",
        Trait.OWN_LOOPS: "its store is one of many graphs; use the command",
        Trait.PAIRS: "it predicts no pairs of nodes",
        Trait.FIELDS: "it scores candidates only",
        Trait.NODE_ROWS: "it scores candidates, which have probabilities",
        Trait.CHOSEN_ROWS: "it scores all programs of the store, as h5",
        Trait.FORMATS: "it scores all programs of the store, as h5",
    }

    @collective
    def __init__(self, context: Context) -> None:
        grid, config, trace = context.grid, context.config, context.trace
        self.grid, self._config, self._place = grid, config, context.device.torch_device
        self._dtype = getattr(torch, config.train.dtype)
        with agree(grid.world):
            self._store = InstanceStore.open(config.graph.store)
            self._judged = open_judged(self._store, config.programs.judge_store)
            self.input = ProgramInput(self._store, self._judged, context)
            if len(self.input.train_graphs) == 0:
                raise InputError(f"{config.graph.store}: no graph is left to train on")
            low, high = self._judged.split_range(InstanceSplit.VALID)
            lacks = f"{self._judged.path} has no validation graph"
            fault = patience_fault(config.train, high - low, lacks, "programs.judge_store")
            if fault is not None:
                raise fault
        with trace.span("read.checksums"):
            for store in dict.fromkeys((self._store, self._judged)):
                with agree(grid.world):
                    store.read_share(grid.rank, grid.size)
                check_rows_read(grid.world, store)
        self._trained = dict.fromkeys(_COUNTED, 0)
        self.about = self

    @classmethod
    @collective
    @override
    def load(cls, context: Context, *, with_rows: bool = False) -> tuple[Self, LocalRows | None]:
        return cls(context), None

    @property
    @override
    def facts(self) -> ProgramFacts:
        return program_facts(self._store, len(self.input.train_graphs))

    @override
    def make_model(self, seed: int) -> GGNN:
        model = model_of(self.facts, self._config.programs, seed, self._dtype)
        return model.to(self._place)

    @collective
    @override
    def loss(self, model: GGNN, step: ProgramStep, key: DropoutKey) -> Tensor:
        total = torch.zeros((), dtype=self._dtype, device=self._place, requires_grad=True)
        for prepared in step.own_graphs:
            logits_M = model(prepared.graph, prepared.propagator, key)
            smoothing = self._config.train.label_smoothing
            loss, _ = candidate_loss(logits_M, prepared.graph, step.num_graphs, smoothing)
            total = total + loss
            self._count(prepared)
        return total

    def _count(self, prepared: Prepared) -> None:
        graph, supernodes = prepared.graph, prepared.graph.supernodes
        counts = {
            "graphs": graph.num_graphs,
            "supergraphs": 1,
            "nodes": graph.num_nodes,
            "edges": len(graph.edges),
            "dropped_edges": prepared.propagator.dropped,
            "supernodes": 0 if supernodes is None else len(supernodes),
            "supernode_edges": prepared.num_supernode_edges,
        }
        for name, count in counts.items():
            self._trained[name] += count

    @collective
    @override
    def evaluate(self, model: GGNN) -> Evaluation:
        # Loss and accuracy on the validation, test and unseen graphs.
        limit = self._config.programs.evaluate_graphs
        return Evaluation(judge(self.grid, self.input, model, limit), "accuracy")

    @collective
    @override
    def evaluate_kept(self, model: GGNN) -> dict[str, Any]:
        return {"all_graphs": judge(self.grid, self.input, model, 0)}

    @override
    def describe(self, threads: int) -> str:
        facts, programs = self.facts, self._config.programs
        band = f" with blocks of {programs.block}" if programs.block else ""
        if programs.supernodes:
            band += f" and up to {programs.supernodes} supernodes a graph"
        return (
            f"GGNN of width {programs.hidden} on {facts.name}: {facts.num_train:,} training graphs "
            f"of {facts.num_graphs:,}, {number(facts.steps, 'step')}; "
            f"{number(self.grid.size, 'rank')} with {number(threads, 'thread')}, "
            f"{programs.supergraphs} supergraphs of {programs.nodes:,} nodes a step, "
            f"{programs.propagator}{band}, {self._config.train.dtype}"
        )

    @override
    def details(self) -> dict[str, Any]:
        return dict(self._trained)

    @override
    def summary(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "propagator": self._config.programs.propagator,
            "block": self._config.programs.block,
            "supernodes": self._config.programs.supernodes,
            "chance": {name: chance(self._judged, split) for name, split in JUDGED.items()},
            "trained": {name: sum(rank[name] for rank in ranks) for name in _COUNTED},
        }

    @collective
    @override
    def save_predictions(self, directory: RunDirectory, seed: int) -> None:
        save_program_predictions(self.grid, self._judged, self.input, directory, seed)
