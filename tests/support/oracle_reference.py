"""Training by gradient descent on one process in dense float64, written from the formulas."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from hpcgnn import kernels
from hpcgnn.autograd import DropoutKey, dropout
from hpcgnn.config.config import Config
from hpcgnn.config.multi_task import width_of, with_one_width
from hpcgnn.config.run_features import samples, trains_on_restricted_rows
from hpcgnn.kernels.mixing import uniform
from hpcgnn.nn import (
    MODELS,
    Model,
    MultiTaskModel,
    TypedModel,
    make_edge_model,
    make_headed_model,
    make_link_model,
    make_model,
)
from hpcgnn.nn.readout import make_graph_model
from hpcgnn.operator import on_graph
from hpcgnn.storage import Split
from hpcgnn.train.links.edges import mixed
from tests.support.dense_graph import Dense
from tests.support.dense_models import AMPLIFIED, logits
from tests.support.oracle_graphs import EDGE_CLASSES, OracleGraph

PARTS = {"train": Split.TRAIN, "valid": Split.VALID, "test": Split.TEST}
_VISIBLE, _READOUT, _TESTED = -1, -2, -1
"""Places of draws other than the layers' masks: visible labels, a read-out's mask, negatives."""


@dataclass(frozen=True)
class Said:
    """A table of predictions.h5: `rows` (n, any) under a name, by the columns of `keys` (n, k)."""

    name: str
    rows: Tensor
    columns: tuple[str, ...]
    keys: np.ndarray


@dataclass
class Expected:
    """The expected results of a run: after each epoch the loss before its step, weights, metrics.

    `said` are the predictions of the last weights.
    """

    losses: list[float] = field(default_factory=list)
    weights: list[dict[str, Tensor]] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    said: Said | None = None


class Truth:
    """Classes (n,), several labels (n, C), or numbers (n, T) scaled as models see them; a split."""

    def __init__(self, given: np.ndarray, split: np.ndarray) -> None:
        self._split = split
        kinds = {"i": "classes", "u": "several", "f": "numbers"}
        self.kind = kinds[given.dtype.kind]
        values: Any = given.astype(np.int64 if self.kind == "classes" else np.float64)
        if self.kind == "numbers":
            trained = values[split == Split.TRAIN]
            deviations = np.nanstd(trained, 0)
            deviations[deviations == 0] = 1
            means = np.nanmean(trained, 0)
            # Six digits; for a mean far from 0, as many more as it has deviations.
            more = np.log10(np.maximum(np.abs(means) / deviations, 1)).astype(int)
            rounded = (
                [float(f"{x:.{5 + n}e}") for x, n in zip(row, digits, strict=True)]
                for row, digits in ((means, more), (deviations, 0 * more))
            )
            self._scale = [torch.tensor(row, dtype=torch.float64) for row in rounded]
            values = (values - self._scale[0].numpy()) / self._scale[1].numpy()
        self.values = torch.from_numpy(values)
        missing = values < 0 if self.kind == "classes" else np.isnan(values).all(1)
        self._known = torch.from_numpy(~missing)

    def rows(self, part: Split) -> Tensor:
        """Return (n,) the rows of a part of the split that have labels."""
        return torch.from_numpy(self._split == part) & self._known

    def loss(self, outputs: Tensor, rows: Tensor, smoothing: float) -> Tensor:
        """Return the mean loss of some rows."""
        out, truth = outputs[rows], self.values[rows]
        if self.kind == "classes":
            return functional.cross_entropy(out, truth, label_smoothing=smoothing)
        if self.kind == "several":
            truth = truth * (1 - smoothing) + smoothing / 2
            return functional.binary_cross_entropy_with_logits(out, truth)
        known = ~truth.isnan()
        squares = torch.where(known, out - truth.nan_to_num(0), 0.0).square()
        return (squares.sum(1) / known.sum(1)).mean()

    def said(self, outputs: Tensor) -> tuple[str, Tensor]:
        """Return the predicted values from outputs, and their name."""
        if self.kind == "numbers":
            return "values", outputs * self._scale[1] + self._scale[0]
        return "probabilities", outputs.softmax(1) if self.kind == "classes" else outputs.sigmoid()


class Reference(ABC):
    """A model on a graph; `model` has the first weights, by the names of hpcgnn."""

    def __init__(self, graph: OracleGraph, config: Config) -> None:
        self.graph, self.config = graph, config
        self.epoch = 0
        self.whole = graph.dense(config, training=False, hidden=self.hidden)
        self.trained = graph.dense(config, training=True, hidden=self.hidden)
        encoder: Any = make_model(
            config.model.name,
            self._shape(),
            directed=self.whole.directed,
            seed=config.train.seeds[0],
            dtype=torch.float64,
        )
        if config.model.embeddings:
            types = graph.types if graph.types is not None else np.zeros(graph.num_nodes, int)
            bare = [t for t, width in enumerate(self._widths()) if width == 0]
            ids = {number: np.flatnonzero(types == number) for number in bare}
            encoder.inputs.add_vectors(ids, config.train.seeds[0])
        self.encoder = encoder
        self.model: Any = self.behind(encoder)

    amplified = 0.0
    """The largest magnitude, in any step, of cancelling terms of gradients before a node norm."""
    tie = 1e-9
    """The relative difference below which scores tie."""
    hidden: np.ndarray | None = None
    """(pairs, 2) nodes between which the graph has no edges."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Columns of the encoder's outputs."""

    @property
    @abstractmethod
    def reached(self) -> Tensor:
        """(N,) the nodes whose outputs the training loss reads."""

    @abstractmethod
    def train(self) -> Expected:
        """Return the results after the configured number of epochs."""

    def refusals(self) -> Iterator[str]:
        """Yield the error lines that refuse training on this graph."""
        yield from ()

    def behind(self, encoder: nn.Module) -> nn.Module:
        """Return the model with the encoder."""
        return encoder

    def descend(self, loss: Tensor, parameters: list[Any]) -> None:
        """Change parameters by a loss's gradient."""
        config = self.config.train
        self.model.zero_grad()
        AMPLIFIED.clear()
        loss.backward()
        for each in parameters:
            each.grad = torch.zeros_like(each) if each.grad is None else each.grad
        amplified = max(AMPLIFIED.values(), default=0.0)
        if config.clip_norm > 0:
            norm = float(torch.nn.utils.clip_grad_norm_(parameters, config.clip_norm))
            amplified *= min(1, config.clip_norm / max(norm, 1e-300))
        self.amplified = max(self.amplified, amplified)
        with torch.no_grad():
            for each in parameters:
                each -= config.learning_rate * each.grad

    def _widths(self) -> tuple[int, ...]:
        graph = self.graph
        if graph.types is None:
            return () if graph.features is not None else (0,)
        found = graph.type_features.values()
        return tuple(0 if each is None else each.shape[1] for each in found)

    def _shape(self) -> Any:
        graph, config = self.graph, self.config
        wanted = on_graph(MODELS[config.model.name].aggregations, directed=self.whole.directed)
        reads = config.reads_edges or any(kind.passes_messages for kind in wanted)
        assert self.whole.edges is not None
        by_relation = any(kind.by_relation for kind in wanted)
        widths = [
            width + self._num_label_columns(number) for number, width in enumerate(self._widths())
        ]
        num_features = 0
        if graph.features is not None:
            num_features = graph.features.shape[1] + self._num_label_columns(0)
        return config.model.shape(
            num_features=num_features,
            num_classes=self.num_outputs,
            num_relations=len(self.whole.relations) if by_relation else 1,
            num_edge_features=self.whole.edges.features.shape[1] if reads else 0,
            type_features=tuple(widths),
        )

    def _of_type(self, number: int) -> np.ndarray:
        types = self.graph.types
        return np.ones(self.graph.num_nodes, bool) if types is None else types == number

    def _num_label_columns(self, number: int) -> int:
        """Return the number of label columns in the inputs of a type's nodes."""
        labels = self._label_columns(None)
        return 0 if labels is None else labels.shape[1]

    def _label_columns(self, key: DropoutKey | None) -> Tensor | None:
        """Return labels (N, C) as inputs: the visible ones with a key; None without any."""
        return None

    def outputs(self, key: DropoutKey | None) -> Tensor:
        """Return the encoder's outputs of all rows, in training with a key."""
        dense = self.whole if key is None else self.trained
        if key is not None and trains_on_restricted_rows(self.config):
            dense = self._restricted(dense, self._body)
        return self.logits(dense, self._first(key), key)

    @property
    def _body(self) -> Model:
        encoder = self.encoder
        body: Model = encoder.body if isinstance(encoder, TypedModel) else encoder
        return body

    def logits(self, dense: Dense, rows: Tensor, key: DropoutKey | None) -> Tensor:
        """Return the encoder's outputs on a graph, from the input of its first layer."""
        return logits(self.config.model.name, self._body, dense, rows, key)

    def _restricted(self, dense: Dense, body: Model) -> Dense:
        if self.config.sampling.sampler == "node" and samples(self.config):
            # A subgraph of all nodes.
            return dense
        restricted = dense.with_sets(body, self.reached)
        if samples(self.config):
            # PNA scales by the degrees of the whole graph, of which a subgraph is a sample.
            return replace(restricted, degree_rows=dense.rows_after(0))
        return restricted

    def _first(self, key: DropoutKey | None) -> Tensor:
        """Return the input of the first layer."""
        graph, labels = self.graph, self._label_columns(key)
        if not isinstance(self.encoder, TypedModel):
            rows = self._scaled(graph.features, np.ones(graph.num_nodes, bool))
            return rows if labels is None else torch.cat([rows, labels], 1)
        types = graph.types if graph.types is not None else np.zeros(graph.num_nodes, np.uint8)
        parts, inputs = list(graph.type_features.values()) or [None], self.encoder.inputs
        parts = [
            rows if rows is None else self._scaled(rows, types == number)
            for number, rows in enumerate(parts)
        ]
        found, taken = [], [0] * len(parts)
        for node, number in enumerate(types.tolist()):
            row, place, given = inputs.biases[number], taken[number], []
            if parts[number] is not None:
                given.append(parts[number][place])
            elif str(number) in inputs.vectors:
                row = row + inputs.vectors[str(number)][place]
            weight = inputs.weights[number]
            if labels is not None and weight.shape[1] > sum(map(len, given)):
                given.append(labels[node])
            if given:
                row = row + weight @ torch.cat(given)
            taken[number] += 1
            found.append(row)
        return torch.stack(found)

    def _scaled(self, features: np.ndarray, nodes: np.ndarray) -> Tensor:
        """Return features (n, F) of some nodes (N,), normalised by the statistics of training."""
        rows = torch.from_numpy(features.astype(np.float64))
        how = self.config.graph.normalize_features
        if how in ("row", "l2"):
            return functional.normalize(rows, 1 if how == "row" else 2, eps=1e-300)
        if how == "none":
            return rows
        known = torch.ones(len(rows), dtype=torch.bool)
        if self.config.train.inductive or self.graph.graph is not None:
            known = torch.from_numpy(self.graph.split[nodes] == Split.TRAIN)
        some = rows[known] if known.any() else rows.new_zeros(1, rows.shape[1])
        deviation = some.std(0, correction=0)
        return (rows - some.mean(0)) / torch.where(deviation > 0, deviation, 1)


