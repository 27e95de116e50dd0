"""Random fields for tests/oracle.py, and training on them in dense float64 from the formulas."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.config.config import Config
from hpcgnn.nn import Model
from hpcgnn.storage import SeriesArrays
from hpcgnn.train.fields.noise import normal
from tests.support.dense_edges import edge_state_outputs
from tests.support.oracle_graphs import OracleGraph
from tests.support.oracle_reference import Expected, Reference, Said

PARTS = ("train", "valid", "test")
VARIES = 1e-6
"""The least relative spread of a column's squares for which R² is compared."""


def with_series(rng: np.random.Generator, graph: OracleGraph) -> OracleGraph:
    """Return the graph with fields: a wide one, a constant one, types, missing values."""
    count = graph.num_nodes
    lengths = rng.integers(9, 14, int(rng.choice([1, 1, 3, 4])))
    steps, values = int(lengths.sum()), {}
    for name, width in (("u", int(rng.integers(1, 4))), ("p", 1), ("still", 1)):
        moves = rng.normal(size=(steps, count, width)).cumsum(0)
        rows = rng.choice([1, 50]) * moves + rng.choice([0, 0, 100])
        if name == "still":
            rows[:] = rng.choice([0, 3.25])
        rows[rng.random(rows.shape) < rng.choice([0, 0.15])] = np.nan
        if rng.random() < 0.2:
            rows[:, rng.integers(count)] = np.nan
        if rng.random() < 0.2:
            rows[rng.integers(steps)] = np.nan
        values[name] = rows.astype(rng.choice(["f8", "f8", "f4", "f2"]))
    times = np.concatenate([0.5 * np.arange(length) for length in lengths])
    starts = np.concatenate([[0], lengths.cumsum()])
    weights = rng.uniform(0.5, 2, count) if rng.random() < 0.5 else None
    features = graph.features
    if features is not None and rng.random() < 0.5:
        # Some nodes are prescribed.
        features = features.copy()
        features[:, 0] = rng.random(count) < 0.3
    series = SeriesArrays(times, starts, values, _of_edges(graph, steps))
    return replace(graph, features=features, weights=weights, series=series)


def _of_edges(graph: OracleGraph, steps: int) -> dict[str, np.ndarray]:
    """Return fields of the edges of the only relation, some with missing values; {} without any."""
    if list(graph.relations) != [""] or not len(graph.relations[""].src):
        return {}
    count, features = len(graph.relations[""].src), graph.relations[""].features
    # A separate draw, so that other cases stay the same.
    rng, values = np.random.default_rng([steps, count, graph.num_nodes]), {}
    if features is not None and features.shape[1]:
        # Some edges may be prescribed.
        features[:, 0] *= np.random.default_rng(count).random(count) < 0.3
    for name, width in (("flow", int(rng.integers(1, 3))), ("load", 1)):
        rows = rng.normal(size=(steps, count, width)) * rng.choice([1, 30]) + rng.choice([0, 5])
        rows[rng.random(rows.shape) < rng.choice([0, 0.15])] = np.nan
        values[name] = rows.astype(rng.choice(["f8", "f4", "f2"]))
    return values


def edge_words(
    rng: np.random.Generator, graph: OracleGraph, kind: type[Model], words: list[str]
) -> Iterator[str]:
    """Yield the settings of inputs and predictions of edge fields; a few of them are refused.

    `words` are the settings for nodes.
    """
    assert graph.series is not None
    names, chosen = list(graph.series.edge_values), list[str]()
    messages = any(each.passes_messages for each in kind.aggregations)
    reads = messages or "edge_features" in kind.options
    if names and rng.random() < (0.6 if reads else 0.03):
        chosen = list(map(str, rng.permutation(names)))[: int(rng.integers(1, 3))]
        yield f"fields.edge_inputs={chosen}"
    if "fields.predict=same" in words:
        names = [name for name in names if name not in chosen]
    if names and rng.random() < (0.6 if kind.has_edge_states else 0.03):
        yield f"fields.edge_targets={list(map(str, rng.permutation(names)))[: rng.integers(1, 3)]}"
        if graph.relations[""].features is not None and rng.random() < 0.4:
            yield "fields.edge_fixed=feature:0"
        if rng.random() < 0.4:
            yield "fields.targets=[]"


