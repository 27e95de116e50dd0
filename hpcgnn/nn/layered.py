"""The common body of layer-by-layer models, from features to logits.

A layer applies dropout, aggregates, adds its own rows (residual), normalises and activates; the
last layer ends after the residual. With jumping connections (Xu et al., ICML 2018) every layer is
hidden, and a linear map of all their outputs, concatenated or by maximum, gives the logits.
"""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import (
    ACTIVATIONS,
    WIDENED,
    DropoutKey,
    Epilogue,
    dropout,
    late_maps,
    relu,
    relu_,
    rematerialised,
    widened,
)
from hpcgnn.nn.linear import Linear, xavier_linear
from hpcgnn.nn.model import GraphView, LayerView, Model, ModelShape
from hpcgnn.nn.norm import NORMS_OVER_NODES, hold_shifts, make_norm
from hpcgnn.spmd import collective


@dataclass(frozen=True, eq=False)
class _Hidden:
    """Rows between two layers; `again` recomputes them from tensors that are kept anyway."""

    rows: Tensor
    again: Callable[[], Tensor] | None = None
    is_dropped: bool = False
    """Whether the dropout of the next layer has been applied already."""


class LayeredModel(Model):
    """A stack of graph layers; subclasses define how a layer is made."""

    options = frozenset({"norm", "activation", "residual", "jumping"})
    maps_own_rows: ClassVar[bool] = False
    """Whether every layer has a learned map of its own rows, so that a residual needs no map."""
    layers_save_results: ClassVar[bool] = False
    """Whether a layer saves its result for its backward pass, so that it must not be changed."""
    fuses_epilogue: ClassVar[bool] = False
    """Whether a layer takes an `Epilogue`, which fuses rectifier and dropout with the bias."""
    shift: ClassVar[str] = ""
    """The name in the layer of the parameter that it adds to every output row; empty if none."""
    aggregates_features: ClassVar[bool] = False
    """Whether the first layer applies its operators to the unchanged features, as `graph_linear`
    can; the products are then equal in all epochs and are kept."""

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__(shape, directed=directed)
        pairs = list(pairwise(shape.widths()))
        self.layers = nn.ModuleList(
            self.make_layer(index, *pair) for index, pair in enumerate(pairs)
        )
        self.shortcuts = nn.ModuleDict()
        if shape.residual:
            for index, (before, after) in enumerate(pairs):
                if before == after:
                    self.shortcuts[str(index)] = nn.Identity()
                elif not self.maps_own_rows:
                    self.shortcuts[str(index)] = xavier_linear(before, after)
        norms = [make_norm(shape.norm, shape.hidden) for _ in range(shape.num_hidden_layers)]
        self.norms = nn.ModuleList(norm for norm in norms if norm is not None)
        for layer, norm in zip(self.layers, norms, strict=False):
            hold_shifts(norm, self.shift_of(layer))
        joined = shape.hidden * (shape.num_layers if shape.jumping == "concat" else 1)
        self.output = Linear(joined, shape.num_classes) if shape.jumping != "none" else None
        self._epilogue = [self._has_epilogue(index) for index in range(len(pairs))]

    @abstractmethod
    def make_layer(self, index: int, in_width: int, out_width: int) -> nn.Module:
        """Return the layer at `index`.

        Not collective; the constructor calls it, with `shape` and `directed` set.
        """

    def shift_of(self, layer: nn.Module) -> nn.Parameter | None:
        """Return the vector that a layer adds to every output row, or None if there is none.

        It is not trained before batch normalisation, see `hold_shifts`.
        """
        return layer.get_parameter(self.shift) if self.shift else None

    @classmethod
    @override
    def num_aggregations(cls, shape: ModelShape) -> int:
        return shape.num_layers * cls.steps_per_layer(shape)

    @classmethod
    @override
    def aggregations_after_norms(cls, shape: ModelShape) -> int:
        if shape.norm not in NORMS_OVER_NODES or shape.num_hidden_layers == 0:
            return cls.num_aggregations(shape)
        return cls.steps_per_layer(shape) if shape.jumping == "none" else 0

    @classmethod
    @override
    def num_feature_products(cls, shape: ModelShape) -> int:
        return cls.steps_per_layer(shape) if cls.aggregates_features else 0

    @collective
    @override
    def forward(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        hidden = self._last_input(graph, x_NF, key)
        last = self.shape.num_layers
        if self.output is None:
            return widened(self._layer(last - 1, graph, hidden, key).rows)
        ids = self._view(graph, last - 1).output_ids
        draw = key.at(last) if key is not None else None
        rows = dropout(hidden.rows, ids, draw, self.shape.dropout)
        return self.output(rows, WIDENED)

    @collective
    @override
    def embed(self, graph: GraphView, x_NF: Tensor) -> Tensor:
        return self._last_input(graph, x_NF, None).rows

    @collective
    def run_layer(self, index: int, view: LayerView, x: Tensor, draw: DropoutKey | None) -> Tensor:
        """Return the output rows of a layer; models whose layers use dropout override it."""
        if self.fuses_epilogue and index >= self.shape.num_hidden_layers:
            return self.layers[index](view, x, WIDENED)
        return self.layers[index](view, x)

    def _last_input(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> _Hidden:
        hidden = _Hidden(x_NF)
        outputs: list[Tensor] = []
        for index in range(self.shape.num_hidden_layers):
            hidden = self._layer(index, graph, hidden, key)
            if self.output is not None:
                view = self._view(graph, index)
                outputs = [view.own(rows) for rows in outputs] + [hidden.rows]
        if self.output is None:
            return hidden
        if self.shape.jumping == "concat":
            return _Hidden(torch.cat(outputs, dim=1))
        return _Hidden(torch.stack(outputs).amax(dim=0))

    def _layer(
        self, index: int, graph: GraphView, hidden: _Hidden, key: DropoutKey | None
    ) -> _Hidden:
        view = self._view(graph, index)
        draw = key.at(index) if key is not None else None

        def dropped(rows: Tensor) -> Tensor:
            if hidden.is_dropped:
                return rows
            return dropout(rows, view.node_ids, draw, self.shape.dropout_before(index))

        if self._epilogue[index]:
            following = self._view(graph, index + 1).node_ids
            next_draw = key.at(index + 1) if key is not None else None
            epilogue = Epilogue(following, next_draw, self.shape.dropout_before(index + 1))
            return _Hidden(
                self.layers[index](view, dropped(hidden.rows), epilogue), is_dropped=True
            )

        x, before = dropped(hidden.rows), hidden.again
        with rematerialised((x, None if before is None else lambda: dropped(before()))):
            out = self.run_layer(index, view, x, draw)
            if str(index) in self.shortcuts:
                out = out + self.shortcuts[str(index)](view.own(x))
        if index >= self.shape.num_hidden_layers:
            return _Hidden(out)
        if len(self.norms):
            out = self.norms[index](out, view.sums, training=key is not None)
        return self._activated(out)

    def _has_epilogue(self, index: int) -> bool:
        """Return whether the layer at `index` takes an `Epilogue`, as nothing comes between."""
        plain = self.fuses_epilogue and not len(self.norms) and self.output is None
        hidden = index < self.shape.num_hidden_layers and str(index) not in self.shortcuts
        return plain and hidden and self.shape.activation == "relu"

    def _activated(self, out: Tensor) -> _Hidden:
        activate = ACTIVATIONS[self.shape.activation].whole
        if activate is relu and not self.layers_save_results:
            rows = relu_(out)
            result = rows.detach()
            return _Hidden(rows, lambda: result)
        kept = out.detach()
        return _Hidden(activate(out), lambda: activate(kept))

    def _view(self, graph: GraphView, index: int) -> LayerView:
        return graph.layer(index, self.steps_per_layer(self.shape))


@collective
def for_loss(model: Any, graph: GraphView, x: Any, key: DropoutKey | None) -> Tensor:
    """Return the outputs of a model for a loss of rows, possibly as a `MappedRows`."""
    # Other models may do more than map at last.
    is_map = isinstance(model, LayeredModel) and type(model).forward is LayeredModel.forward
    with late_maps() if is_map else nullcontext():
        outputs: Tensor = model(graph, x, key)
    return outputs