class WholeReference(Reference):
    """An objective: it turns the outputs of all nodes into a step of each epoch."""

    @abstractmethod
    def loss(self, outputs: Tensor, part: str, key: DropoutKey | None) -> Tensor | None:
        """Return the loss of a part from the encoder's outputs; None without rows."""

    @abstractmethod
    def said(self, outputs: Tensor) -> Said:
        """Return the predictions."""

    @override
    def train(self) -> Expected:
        config, expected = self.config.train, Expected()
        parameters = [each for each in self.model.parameters() if each.requires_grad]
        for epoch in range(config.epochs):
            self.epoch = epoch
            # Sampled steps are numbered within their epoch.
            key = DropoutKey(config.seeds[0], epoch << 32 if self._draws else epoch)
            loss = self.loss(self.outputs(key), "train", key)
            assert loss is not None
            self.descend(loss, parameters)
            with torch.no_grad():
                expected.losses.append(float(loss))
                weights = {k: v.clone() for k, v in self.model.state_dict().items()}
                expected.weights.append(weights)
                expected.metrics.append(self.judged(self.outputs(None)))
        with torch.no_grad():
            expected.said = self.said(self.outputs(None))
        return expected

    def judged(self, outputs: Tensor) -> dict[str, float]:
        """Return metrics of the encoder's outputs."""
        found = {part: self.loss(outputs, part, None) for part in PARTS if part != "train"}
        return {f"{part}_loss": float(loss) for part, loss in found.items() if loss is not None}

    @property
    def _draws(self) -> bool:
        graphs = self.config.train.task == "graphs" and self.config.graphs.batch > 0
        return samples(self.config) or graphs


