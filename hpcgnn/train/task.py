"""Full-graph node classification: what one rank holds, and how it scores logits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid, RowMap, raise_on_all
from hpcgnn.errors import InputError
from hpcgnn.nn import Aggregations, GraphView, Model, ModelShape, make_model
from hpcgnn.nn.losses import multi_label_loss, single_label_loss
from hpcgnn.storage import Split
from hpcgnn.train.config import Config
from hpcgnn.train.metrics import Evaluation, evaluate_multi_label, evaluate_single_label

__all__ = ["GraphFacts", "NodeTask"]


@dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """Sizes of the graph, equal on all ranks."""

    name: str
    fingerprint: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    multi_label: bool
    directed: bool
    num_parts: int


class NodeTask:
    """The rows of one rank and the loss over all ranks.

    Collective.

    Parameters
    ----------
    grid
        The ranks.
    facts
        Sizes of the graph.
    view
        Operators and original ids of the local nodes.
    features
        (N, F) in the training dtype.
    labels
        (N,) int64 with -1 for none, or (N, C) zeros and ones in the training dtype.
    split
        (N,) uint8, see `hpcgnn.storage.Split`.

    Raises
    ------
    CollectiveInputError
        When no node of the whole graph is there to train on.
    """

    def __init__(
        self,
        *,
        grid: ProcessGrid,
        row_map: RowMap,
        facts: GraphFacts,
        view: GraphView,
        features: Tensor,
        labels: Tensor,
        split: Tensor,
        details: dict[str, int],
    ) -> None:
        self.grid, self.row_map, self.facts, self.view = grid, row_map, facts, view
        self.features, self.labels, self.split, self.details = features, labels, split, details
        trains = split == int(Split.TRAIN)
        if not facts.multi_label:
            trains &= labels >= 0
        self._train_rows = trains.nonzero().squeeze(1)
        self.num_train = int(grid.layer.allreduce(len(self._train_rows)))
        raise_on_all(
            grid.world,
            None
            if self.num_train
            else InputError(
                f"graph {facts.name}: no labelled node is in the training split; "
                "convert it with a split and labels"
            ),
        )

    def make_model(self, config: Config, seed: int) -> Model:
        """Return the model of `config` for this graph, equal on all ranks.

        Not collective.
        """
        shape = ModelShape(
            num_features=self.facts.num_features,
            num_classes=self.facts.num_classes,
            hidden=config.model.hidden,
            num_layers=config.model.num_layers,
            dropout=config.model.dropout,
            input_dropout=config.model.input_dropout,
            residual=config.model.residual,
        )
        return make_model(
            config.model.name,
            shape,
            directed=Aggregations.MEAN_OUT in self.view.operators,
            seed=seed,
            dtype=self.features.dtype,
        )

    def loss(self, logits_NC: Tensor, smoothing: float) -> Tensor:
        """Return this rank's share of the training loss; the shares of a layer add up to it.

        Not collective.
        """
        rows = self._train_rows
        loss = multi_label_loss if self.facts.multi_label else single_label_loss
        return loss(logits_NC[rows], self.labels[rows], self.num_train, smoothing)

    @torch.no_grad()
    def evaluate(self, model: Model) -> Evaluation:
        """Return the metrics of `model` on all splits.

        Collective.
        """
        logits_NC = model(self.view, self.features, None)
        evaluate = evaluate_multi_label if self.facts.multi_label else evaluate_single_label
        return evaluate(self.grid, logits_NC, self.labels, self.split)
