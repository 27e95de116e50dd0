"""Models with several heads on one encoder, whose logits are the embeddings that all heads read.

Shape suffixes: N nodes, H width of the embeddings, C outputs.
"""

from collections.abc import Mapping
from types import MappingProxyType

from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.nn.linear import Linear
from hpcgnn.nn.model import EmbeddingModel, NodeModel


class HeadedModel(EmbeddingModel):
    """``W h + b`` of an encoder's embeddings h, for classes, labels or numbers of nodes."""

    head = "map"
    map: Linear

    @override
    def outputs(self, embeddings_NH: Tensor) -> Tensor:
        return self.map(embeddings_NH)


def make_headed_model(encoder: NodeModel, width: int, outputs: int, seed: int) -> HeadedModel:
    """Return the model, equal on all ranks for equal arguments; the map is drawn from `seed`."""
    return HeadedModel.with_new_head(encoder, seed, lambda: Linear(width, outputs))


class MultiTaskModel(EmbeddingModel):
    """An encoder with several heads; its outputs are the embeddings.

    `parts` are the models that share the encoder, by name; their heads are those of this model.
    """

    def __init__(self, encoder: NodeModel, parts: Mapping[str, EmbeddingModel]) -> None:
        super().__init__(encoder)
        # Keep the heads' names in the part models.
        heads = {
            name: nn.ModuleDict({part.head: part.get_submodule(part.head)})
            for name, part in parts.items()
        }
        self.heads = nn.ModuleDict(heads)
        # A mapping, not an attribute, lest the modules register the encoder again for each part.
        self.parts: Mapping[str, EmbeddingModel] = MappingProxyType({**parts})

    @staticmethod
    def weights_of(name: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of part `name`, under its own names, from those of this model."""
        own = {key.removeprefix(f"heads.{name}."): value for key, value in weights.items()}
        return {key: value for key, value in own.items() if not key.startswith("heads.")}