class Labelled(WholeReference):
    """Learning from labels or numbers, for any kind of rows of `truth`."""

    truth: Truth

    @abstractmethod
    def of_truth(self, outputs: Tensor, key: DropoutKey | None) -> Tensor:
        """Return the outputs for each row of the truth, from those of the encoder."""

    @override
    def loss(self, outputs: Tensor, part: str, key: DropoutKey | None) -> Tensor | None:
        rows = self.truth.rows(PARTS[part])
        if key is not None:
            rows = rows & ~self.visible()
        smoothing = self.config.train.label_smoothing if key is not None else 0.0
        found = self.of_truth(outputs, key)
        if not rows.any():
            return None if key is None else found.new_zeros((), requires_grad=True)
        return self.truth.loss(found, rows, smoothing)

    def visible(self) -> Tensor:
        """Return (n,) the rows whose labels are inputs of the epoch, and not learned."""
        return torch.zeros(len(self.truth.values), dtype=torch.bool)


class NodeReference(Labelled):
    """Labels or numbers of nodes."""

    def __init__(self, graph: OracleGraph, config: Config) -> None:
        self.truth = Truth(graph.targets if config.graph.targets else graph.labels, graph.split)
        super().__init__(graph, config)

    @property
    @override
    def num_outputs(self) -> int:
        return 2 if self.truth.kind == "numbers" else self.graph.num_classes

    @property
    @override
    def reached(self) -> Tensor:
        rows = self.truth.rows(Split.TRAIN)
        # A batch consists of predicted nodes.
        return rows & ~self.visible() if samples(self.config) else rows

    @override
    def of_truth(self, outputs: Tensor, key: DropoutKey | None) -> Tensor:
        return outputs

    @override
    def visible(self) -> Tensor:
        share = self.config.train.label_augmentation
        if share == 0:
            return super().visible()
        key = DropoutKey(self.config.train.seeds[0], self.epoch)
        ids = np.arange(self.graph.num_nodes, dtype=np.int64)
        ones = np.ones((len(ids), 1), np.float32)
        kept = np.empty_like(ones)
        kernels.dropout_rows(ones, ids, key.at(_VISIBLE).word(), 1 - share, kept)
        return torch.from_numpy(kept[:, 0] > 0)

    @override
    def _num_label_columns(self, number: int) -> int:
        # Also of types whose labels an epoch shows completely, as these are known before it.
        trains = self.truth.rows(Split.TRAIN)[self._of_type(number)]
        return super()._num_label_columns(number) if trains.any() else 0

    @override
    def _label_columns(self, key: DropoutKey | None) -> Tensor | None:
        if self.config.train.label_augmentation == 0:
            return None
        rows = self.truth.rows(Split.TRAIN)
        if key is not None:
            rows = rows & self.visible()
        values = self.truth.values
        columns = values.new_zeros(len(values), self.num_outputs, dtype=torch.float64)
        chosen = values[rows]
        if self.truth.kind == "classes":
            chosen = functional.one_hot(chosen, self.num_outputs)
        columns[rows] = chosen.double()
        return columns

    @override
    def said(self, outputs: Tensor) -> Said:
        ids = np.arange(len(outputs))[:, None]
        return Said(*self.truth.said(self.of_truth(outputs, None)), ("node_id",), ids)


