"""The objective of fields: predict them at the same step, at the next, or the change to it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import agree, raise_on_all
from hpcgnn.config.config import Config
from hpcgnn.console import report
from hpcgnn.graph.context import Context
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.graph.labels import Reading, label_nodes
from hpcgnn.graph.load import load_graph
from hpcgnn.graph.local_graph import LocalGraph, LocalRows
from hpcgnn.sampling import Prefetch
from hpcgnn.spmd import collective
from hpcgnn.support import Reasons, Trait
from hpcgnn.train.early_stopping import patience_fault
from hpcgnn.train.evaluation import Evaluation
from hpcgnn.train.fields.dynamics import Dynamics, Mesh, Scales, scale_tensors, scales_of
from hpcgnn.train.fields.frames import Columns, column_names
from hpcgnn.train.fields.losses import find_loss
from hpcgnn.train.fields.measure_scales import measure
from hpcgnn.train.fields.metrics import FieldErrors
from hpcgnn.train.fields.noise import Noise
from hpcgnn.train.fields.rollout import Rollouts
from hpcgnn.train.fields.rollout_file import write_rollout
from hpcgnn.train.fields.samples import Sample, SampleStep, Series
from hpcgnn.train.fields.steps import Unroller
from hpcgnn.train.fields.windows import PARTS, Windows
from hpcgnn.train.objectives.objective import OnGraph
from hpcgnn.train.objectives.report import GraphReport
from hpcgnn.train.run.directory import RunDirectory
from hpcgnn.train.run.saved_model import (
    SavedModel,
    check_names,
    open_saved_model,
    require_equal,
)
from hpcgnn.typing import FloatArray

_MUCH_DROPOUT = 0.3
_SAME_LENGTH = 0.01
"""Relative difference from the median step length above which a step is remarked on."""


@dataclass(frozen=True, eq=False)
class FieldReport(GraphReport):
    """Reports on a mesh with fields, whose time steps have the `lengths` (T - R,)."""

    lengths: FloatArray = field(default_factory=lambda: np.empty(0))

    @override
    def remarks(self) -> list[str]:
        share, notes = self.config.model.dropout, super().remarks()
        usual = float(np.median(self.lengths)) if len(self.lengths) else 0.0
        unusual = int(np.count_nonzero(np.abs(self.lengths - usual) > _SAME_LENGTH * usual))
        if unusual and self.config.fields.ahead:
            notes.append(
                f"steps: {unusual} of {len(self.lengths)} differ from the median length {usual:g}; "
                "the model takes each for one step"
            )
        for part in PARTS[1:]:
            wanted = getattr(self.config.fields, part)
            if wanted and not self.counted["samples"][part]:
                notes.append(
                    f"fields.{part} = {wanted}: no sample fits into such a part; raise it"
                    + (", or the last model is kept" if part == "valid" else "")
                )
        if share >= _MUCH_DROPOUT:
            # With the default, which suits classes, a regression model stays near the mean.
            notes.append(f"model.dropout = {share}: models hardly learn fields with it; set 0")
        return notes


class FieldObjective(OnGraph):
    """Learns the fields of all nodes and edges from samples of a series; see `FieldsConfig`."""

    needs: ClassVar[frozenset[Trait]] = frozenset({Trait.STEPS})
    lacks: ClassVar[Reasons] = MappingProxyType(
        {
            Trait.GPU: "its samples are read for CPUs only",
            Trait.SOME_EDGES: "its splits are by time",
            Trait.SPARSE_FEATURES: "fields are dense features",
            Trait.ACTIVE_SETS: "all nodes have a loss",
            Trait.CLASSES: "it predicts no classes",
            Trait.NUMBERS: "it predicts fields",
            Trait.LABELLED_NODES: "it reads no labels",
            Trait.SEVERAL_LABELS: "it reads no labels",
            Trait.NODE_SPLITS: "its splits are by time",
            Trait.NODE_VECTORS: "fields are features of all nodes",
            Trait.PLANNED_FROM_DEGREES: "its samples are read from a store",
            Trait.PAIRS: "it predicts no pairs of nodes",
            Trait.PROGRAMS: "it reads one graph",
            Trait.CHOSEN_ROWS: "a rollout is of all nodes",
            Trait.PROBABILITIES: "it predicts fields",
            Trait.NODE_ROWS: "a rollout has rows for each step",
            Trait.FORMATS: "rollouts are written as .h5 or .xdmf, or with --like",
        }
    )
    reads: ClassVar[Reading] = Reading(("fields",), label_nodes)

    @collective
    def __init__(self, graph: LocalGraph, config: Config, series: Series, scales: Scales) -> None:
        self.graph, self.grid, self.config = graph, graph.grid, config
        self.series, self.scales, self._options = series, scales, config.fields
        with agree(self.grid.world):
            self._loss = find_loss(config.fields)
        dtype = torch.bfloat16 if config.train.precision == "bfloat16" else None
        self.dynamics = Dynamics(
            Mesh(
                graph.view,
                graph.features,
                series.fixed,
                series.absent,
                graph.grid.run_position,
                series.reader.edge_targets,
            ),
            series.columns,
            scales,
            config.fields.predict,
            dtype or getattr(torch, config.train.dtype),
        )
        ids, noise = graph.products.node_ids, None
        if config.fields.noise:
            ends = series.reader.edge_ends(graph.grid, ids)
            noise = Noise.of(config.fields.noise, ids, ends, graph.facts.num_nodes)
        self.unroller = Unroller(self.dynamics, series, graph, noise)
        counts = {part: len(series.windows.anchors(part)) for part in PARTS}
        self.rollouts = Rollouts(self.grid, self.unroller, scales, graph.facts.num_nodes)
        self.about = FieldReport(graph, config, counted={"samples": counts}, lengths=series.lengths)

    @classmethod
    @collective
    @override
    def load(cls, context: Context, *, with_rows: bool = False) -> tuple[Self, LocalRows | None]:
        config = context.config
        graph = load_graph(context, cls.reads, with_rows=with_rows, with_adjacency=True)
        series = Series.open(context, graph)
        num_valid = len(series.windows.anchors("valid"))
        lacks, remedy = "no sample chooses the model", "raise fields.valid"
        raise_on_all(context.grid.world, patience_fault(config.train, num_valid, lacks, remedy))
        with context.trace.span("read.fields"):
            scales = measure(context.grid, series, config.fields.predict)
        return cls(of_fields(graph, series, scales), config, series, scales), graph.rows

    @classmethod
    @collective
    def of_saved(cls, context: Context, saved: SavedModel) -> "FieldObjective":
        """Return the objective of a trained model on the store of its configuration.

        Raises `CollectiveInputError` when the store does not fit the model.
        """
        with agree(context.grid.world):
            known, expected = saved.scales(), saved.trained
            scales = scales_of(saved.checkpoint.features)
        graph = load_graph(replace(context, scales=known), cls.reads)
        series = Series.open(context, graph)
        with_fields = of_fields(graph, series, scales)
        with agree(context.grid.world):
            _require_fit(context.config, with_fields.facts, expected)
            if context.grid.rank == 0:
                _compare(context.config, with_fields.facts, expected)
        # Rollouts have no loss, and a run of somebody else must not import the module of one.
        config = replace(context.config, fields=replace(context.config.fields, loss=""))
        return cls(with_fields, config, series, scales)

    @override
    def tensors(self) -> Mapping[str, Tensor]:
        return {**super().tensors(), **scale_tensors(self.scales)}

    @collective
    @override
    def loss(self, model: Any, step: SampleStep, key: DropoutKey) -> Tensor:
        unroller, depth = self.unroller, max(self._options.ahead, 1)
        if not step.samples:
            # The step has fewer samples than there are groups of ranks, and this one has none.
            return torch.zeros((), dtype=torch.float64, requires_grad=True)
        ahead = range(1, depth + 1) if self._options.ahead else range(1)
        sizes = unroller.sizes(step.samples, ahead)
        total = torch.zeros((), dtype=torch.float64)
        keys = [DropoutKey(key.seed, key.step + step_ahead) for step_ahead in range(depth)]
        frames = []
        for sample in step.samples:
            noise_key = DropoutKey(key.seed, key.step + sample.number * depth)
            frames.append(unroller.read(sample, noise_key))
        unrolled = unroller.unroll(model, step.samples, frames, keys)
        for index, (step_number, last, outputs) in enumerate(unrolled):
            for row, sample in enumerate(step.samples):
                size = sizes[row][index]
                predicted = unroller.told(sample, step_number, last[row], outputs[row], size)
                total = total + self._loss(predicted) / (step.size * depth)
        return total

    @torch.no_grad()
    @collective
    @override
    def evaluate(self, model: Any) -> Evaluation:
        # Predict one step of some samples of each part; errors are summed over all ranks.
        values: dict[str, float] = {}
        ahead = min(self._options.ahead, 1)
        for part in PARTS:
            deviations = self.scales.map(lambda scales: scales.outputs.deviation)
            errors = FieldErrors(self.series.columns, deviations)
            for sample in self._judged(part, ahead):
                frames = self.unroller.read(sample)
                outputs = self.dynamics.outputs(model, frames, None)
                judged = self.unroller.judge(sample, ahead, frames[-1], outputs)
                errors.add(judged, self.graph.view.sums)
            values |= {f"{part}_{name}": value for name, value in errors.metrics().items()}
        return Evaluation(values, self.facts.metric)

    def _judged(self, part: str, ahead: int) -> Iterator[Sample]:
        """Yield the samples that a part is evaluated on; collective."""
        anchors = self.series.windows.judged(part, self._options.evaluated).tolist()
        read = partial(self.series.sample, ahead=ahead)
        with Prefetch(read, anchors, threads=1, depth=1) as samples:
            for _ in anchors:
                with agree(self.grid.world):
                    sample = next(samples)
                yield sample

    @collective
    @override
    def evaluate_kept(self, model: Any) -> dict[str, Any]:
        windows, longest = self.series.windows, max(self._options.horizons, default=0)
        if not longest or self._options.predict == "same":
            return {}
        parts = {
            part: self.rollouts.judge(model, windows.starts(part, self._options.rollouts, longest))
            for part in ("valid", "test")
        }
        return {"rollout": {part: metrics for part, metrics in parts.items() if metrics}}

    @collective
    @override
    def save_predictions(self, directory: RunDirectory, seed: int) -> None:
        start, series = self.rollouts.usual_start, self.series
        available = series.last_step(start) - start + 1 - self.rollouts.first_step
        steps = min(max(self._options.horizons, default=0), available)
        if not steps:
            return
        with agree(self.grid.world):
            saved = open_saved_model(directory.path, seed)
        model = saved.model(self.grid, self.make_model)
        path = directory.path / "rollout.h5"
        write_rollout(self.rollouts, model, (start, steps), path, None, saved.origin())


def of_fields(graph: LocalGraph, series: Series, scales: Scales) -> LocalGraph:
    """Return the graph with facts that count its frame columns as features and targets."""
    facts = field_facts(graph.facts, series.columns, series.windows, scales)
    facts = replace(
        facts, step_length=float(np.median(series.lengths)) if len(series.lengths) else 0.0
    )
    return replace(graph, facts=facts, rows=None, labels=None, split=None)


def field_facts(
    facts: GraphFacts, columns: Columns, windows: Windows, scales: Scales
) -> GraphFacts:
    """Return the graph's facts as models of its fields see them."""
    nodes, edges = columns.rows
    width, outputs = windows.history * nodes.num_read, [s.outputs for s in scales]
    typed = tuple(num_static + width for num_static in facts.type_features)
    return replace(
        facts,
        num_features=0 if typed else facts.num_features + width,
        type_features=typed,
        num_classes=nodes.num_predicted,
        num_edge_outputs=edges.num_predicted,
        multi_label=False,
        class_names=(),
        targets=tuple(name for field in columns.targets for name in column_names(field)),
        units=columns.units,
        inputs=columns.inputs,
        target_means=tuple(np.concatenate([scale.mean for scale in outputs]).tolist()),
        target_scales=tuple(np.concatenate([scale.deviation for scale in outputs]).tolist()),
    )