def field_words(rng: np.random.Generator, graph: OracleGraph, ranks: int) -> Iterator[str]:
    """Yield the settings of learning the fields."""
    assert graph.series is not None
    yield "train.task=fields"
    names, predict = (
        list(rng.permutation(["u", "p", "still"])),
        rng.choice(["same", "next", "difference"]),
    )
    several = int(rng.integers(1, 3))
    targets, others = names[:several], names[several:]
    inputs = others if predict == "same" else list(rng.permutation(targets + others))
    yield f"fields.targets={list(map(str, targets))}"
    yield f"fields.predict={predict}"
    if predict == "same" or rng.random() < 0.5:
        yield f"fields.inputs={list(map(str, inputs[: rng.integers(1, len(inputs) + 1)]))}"
    if predict != "same":
        yield f"fields.unroll={rng.integers(1, 4)}"
    yield f"fields.history={rng.integers(1, 4)}"
    batch = int(rng.integers(1, 5))
    yield f"fields.batch={batch}"
    yield f"fields.evaluated={rng.integers(0, 3)}"
    yield f"fields.horizons={[1, 3] if rng.random() < 0.9 else []}"
    if len(np.asarray(graph.series.trajectory_starts)) > 3 and rng.random() < 0.5:
        yield from ("fields.split=trajectory", "fields.valid=0.3", "fields.test=0.3")
    else:
        yield from ("fields.valid=0.2", f"fields.test={rng.choice([0, 0.2])}")
    if rng.random() < 0.2:
        yield "fields.noise=0.1"
    if rng.random() < 0.4:
        if graph.types is not None:
            yield f"fields.fixed={[str(rng.choice(['plain', 'bare', 'rare', 'absent']))]}"
        elif graph.features is not None:
            # Prescribe some nodes, unless nothing would be left to predict.
            some = np.random.default_rng(graph.num_nodes).random(graph.num_nodes) < 0.3
            graph.features[:, 0] *= some
            yield "fields.fixed=feature:0"
    groups = [each for each in range(1, batch + 1) if ranks % each == 0]
    if rng.random() < 0.4:
        yield f"exchange.groups={rng.choice(groups)}"