class HeadedNodeReference(NodeReference):
    """Labels or numbers of nodes, by a map of embeddings that other objectives also read."""

    @property
    @override
    def num_outputs(self) -> int:
        return width_of(self.config)

    @override
    def behind(self, encoder: nn.Module) -> nn.Module:
        count = 2 if self.truth.kind == "numbers" else self.graph.num_classes
        seed = self.config.train.seeds[0]
        return make_headed_model(encoder, self.num_outputs, count, seed)

    @override
    def of_truth(self, outputs: Tensor, key: DropoutKey | None) -> Tensor:
        return outputs @ self.model.map.weight.T + self.model.map.bias


class GraphReference(Labelled):
    """Labels or numbers of whole graphs."""

    def __init__(self, graph: OracleGraph, config: Config) -> None:
        assert graph.graph is not None
        self._ids, first = np.unique(graph.graph, return_index=True)
        self._members = torch.from_numpy(graph.graph[None] == self._ids[:, None])
        given = graph.targets[: len(first)] if config.graph.targets else graph.labels[first]
        self.truth = Truth(given, graph.split[first])
        super().__init__(graph, config)

    @property
    @override
    def num_outputs(self) -> int:
        return self.config.graphs.width or self.config.model.hidden

    @property
    @override
    def reached(self) -> Tensor:
        return self._members[self.truth.rows(Split.TRAIN)].any(0)

    @override
    def behind(self, encoder: nn.Module) -> nn.Module:
        return make_graph_model(
            encoder,
            self.config.graphs.readout,
            width=self.num_outputs,
            num_classes=2 if self.truth.kind == "numbers" else self.graph.num_classes,
            dropout=self.config.model.dropout,
            seed=self.config.train.seeds[0],
        )

    @override
    def of_truth(self, outputs: Tensor, key: DropoutKey | None) -> Tensor:
        model, how = self.model, self.config.graphs.readout
        found = []
        for members in self._members:
            rows = outputs[members]
            if how == "max":
                found.append(rows.amax(0))
            elif how == "attention":
                gate = rows @ model.readout.gate.weight.T + model.readout.gate.bias
                found.append((gate.softmax(0) * rows).sum(0))
            else:
                found.append(rows.mean(0) if how == "mean" else rows.sum(0))
        draw = None if key is None else key.at(_READOUT)
        joined = dropout(torch.stack(found), self._ids, draw, self.config.model.dropout)
        return joined @ model.head.weight.T + model.head.bias

    @override
    def said(self, outputs: Tensor) -> Said:
        found = self.truth.said(self.of_truth(outputs, None))
        return Said(*found, ("graph_id",), self._ids[:, None])