def _require_fit(config: Config, facts: GraphFacts, expected: GraphFacts) -> None:
    expected = replace(expected, units=expected.units or facts.units)
    for what, key in (
        ("predicted columns", "targets"),
        ("units", "units"),
        ("features a node, with those of frames,", "num_features"),
        ("node types", "type_names"),
        ("features by node type", "type_features"),
        ("features an edge", "num_edge_features"),
        ("directed edges", "directed"),
        ("relations", "relations"),
    ):
        require_equal(config.graph.store, what, getattr(facts, key), getattr(expected, key))


def _compare(config: Config, facts: GraphFacts, expected: GraphFacts) -> None:
    """Compare names of features and the length of steps with those of training."""
    store, (mine, trained) = config.graph.store, (facts.step_length, expected.step_length)
    check_names(store, "feature", facts.feature_names, expected.feature_names)
    names = facts.edge_feature_names, expected.edge_feature_names
    check_names(store, "feature of edges", *names)
    if expected.inputs:
        # As many columns may belong to other fields.
        of_fields = ([name.rpartition(":")[0] for name in f.inputs] for f in (facts, expected))
        require_equal(store, "columns of the inputs", *of_fields)
        check_names(store, "column of the inputs", facts.inputs, expected.inputs)
    if config.fields.ahead and mine and trained and abs(mine - trained) > _SAME_LENGTH * trained:
        report(
            f"{store}: has steps of {mine:g}, and the model was trained with steps of {trained:g}; "
            "it takes each for one step"
        )