@dataclass(frozen=True)
class _Scale:
    """Means and deviations (W,) of columns, rounded as described for `Scale`."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, rows: np.ndarray, weights: np.ndarray) -> "_Scale":
        """Return those of rows (steps, n, W), NaN if missing, of nodes with weights (n,)."""
        means, sizes = [], []
        for column in np.moveaxis(rows, 2, 0):
            known = ~np.isnan(column)
            counts = np.broadcast_to(weights, column.shape)[known]
            total, values = counts.sum(), column[known]
            mean = (counts * values).sum() / total if total > 0 else 0.0
            spread = np.sqrt((counts * (values - mean) ** 2).sum() / total) if total > 0 else 0.0
            size = float(f"{spread:.5e}") if spread > 1e-12 * abs(mean) else 1.0
            grain = size / 65536
            means.append(np.round(mean / grain) * grain)
            sizes.append(size)
        return cls(*(torch.tensor(each, dtype=torch.float64) for each in (means, sizes)))


class FieldReference(Reference):
    """The fields of all nodes and edges, sample by sample.

    The rows of a frame are nodes, then edges; its columns are predictions for nodes and for edges,
    then other inputs of both. Values of edges are missing at nodes, and those of nodes at edges.
    """

    def __init__(self, graph: OracleGraph, config: Config) -> None:
        assert graph.series is not None
        options, count, series = config.fields, graph.num_nodes, graph.series
        self.options, self._frames = options, None
        order = np.empty(0, np.int64)
        if options.edge_names:
            relation = graph.relations[""]
            numbers = np.arange(len(relation.src))[:, None]
            (*_, order) = graph._entries(
                replace(relation, features=numbers), np.arange(count), set()
            )
            order = order[:, 0]
        self.places, columns = {}, []
        predicted = options.targets, options.edge_targets
        for name in dict.fromkeys(sum((*predicted, options.names, options.edge_names), ())):
            of_edges = name in series.edge_values
            known = series.edge_values if of_edges else series.values
            values = np.asarray(known[name], np.float64)
            column = np.full((len(values), count + len(order), values.shape[2]), np.nan)
            if of_edges:
                column[:, count:] = values[:, order]
            else:
                column[:, :count] = values
            start = sum(each.shape[2] for each in columns)
            self.places[name] = slice(start, start + values.shape[2])
            columns.append(column)
        self.frames = torch.from_numpy(np.concatenate(columns, 2))
        places = np.arange(self.frames.shape[2])
        self.width, self.widths = 0, []
        for names in predicted:
            self.widths.append(sum(len(places[self.places[name]]) for name in names))
            self.width += self.widths[-1]
        self.read, self.read_of_edges = (
            np.concatenate([places[:0], *(places[self.places[name]] for name in names)])
            for names in (options.read, options.read_of_edges)
        )
        self.shift = int(options.predict != "same")
        weights = np.ones(count) if graph.weights is None else graph.weights
        self.weights = np.concatenate([weights, np.ones(len(order))])
        if graph.features is None and graph.types is None:
            graph = replace(graph, features=np.zeros((count, 0), np.float32))
        self.fixed = torch.cat([self._fixed(graph), self._fixed_edges(graph)[order]])
        # Never predicted: fixed rows, and those without any value at any time.
        never = self.frames[:, :, : self.width].isnan().all(0)
        self._stays = self.fixed[:, None] | never
        starts = np.asarray(series.trajectory_starts).tolist()
        self.wholes = [range(*ends) for ends in pairwise(starts)]
        self.spans = self._parts(self.wholes)
        self._measure()
        super().__init__(graph, config)
        self._copies: dict[int, Any] = {}

    def _fixed(self, graph: OracleGraph) -> Tensor:
        fixed = np.zeros(graph.num_nodes, bool)
        for name in self.options.fixed:
            if graph.types is not None:
                fixed |= graph.types == list(graph.type_features).index(name)
            else:
                fixed |= graph.features[:, int(name.partition(":")[2])] != 0
        return torch.from_numpy(fixed)

    def _fixed_edges(self, graph: OracleGraph) -> Tensor:
        relation = next(iter(graph.relations.values()))
        fixed = np.zeros(len(relation.src), bool)
        for name in self.options.edge_fixed:
            assert relation.features is not None
            fixed |= relation.features[:, int(name.partition(":")[2])] != 0
        return torch.from_numpy(fixed)

    def _parts(self, spans: list[range]) -> dict[str, list[range]]:
        """Return the steps of each part, by trajectory."""
        options = self.options
        found: dict[str, list[range]] = {part: [] for part in PARTS}
        if options.split == "time":
            for span in spans:
                test, valid = (round(s * len(span)) for s in (options.test, options.valid))
                first = len(span) - test - valid
                found["train"].append(span[:first])
                found["valid"].append(span[first : first + valid])
                found["test"].append(span[first + valid :])
            return found
        order = np.random.default_rng(options.split_seed).permutation(len(spans)).tolist()
        test, valid = (round(share * len(spans)) for share in (options.test, options.valid))
        first = len(spans) - test - valid
        for place, number in enumerate(order):
            part = "train" if place < first else "valid" if place < first + valid else "test"
            found[part].append(spans[number])
        return {part: sorted(each, key=lambda span: span.start) for part, each in found.items()}

    def _measure(self) -> None:
        trained = [self.frames[span.start : span.stop].numpy() for span in self.spans["train"]]
        self.scale = _Scale.of(np.concatenate(trained), self.weights)
        targets = [each[:, :, : self.width] for each in trained]
        if self.options.predict == "difference":
            targets = [np.diff(each, axis=0) for each in targets]
        counted, targets = self.weights * ~self.fixed.numpy(), np.concatenate(targets)
        self.outputs_scale = _Scale.of(targets, counted)
        self._learns = bool((~np.isnan(targets) * counted[:, None] > 0).any())

    @override
    def refusals(self) -> Iterator[str]:
        if not self.anchors("train", self.options.ahead):
            reach = self.options.history + self.options.ahead
            longest = max(map(len, self.wholes))
            yield (
                f"fields: a sample is {reach} steps of one part, and no part of {longest} steps "
                "to train on holds one; lower fields.history, fields.unroll, fields.valid or "
                "fields.test"
            )
        elif not self._learns:
            names = ", ".join((*self.options.targets, *self.options.edge_targets))
            yield (
                f"fields: {names}: no value to train on: at all training steps each is missing, "
                "given (fields.fixed, fields.edge_fixed), or of a node of weight 0"
            )

    def anchors(self, part: str, ahead: int) -> list[int]:
        """Return the last steps that the samples of a part read."""
        behind = self.options.history - 1
        spans = self.spans[part]
        return [step for span in spans for step in span[behind : len(span) - ahead]]

    @property
    @override
    def num_outputs(self) -> int:
        return self.widths[0]

    @property
    @override
    def reached(self) -> Tensor:
        return torch.ones(self.graph.num_nodes, dtype=torch.bool)

    @override
    def _label_columns(self, key: DropoutKey | None) -> Tensor | None:
        # Frames follow features, for all types.
        if self._frames is None:
            return torch.zeros(self.graph.num_nodes, self.options.history * len(self.read))
        return self._frames

    @override
    def _shape(self) -> Any:
        typed, more = super()._widths(), self.options.history * len(self.read)
        shape = super()._shape()
        if moving := self.options.history * len(self.read_of_edges):
            shape = replace(shape, num_edge_features=shape.num_edge_features + moving)
        widths = tuple(width + more for width in typed)
        return replace(shape, type_features=widths, num_edge_outputs=self.widths[1])

    def filled(self, step: int) -> Tensor:
        """Return a frame (N, W), its missing values replaced by means."""
        frame = self.frames[step]
        return torch.where(frame.isnan(), self.scale.mean, frame)

    def model_outputs(self, samples: list[list[Tensor]], key: DropoutKey | None) -> list[Tensor]:
        """Return the outputs of the model for the frames of some samples, in one pass."""
        count = len(samples)
        if count not in self._copies:
            self._copies[count] = self.whole.copies(count)
        rows, edges, nodes = [], [], self.graph.num_nodes
        assert self.whole.edges is not None
        for frames in samples:
            scaled = [(each - self.scale.mean) / self.scale.deviation for each in frames]
            self._frames = torch.cat([each[:nodes, self.read] for each in scaled], 1)
            rows.append(self._first(key))
            moving = [each[nodes:, self.read_of_edges] for each in scaled]
            fixed = self.whole.edges.features
            edges.append(torch.cat([fixed, *(moving if len(self.read_of_edges) else [])], 1))
        self._frames = None
        dense = self._copies[count]
        dense = replace(dense, edges=replace(dense.edges, features=torch.cat(edges)))
        joined, cut = torch.cat(rows), self.widths
        if cut[1]:
            name = self.config.model.name
            found = edge_state_outputs(name, self._body, dense, joined, key)
        else:
            of_nodes = self.logits(dense, joined, key)
            found = of_nodes, of_nodes.new_zeros(count * (self.frames.shape[1] - nodes), 0)
        parts = (each.split([len(each) // count] * count) for each in found)
        pads = (0, cut[1]), (cut[0], 0)
        return [
            torch.cat([functional.pad(*each) for each in zip(pair, pads, strict=True)])
            for pair in zip(*parts, strict=True)
        ]

    def predicted(self, outputs: Tensor, last: Tensor) -> Tensor:
        """Return the targets in physical units."""
        values = outputs * self.outputs_scale.deviation + self.outputs_scale.mean
        return values + last[:, : self.width] * (self.options.predict == "difference")

    def follow(self, outputs: Tensor, last: Tensor, step: int) -> Tensor:
        """Return the frame of a step, from the model's output for the `last` one."""
        given = self.filled(step)
        targets = given[:, : self.width]
        targets = torch.where(self._stays, targets, self.predicted(outputs, last))
        return torch.cat([targets, given[:, self.width :]], 1)

    def errors(
        self, anchor: int, step: int, outputs: Tensor, last: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights, errors and the scaled truth (N, W) of a step after an anchor."""
        known = ~self.frames[anchor + step][:, : self.width].isnan()
        truth = self.filled(anchor + step)[:, : self.width]
        if self.options.predict == "difference":
            known = known & ~self.frames[anchor][:, : self.width].isnan()
            truth = truth - last[:, : self.width]
        free = torch.from_numpy(self.weights) * ~self.fixed
        scaled = (truth - self.outputs_scale.mean) / self.outputs_scale.deviation
        return free[:, None] * known, torch.where(known, outputs - scaled, 0), scaled

    def loss_of(self, batch: list[int], key: DropoutKey) -> Tensor:
        """Return the loss of the samples of a step."""
        options, depth = self.options, max(self.options.ahead, 1)
        samples, total = [], torch.zeros((), dtype=torch.float64)
        for number, anchor in enumerate(batch):
            frames = [self.filled(anchor - back) for back in range(options.history)[::-1]]
            word = DropoutKey(key.seed, key.step + number * depth)
            samples.append(self._with_noise(frames, word))
        for turn in range(depth):
            step = turn + self.shift
            outputs = self.model_outputs(samples, DropoutKey(key.seed, key.step + turn))
            for number, anchor in enumerate(batch):
                last = samples[number][-1]
                weights, errors, _ = self.errors(anchor, step, outputs[number], last)
                loss = self._mean(weights, weights * errors.square())
                total = total + loss / len(batch) / depth
                following = self.follow(outputs[number], last, anchor + step)
                samples[number] = [*samples[number][1:], following]
        return total

    def _mean(self, weights: Tensor, squares: Tensor) -> Tensor:
        """Return the mean of the values at nodes and edges, by their columns."""
        total, cut = torch.zeros((), dtype=torch.float64), self.widths[0]
        for columns in (slice(cut), slice(cut, None)):
            share, size = (
                weights[:, columns].shape[1] / self.width,
                float(weights[:, columns].sum()),
            )
            total = total + share * squares[:, columns].sum() / (size or 1)
        return total

    def _with_noise(self, frames: list[Tensor], key: DropoutKey) -> list[Tensor]:
        if not self.options.noise:
            return frames
        cut, noisy = self.graph.num_nodes, []
        rows = [np.arange(cut), slice(0, cut), self.read], self._of_edges
        for number, frame in enumerate(frames):
            for (ids, place, columns), first in zip(rows, (-1 << 33, -1 << 34), strict=True):
                drawn = normal(ids, len(columns), key.at(first + number))
                moved = torch.from_numpy(drawn) * self.options.noise * self.scale.deviation[columns]
                frame[place, columns] += torch.where(self.fixed[place, None], 0, moved)
            noisy.append(frame)
        return noisy

    @property
    def _of_edges(self) -> list[Any]:
        """Return the edge numbers by which noise is drawn, their rows, and the inputs."""
        edges, cut = self.whole.edges, self.graph.num_nodes
        assert edges is not None
        numbers = (edges.sources * cut + edges.targets).numpy()
        return [numbers[: self.frames.shape[1] - cut], slice(cut, None), self.read_of_edges]

    @override
    def train(self) -> Expected:
        config, options, expected = self.config.train, self.options, Expected()
        parameters = [each for each in self.model.parameters() if each.requires_grad]
        anchors = np.array(self.anchors("train", options.ahead))
        for epoch in range(config.epochs):
            order = np.random.default_rng([config.seeds[0], epoch]).permutation(anchors).tolist()
            losses = []
            for number, first in enumerate(range(0, len(order), options.batch)):
                masks = number * options.batch * max(options.ahead, 1)
                key = DropoutKey(config.seeds[0], (epoch << 32) + masks)
                loss = self.loss_of(order[first : first + options.batch], key)
                self.descend(loss, parameters)
                losses.append(float(loss.detach()))
            with torch.no_grad():
                expected.losses.append(float(np.mean(losses)))
                weights = {k: v.clone() for k, v in self.model.state_dict().items()}
                expected.weights.append(weights)
                expected.metrics.append(self.metrics())
        with torch.no_grad():
            expected.said = self._rolled()
        return expected

    def metrics(self) -> dict[str, float]:
        """Return the metrics of one step of each part."""
        found = {}
        for part in PARTS:
            sums = self._sums(part)
            if sums is not None and sums[0].sum() > 0:
                found |= {f"{part}_{name}": value for name, value in self._told(sums).items()}
        found.pop("train_loss", None)
        return found

    def _sums(self, part: str) -> list[Tensor] | None:
        """Return weights, errors, scaled truth and truth by which a part is evaluated."""
        anchors, most = self.anchors(part, self.shift), self.options.evaluated
        if most and len(anchors) > most:
            anchors = [anchors[place * len(anchors) // most] for place in range(most)]
        rows = []
        for anchor in anchors:
            frames = [self.filled(anchor - back) for back in range(self.options.history)[::-1]]
            (outputs,) = self.model_outputs([frames], None)
            truth = self.filled(anchor + self.shift)[:, : self.width]
            rows.append((*self.errors(anchor, self.shift, outputs, frames[-1]), truth))
        return [torch.cat(each) for each in zip(*rows, strict=True)] if rows else None

    def _told(self, sums: list[Tensor]) -> dict[str, float]:
        weights, errors, scaled, truth = sums
        squares = weights * errors.square()
        found, relative = {"loss": float(self._mean(weights, squares))}, []
        physical = squares * self.outputs_scale.deviation.square()
        for name in (*self.options.targets, *self.options.edge_targets):
            place = self.places[name]
            weight = weights[:, place]
            if not weight.sum() > 0:
                continue
            error, size = physical[:, place].sum(), (weight * truth[:, place].square()).sum()
            found[f"rmse_{name}"] = float((error / weight.sum()).sqrt())
            relative.append(float((error / size).sqrt()) if size > 0 else float(error > 0))
            found[f"rel_l2_{name}"] = relative[-1]
            explained = self._explained(weight, squares[:, place], scaled[:, place])
            if explained is not None:
                found[f"r2_{name}"] = explained
        return {**found, "rel_l2": float(np.mean(relative))}

    @staticmethod
    def _explained(weights: Tensor, squares: Tensor, scaled: Tensor) -> float | None:
        """Return R²; None if a column hardly varies."""
        rows = []
        for weight, error, values in zip(weights.T, squares.T, scaled.T, strict=True):
            if not weight.sum() > 0:
                continue
            mean = (weight * values).sum() / weight.sum()
            spread = (weight * (values - mean).square()).sum()
            if not spread > VARIES * (weight * values.square()).sum():
                return None
            rows.append(float(1 - error.sum() / spread))
        return float(np.mean(rows))

    def _rolled(self) -> Said | None:
        """Return the rollout that a run writes."""
        options, history = self.options, self.options.history
        found = [each for part in ("test", "valid", "train")
                 for each in self.anchors(part, self.shift)[:1]]  # fmt: skip
        start = found[0] if found else history - 1
        ends = np.asarray(self.graph.series.trajectory_starts)  # type: ignore[union-attr]
        last = int(ends[ends > start][0]) - 1
        steps = min(max(options.horizons, default=0), last - start + 1 - self.shift)
        if not steps:
            return None
        frames = [self.filled(start - back) for back in range(history)[::-1]]
        rows, ids = [], np.arange(self.graph.num_nodes)
        for step in range(start + self.shift, start + self.shift + steps):
            if not self.shift and step > start:
                frames = [*frames[1:], self.filled(step)]
            (outputs,) = self.model_outputs([frames], None)
            following = self.follow(outputs, frames[-1], step)
            missing = self.frames[step][:, : self.width].isnan() & self._stays
            rows.append(following[:, : self.width].masked_fill(missing, np.nan))
            if self.shift:
                frames = [*frames[1:], following]
        nodes, cut = len(ids), self.widths[0]
        if cut:
            keys = np.stack([np.repeat(range(steps), nodes), np.tile(ids, steps)], 1)
            found = torch.cat([each[:nodes, :cut] for each in rows])
            return Said("values", found, ("step", "node_id"), keys)
        edges = self.whole.edges
        assert edges is not None
        ends = np.stack([edges.sources.numpy(), edges.targets.numpy()], 1)
        keys = np.column_stack([np.repeat(range(steps), len(ends)), np.tile(ends, (steps, 1))])
        found = torch.cat([each[nodes:, : self.width] for each in rows])
        return Said("values", found, ("step", "source", "target"), keys)