@dataclass(frozen=True)
class _Edges:
    """Edges of several relations: (E,) int64 each; draws depend on their `words`."""

    sources: np.ndarray
    targets: np.ndarray
    relations: np.ndarray
    words: np.ndarray

    @classmethod
    def of(cls, ends: list[tuple[np.ndarray, np.ndarray]]) -> "_Edges":
        counts = [len(src) for src, _ in ends]
        sources, targets = (np.concatenate(each) for each in zip(*ends, strict=True))
        relations = np.repeat(np.arange(len(ends)), counts)
        words = mixed(relations, sources, targets).view(np.int64)
        return cls(sources, targets, relations, words)

    def __getitem__(self, some: np.ndarray) -> "_Edges":
        columns = self.sources, self.targets, self.relations, self.words
        return _Edges(*(column[some] for column in columns))

    def with_reverses(self, more: int) -> "_Edges":
        """Return the edges and their reverses, whose relations are numbered `more` higher."""
        words = mixed(int.from_bytes(b"reversed", "big"), self.words).view(np.int64)
        backward = self.targets, self.sources, self.relations + more, words
        forward = self.sources, self.targets, self.relations, self.words
        return _Edges(*map(np.concatenate, zip(forward, backward, strict=True)))

    def __len__(self) -> int:
        return len(self.sources)

    def touched(self, count: int) -> Tensor:
        """Return (count,) the nodes that are ends."""
        rows = torch.zeros(count, dtype=torch.bool)
        rows[self.sources] = rows[self.targets] = True
        return rows


