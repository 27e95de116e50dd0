"""Models with layers of equal width between a map of the features and a map to the classes."""

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import ACTIVATIONS, DropoutKey, dropout, widened
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.model import GraphView, HiddenModel, LayerView, ModelShape
from hpcgnn.nn.norm import make_norm
from hpcgnn.spmd import collective


class NoColumns(nn.Module):
    """A map to zero columns, for models without outputs for nodes."""

    def forward(self, rows: Tensor) -> Tensor:
        """Return (rows, 0)."""
        return rows[:, :0]


class EqualWidthModel(HiddenModel):
    """``num_layers`` layers of width ``hidden``; subclasses define how one is made and run."""

    options = frozenset({"norm", "activation"})
    activates_layers: ClassVar[bool] = True
    """Whether the activation follows every layer."""
    activates_input: ClassVar[bool] = True
    """Whether the activation follows the map of the features."""

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__(shape, directed=directed)
        self.input = self.make_map(shape.first_width, shape.hidden)
        self.layers = nn.ModuleList(self.make_layer(index) for index in range(shape.num_layers))
        norms = [make_norm(shape.norm, shape.hidden) for _ in self.layers]
        self.norms = nn.ModuleList(norm for norm in norms if norm is not None)
        self.output = self.make_output(shape.num_classes)

    def make_map(self, in_width: int, out_width: int, *, is_last: bool = False) -> nn.Module:
        """Return the map of the features, or with `is_last` the map to the classes."""
        return Linear(in_width, out_width)

    def make_output(self, width: int) -> nn.Module:
        """Return the last map, from hidden rows to `width` columns."""
        return self.make_map(self.shape.hidden, width, is_last=True) if width else NoColumns()

    @abstractmethod
    def make_layer(self, index: int) -> nn.Module:
        """Return the layer at `index`.

        Not collective; the constructor calls it, with `shape` and `directed` set.
        """

    @abstractmethod
    @collective
    def run_layer(
        self, index: int, view: LayerView, x: Tensor, carried: Any, draw: DropoutKey | None
    ) -> tuple[Tensor, Any]:
        """Return the output rows of a layer, and a value carried to the next layer beside them.

        `carried` is the value from the previous layer, for the first one from `first_carried`.
        `draw` is the key of dropout masks; None: the model is evaluated.
        """

    @collective
    def first_carried(self, view: LayerView, first: Tensor) -> Any:
        """Return the value carried to the first layer, given its rows (input rows, hidden)."""
        del view, first

    @collective
    @override
    def forward(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        return self.outputs(graph, self.last_input(graph, x_NF, key), key)

    def outputs(self, graph: GraphView, hidden: Tensor, key: DropoutKey | None) -> Tensor:
        """Return logits (output rows, C) from the rows of the last layer."""
        last = len(self.layers)
        draw = None if key is None else key.at(last + 1)
        ids = graph.layer(last - 1).output_ids
        return widened(self.output(dropout(hidden, ids, draw, self.shape.dropout)))

    @collective
    @override
    def last_input(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        return self.run(graph, x_NF, key)[0]

    @collective
    def run(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> tuple[Tensor, Any]:
        """Return the output rows of the last layer, and the value that it carries."""
        shape = self.shape
        draw = None if key is None else key.at(0)
        x_NF = dropout(x_NF, graph.layer(0).node_ids, draw, shape.input_dropout)
        h_NH = self.input(x_NF)
        if self.activates_input:
            h_NH = ACTIVATIONS[shape.activation].whole(h_NH)
        carried = self.first_carried(graph.layer(0), h_NH)
        return self.run_layers(range(len(self.layers)), graph, h_NH, carried, key)

    @collective
    def run_layers(
        self, indices: range, graph: GraphView, h_NH: Tensor, carried: Any, key: DropoutKey | None
    ) -> tuple[Tensor, Any]:
        """Run consecutive layers; return their output rows and the value carried to the next."""
        activate, shape = ACTIVATIONS[self.shape.activation].whole, self.shape
        for index in indices:
            view = graph.layer(index)
            draw = None if key is None else key.at(index + 1)
            h_NH = dropout(h_NH, view.node_ids, draw, shape.dropout)
            h_NH, carried = self.run_layer(index, view, h_NH, carried, draw)
            if len(self.norms):
                h_NH = self.norms[index](h_NH, view.sums, training=key is not None)
            if self.activates_layers:
                h_NH = activate(h_NH)
        return h_NH, carried
