"""Training by gradient descent on one process in dense float64, written from the formulas."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn.autograd import DropoutKey
from hpcgnn.config.config import Config
from hpcgnn.config.features import trains_on_restricted_rows
from hpcgnn.nn import MODELS, Model, TypedModel, make_model
from hpcgnn.operator import on_graph
from hpcgnn.storage import Split
from tests.support.dense_graph import Dense
from tests.support.dense_models import logits
from tests.support.oracle_graphs import OracleGraph

PARTS = {"train": Split.TRAIN, "valid": Split.VALID, "test": Split.TEST}


@dataclass
class Expected:
    """What a run shall give: after each epoch the loss before its step, the weights, the metrics.

    `outputs` (N, C) are what the last weights say of all nodes: probabilities, or numbers.
    """

    losses: list[float] = field(default_factory=list)
    weights: list[dict[str, Tensor]] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    outputs: Tensor | None = None


class Reference:
    """A model of nodes on a graph; `model` are its first weights, by the names of hpcgnn."""

    def __init__(self, graph: OracleGraph, config: Config) -> None:
        self._graph, self._config = graph, config
        self._trained = graph.dense(config, training=True)
        self._whole = graph.dense(config, training=False)
        self._labels()
        self.model: Any = make_model(
            config.model.name,
            self._shape(),
            directed=self._whole.directed,
            seed=config.train.seeds[0],
            dtype=torch.float64,
        )
        if config.model.embeddings:
            types = graph.types if graph.types is not None else np.zeros(graph.num_nodes, int)
            bare = [t for t, width in enumerate(self._widths()) if width == 0]
            ids = {number: np.flatnonzero(types == number) for number in bare}
            self.model.inputs.add_vectors(ids, config.train.seeds[0])

    def train(self) -> Expected:
        """Return what the configured number of epochs gives."""
        config, expected = self._config.train, Expected()
        parameters = [each for each in self.model.parameters() if each.requires_grad]
        for epoch in range(config.epochs):
            self.model.zero_grad()
            loss = self._loss(self._outputs(DropoutKey(config.seeds[0], epoch)), Split.TRAIN, True)
            loss.backward()
            for each in parameters:
                each.grad = torch.zeros_like(each) if each.grad is None else each.grad
            if config.clip_norm > 0:
                torch.nn.utils.clip_grad_norm_(parameters, config.clip_norm)
            with torch.no_grad():
                for each in parameters:
                    each -= config.learning_rate * each.grad
                expected.losses.append(float(loss))
                weights = {k: v.clone() for k, v in self.model.state_dict().items()}
                expected.weights.append(weights)
                outputs = self._outputs(None)
                judged = {
                    f"{name}_loss": float(self._loss(outputs, part, False))
                    for name, part in PARTS.items()
                    if name != "train" and self._rows(part).any()
                }
                expected.metrics.append(judged)
        expected.outputs = self._said(outputs.detach())
        return expected

    def _labels(self) -> None:
        graph, targets = self._graph, self._config.graph.targets
        self._kind = "classes" if graph.labels.ndim == 1 else "several"
        labels: Any = graph.labels.astype(np.int64 if self._kind == "classes" else np.float64)
        if targets:
            self._kind, values = "numbers", graph.targets
            trained = values[graph.split == Split.TRAIN]
            # Six digits, as docs/targets.md says.
            means = [float(f"{each:.5e}") for each in np.nanmean(trained, 0)]
            deviations = np.nanstd(trained, 0)
            deviations[deviations == 0] = 1
            self._scale = np.array(means), np.array([float(f"{each:.5e}") for each in deviations])
            labels = (values - self._scale[0]) / self._scale[1]
        self._targets = torch.from_numpy(labels)
        known = labels >= 0 if self._kind == "classes" else ~np.isnan(labels).reshape(
            len(labels), -1
        ).all(1)  # fmt: skip
        self._known = torch.from_numpy(known)

    def _widths(self) -> tuple[int, ...]:
        graph = self._graph
        if graph.types is None:
            return () if graph.features is not None else (0,)
        found = graph.type_features.values()
        return tuple(0 if each is None else each.shape[1] for each in found)

    def _shape(self) -> Any:
        graph, config, widths = self._graph, self._config, self._widths()
        wanted = on_graph(MODELS[config.model.name].aggregations, directed=self._whole.directed)
        reads = config.model.edge_features or any(kind.passes_messages for kind in wanted)
        assert self._whole.edges is not None
        by_relation = any(kind.by_relation for kind in wanted)
        return config.model.shape(
            num_features=0 if graph.features is None else graph.features.shape[1],
            num_classes=2 if self._kind == "numbers" else graph.num_classes,
            num_relations=len(self._whole.relations) if by_relation else 1,
            num_edge_features=self._whole.edges.features.shape[1] if reads else 0,
            type_features=widths,
        )

    def _rows(self, part: Split) -> Tensor:
        """Return (N,) which rows of a part of the split have labels."""
        return torch.from_numpy(self._graph.split == part) & self._known

    def _outputs(self, key: DropoutKey | None) -> Tensor:
        """Return the outputs of all rows, in training with a key."""
        dense = self._whole if key is None else self._trained
        body: Model = self.model.body if isinstance(self.model, TypedModel) else self.model
        if key is not None and trains_on_restricted_rows(self._config):
            dense = self._restricted(dense, body)
        return logits(self._config.model.name, body, dense, self._first(), key)

    def _restricted(self, dense: Dense, body: Model) -> Dense:
        if self._config.sampling.sampler == "node" and self._config.train.task == "sampled":
            # A subgraph of all nodes.
            return dense
        return dense.with_sets(body, self._rows(Split.TRAIN))

    def _first(self) -> Tensor:
        """Return what the first layer reads."""
        graph, model = self._graph, self.model
        if not isinstance(model, TypedModel):
            return torch.from_numpy(graph.features.astype(np.float64))
        types = graph.types if graph.types is not None else np.zeros(graph.num_nodes, np.uint8)
        parts, inputs = list(graph.type_features.values()) or [None], model.inputs
        rows = []
        taken = [0] * len(parts)
        for number in types.tolist():
            row, place = inputs.biases[number], taken[number]
            if parts[number] is not None:
                features = torch.from_numpy(parts[number][place].astype(np.float64))
                row = row + inputs.weights[number] @ features
            elif str(number) in inputs.vectors:
                row = row + inputs.vectors[str(number)][place]
            taken[number] += 1
            rows.append(row)
        return torch.stack(rows)

    def _loss(self, outputs: Tensor, part: Split, training: bool) -> Tensor:
        """Return the mean loss of a part; labels are smoothed in training."""
        rows = self._rows(part)
        out, truth = outputs[rows], self._targets[rows]
        smoothing = self._config.train.label_smoothing if training else 0.0
        if self._kind == "classes":
            return functional.cross_entropy(out, truth, label_smoothing=smoothing)
        if self._kind == "several":
            truth = truth * (1 - smoothing) + smoothing / 2
            return functional.binary_cross_entropy_with_logits(out, truth)
        known = ~truth.isnan()
        squares = torch.where(known, out - truth.nan_to_num(0), 0.0).square()
        return (squares.sum(1) / known.sum(1)).mean()

    def _said(self, outputs: Tensor) -> Tensor:
        if self._kind == "numbers":
            means, deviations = (torch.from_numpy(each) for each in self._scale)
            return outputs * deviations + means
        return outputs.softmax(1) if self._kind == "classes" else outputs.sigmoid()