class EdgeReference(Labelled):
    """Labels or numbers of edges; of an undirected one, from the mean of both orders' rows."""

    def __init__(self, graph: OracleGraph, config: Config) -> None:
        names = config.edges.relations or tuple(graph.relations)
        chosen = [graph.relations[name] for name in names]
        self._num_relations = len(chosen)
        self._edges = _Edges.of([(each.src, each.dst) for each in chosen])
        labels, split = (
            np.concatenate([getattr(each, name) for each in chosen]) for name in ("labels", "split")
        )
        self._width = labels.shape[1]
        self.truth = Truth(labels[:, 0] if labels.dtype.kind == "i" else labels, split)
        self._features = None
        if chosen[0].features is not None and config.edges.features:
            features = np.concatenate([each.features for each in chosen])
            self._features = torch.from_numpy(features.astype(np.float64))
        super().__init__(graph, config)

    @property
    @override
    def num_outputs(self) -> int:
        return self.config.edges.width or self.config.model.hidden

    @property
    @override
    def reached(self) -> Tensor:
        some = self.truth.rows(Split.TRAIN).numpy()
        return self._edges[some].touched(self.graph.num_nodes)

    @override
    def behind(self, encoder: nn.Module) -> nn.Module:
        options = self.config.edges
        sizes = (
            self.num_outputs,
            0 if self._features is None else self._features.shape[1],
            options.hidden or self.config.model.hidden,
            EDGE_CLASSES if self.truth.kind == "classes" else self._width,
            self._num_relations,
        )
        seed = self.config.train.seeds[0]
        return make_edge_model(encoder, sizes, symmetric=self.graph.undirected, seed=seed)

    @override
    def of_truth(self, outputs: Tensor, key: DropoutKey | None) -> Tensor:
        decoder, edges = self.model.decoder, self._edges
        shifts = torch.cat([decoder.relations.new_zeros(1, len(decoder.first.bias)),
                            decoder.relations])  # fmt: skip

        def hidden(targets: np.ndarray, sources: np.ndarray) -> Tensor:
            given = [outputs[targets], outputs[sources]]
            given += [] if self._features is None else [self._features]
            inner = torch.cat(given, 1) @ decoder.first.weight.T + decoder.first.bias
            return functional.relu(inner + shifts[edges.relations])

        rows = hidden(edges.targets, edges.sources)
        if self.graph.undirected:
            rows = (rows + hidden(edges.sources, edges.targets)) / 2
        return rows @ decoder.output.weight.T + decoder.output.bias

    @override
    def said(self, outputs: Tensor) -> Said:
        edges = self._edges
        ends = np.stack([edges.sources, edges.targets], 1)
        if self.graph.undirected:
            ends.sort(axis=1)
        keys = np.concatenate([ends, edges.relations[:, None]], 1)
        found = self.truth.said(self.of_truth(outputs, None))
        return Said(*found, ("source", "target", "relation"), keys)


@dataclass(frozen=True)
class Deal:
    """The number of predicted relations, the edges of each part, and the pairs without edges.

    `hidden` (E, 2) are nodes between which it has no edges.
    """

    num_relations: int
    shares: Mapping[str, _Edges]
    hidden: np.ndarray


def deal(graph: OracleGraph, config: Config) -> Deal:
    """Return the predicted links: by a draw for each pair, and by stored roles if any."""
    options = config.links
    names = options.relations or config.graph.relations or tuple(graph.relations)
    with_roles = options.stored and any(graph.relations[name].split is not None for name in names)
    others = [name for name in graph.relations if with_roles and name not in names]
    ends = [graph.one_way(config, name, with_roles=with_roles) for name in (*names, *others)]
    edges = _Edges.of([(src, dst) for src, dst, _ in ends])
    roles = np.concatenate([each for *_, each in ends])
    low, high = (how(edges.sources, edges.targets) for how in (np.minimum, np.maximum))
    draw = uniform(mixed(options.split_seed, low, high))
    masks, start = {}, 0.0
    for part, role in PARTS.items():
        stop = start + getattr(options, part)
        masks[part] = (draw >= start) & (draw < stop)
        if with_roles:
            masks[part] = (roles == role) & (masks[part] | (part != "train"))
        start = stop
    predicted = edges.relations < len(names)
    tested = masks["valid"] | masks["test"]
    if with_roles and (graph.undirected or config.graph.undirected):
        # A stored split may give the two directions of an edge other roles.
        pairs = list(zip(edges.relations.tolist(), low.tolist(), high.tolist(), strict=True))
        known = {pair for pair, is_tested in zip(pairs, tested, strict=True) if is_tested}
        masks["train"] &= np.array([pair not in known for pair in pairs], np.bool_)
    gone = (masks["train"] & predicted & options.disjoint) | (tested & (predicted | with_roles))
    hidden = np.stack([edges.sources[gone], edges.targets[gone]], 1)
    shares = {part: edges[mask & predicted] for part, mask in masks.items()}
    if options.ends == "target":
        return Deal(len(names), shares, hidden)
    more = 0 if graph.undirected or config.graph.undirected else len(names)
    both = {part: each.with_reverses(more) for part, each in shares.items()}
    return Deal(len(names) + more, both, hidden)


