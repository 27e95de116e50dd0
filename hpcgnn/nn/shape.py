"""The sizes and options of a model."""

from dataclasses import dataclass

__all__ = ["ACTIVATIONS", "JUMPING", "ModelShape"]

ACTIVATIONS = ("relu", "elu", "gelu")
"""Names of the functions between layers."""

JUMPING = ("none", "concat", "max")
"""Names of the ways to join the outputs of all layers."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes and options of a model; all ranks build it from the same seed.

    Parameters
    ----------
    num_features, num_classes, hidden
        Widths F, C and H; F is 0 where node types have features of their own.
    num_layers
        Number of layers, at least 1.
    num_relations
        Relations that a typed model tells apart, reverses included.
    dropout
        Probability for the input of every layer after the first.
    input_dropout
        Probability for the features.
    norm
        Of every hidden layer's output, before the activation; a name in `NORMS`.
    activation
        One of `ACTIVATIONS`.
    residual
        Add a layer's own input to its output, before normalisation: as it is where the widths are
        equal, through a learned linear map elsewhere.
    jumping
        One of `JUMPING`: all layers are then hidden, and a linear map of their joined outputs gives
        the logits.
    heads
        Attention heads of a layer.
    attention_dropout
        Probability for the coefficient of an edge and head, after the softmax.
    edge_dropout
        Probability for an edge, before the softmax.
    hops
        Aggregations of a layer that has several; 0: the model's own number.
    teleport
        The share of the first rows that every propagation step brings back.
    num_bases
        Matrices that the weights of the relations are combined from; 0: every relation has its own.
    type_features
        The features of each node type; empty for one kind of node.
    input_width
        Columns that the input layers of node types give; 0: `hidden`.
    """

    num_features: int
    num_classes: int
    hidden: int
    num_layers: int
    num_relations: int = 1
    dropout: float = 0.0
    input_dropout: float = 0.0
    norm: str = "none"
    activation: str = "relu"
    residual: bool = False
    jumping: str = "none"
    heads: int = 1
    attention_dropout: float = 0.0
    edge_dropout: float = 0.0
    hops: int = 0
    teleport: float = 0.1
    num_bases: int = 0
    type_features: tuple[int, ...] = ()
    input_width: int = 0

    @property
    def first_width(self) -> int:
        """Columns that the first graph layer reads."""
        return (self.input_width or self.hidden) if self.type_features else self.num_features

    @property
    def num_hidden_layers(self) -> int:
        """Layers whose output is normalised and activated."""
        return self.num_layers - (self.jumping == "none")

    def widths(self) -> list[int]:
        """Return the num_layers + 1 widths, from the first layer's input to the last's output."""
        hidden = [self.hidden] * self.num_hidden_layers
        last = [self.num_classes] if self.jumping == "none" else []
        return [self.first_width, *hidden, *last]

    def dropout_before(self, layer: int) -> float:
        """Return the dropout probability of the input of `layer`."""
        return self.input_dropout if layer == 0 else self.dropout