class LinkReference(WholeReference):
    """Edges that are removed from the graph, against negatives drawn from all nodes of a type."""

    def __init__(self, graph: OracleGraph, config: Config) -> None:
        self._options = config.links
        dealt = deal(graph, config)
        self._num_relations, self._shares = dealt.num_relations, dealt.shares
        self.hidden = dealt.hidden
        super().__init__(graph, config)

    @property
    @override
    def num_outputs(self) -> int:
        return self._options.width or self.config.model.hidden

    @property
    @override
    def reached(self) -> Tensor:
        edges, seeds = self._shares["train"], (self.config.train.seeds[0], self.epoch)
        rows = edges.touched(self.graph.num_nodes)
        rows[self._wrong(edges, self._options.num_negatives, seeds)] = True
        return rows

    @override
    def behind(self, encoder: nn.Module) -> nn.Module:
        return make_link_model(
            encoder,
            self._options.scorer,
            width=self.num_outputs,
            num_relations=self._num_relations,
            seed=self.config.train.seeds[0],
        )

    def _wrong(self, edges: _Edges, count: int, seeds: tuple[int, int]) -> np.ndarray:
        """Return (E, count) nodes of the targets' types, drawn uniformly.

        No edge draws its own target, unless it is the only node of its type.
        """
        bits = mixed(edges.words[:, None], *seeds, np.arange(count)[None])
        draws, again = uniform(bits), uniform(mixed(bits.view(np.int64), 1))
        types = self.graph.types
        types = np.zeros(self.graph.num_nodes, np.uint8) if types is None else types
        wrong = np.zeros(draws.shape, np.int64)
        for row, target in enumerate(edges.targets.tolist()):
            alike = np.flatnonzero(types == types[target])
            wrong[row] = alike[np.minimum((draws[row] * len(alike)).astype(int), len(alike) - 1)]
            if len(alike) > 1:
                # The others, from the one behind the target on.
                others = np.roll(alike, -int(np.searchsorted(alike, target)))[1:]
                places = np.minimum((again[row] * len(others)).astype(int), len(others) - 1)
                wrong[row] = np.where(wrong[row] == target, others[places], wrong[row])
        return wrong

    def _score(self, sources: Tensor, targets: Tensor, relations: np.ndarray) -> Tensor:
        """Return scores (E, K) of rows (E, 1, H) and (E, K, H)."""
        scorer, how = self.model.scorer, self._options.scorer
        if how == "dot":
            return (sources * targets).sum(-1) / self.num_outputs**0.5
        weights = scorer.relations[relations][:, None]
        if how == "complex":
            half = self.num_outputs // 2
            one, two, three = (
                torch.complex(each[..., :half], each[..., half:])
                for each in (sources, weights, targets)
            )
            return (one * two * three.conj()).real.sum(-1)
        joined = sources * weights * targets
        if how == "distmult":
            return joined.sum(-1)
        hidden = functional.relu(joined @ scorer.hidden.weight.T + scorer.hidden.bias)
        return (hidden @ scorer.output.weight.T + scorer.output.bias).squeeze(-1)

    def _scores(
        self, outputs: Tensor, edges: _Edges, count: int, seeds: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Return the scores of edges (E,) and of negatives (E, count)."""
        sources, wrong = outputs[edges.sources][:, None], self._wrong(edges, count, seeds)
        right = self._score(sources, outputs[edges.targets][:, None], edges.relations)
        return right[:, 0], self._score(sources, outputs[wrong], edges.relations)

    def _loss_of(self, scores: Tensor, wrong: Tensor) -> Tensor:
        margin = self._options.margin
        of_edges = {
            "logistic": lambda: (
                -functional.logsigmoid(scores) - functional.logsigmoid(-wrong).mean(1)
            ),
            "margin": lambda: functional.relu(margin - scores[:, None] + wrong).mean(1),
            "cross_entropy": lambda: -torch.cat([scores[:, None], wrong], 1).log_softmax(1)[:, 0],
        }
        return of_edges[self._options.loss]().mean()

    @override
    def loss(self, outputs: Tensor, part: str, key: DropoutKey | None) -> Tensor | None:
        edges, options = self._shares[part], self._options
        if not len(edges):
            return None
        tested = options.ranked, (options.split_seed, _TESTED)
        count, seeds = tested
        if key is not None:
            count, seeds = options.num_negatives, (self.config.train.seeds[0], self.epoch)
        return self._loss_of(*self._scores(outputs, edges, count, seeds))

    @override
    def judged(self, outputs: Tensor) -> dict[str, float]:
        found, seeds = super().judged(outputs), (self._options.split_seed, _TESTED)
        for part in ("valid", "test"):
            edges = self._shares[part]
            if not len(edges):
                continue
            right, wrong = self._scores(outputs, edges, self._options.ranked, seeds)
            near = self.tie * max(float(right.abs().max()), float(wrong.abs().max()), 1e-30)
            above, below = (wrong - right[:, None] > near), (wrong - right[:, None] < -near)
            ranks = 1 + above.sum(1) + (~above & ~below).sum(1).double() / 2
            found[f"{part}_mrr"] = float((1 / ranks).mean())
            found[f"{part}_hits10"] = float((ranks <= 10).double().mean())
        return found

    @override
    def said(self, outputs: Tensor) -> Said:
        return Said("embeddings", outputs, ("node_id",), np.arange(len(outputs))[:, None])


_PARTS: Mapping[str, type[WholeReference]] = {
    "full": HeadedNodeReference,
    "edges": EdgeReference,
    "links": LinkReference,
}


class SeveralReference(WholeReference):
    """Several objectives on one encoder: the weighted sum of their losses."""

    def __init__(self, graph: OracleGraph, config: Config) -> None:
        tasks = config.train.tasks
        self._weights = config.train.task_weights or (1.0,) * len(tasks)
        config = with_one_width(config)
        self.parts = {name: _PARTS[name](graph, config) for name in tasks}
        hidden = [part.hidden for part in self.parts.values() if part.hidden is not None]
        self.hidden = hidden[0] if hidden else None
        super().__init__(graph, config)

    @property
    @override
    def num_outputs(self) -> int:
        return width_of(self.config)

    @property
    @override
    def reached(self) -> Tensor:
        return torch.stack([part.reached for part in self.parts.values()]).any(0)

    @override
    def behind(self, encoder: Any) -> nn.Module:
        for part in self.parts.values():
            part.encoder, part.model = encoder, part.behind(encoder)
        return MultiTaskModel(encoder, {name: part.model for name, part in self.parts.items()})

    @override
    def loss(self, outputs: Tensor, part: str, key: DropoutKey | None) -> Tensor | None:
        total = outputs.new_zeros(())
        for weight, each in zip(self._weights, self.parts.values(), strict=True):
            each.epoch, each.tie = self.epoch, self.tie
            loss = each.loss(outputs, part, key)
            if loss is None:
                return None
            total = total + weight * loss
        return total

    @override
    def judged(self, outputs: Tensor) -> dict[str, float]:
        values = super().judged(outputs)
        for name, each in self.parts.items():
            for key, value in each.judged(outputs).items():
                split, _, metric = key.partition("_")
                values[f"{split}_{name}_{metric}"] = value
        return values

    @override
    def said(self, outputs: Tensor) -> Said:
        return next(iter(self.parts.values())).said(outputs)
