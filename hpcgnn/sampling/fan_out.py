"""Layer-wise sampling of neighbours (GraphSAGE), the baseline of subgraph samplers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcgnn.sampling import _sampling
from hpcgnn.sampling.subgraph import SampledPattern
from hpcgnn.sampling.topology import Topology
from hpcgnn.typing import LocalIndices


@dataclass(frozen=True, eq=False)
class FanOutLayer:
    """The input and output nodes of one layer.

    `inputs` (k,) and `outputs` (n,) are int32 ascending nodes. The outputs are among the inputs, at
    `output_positions` (n,). `pattern` (n, k) has a row for every output; its columns are positions
    in `inputs`.
    """

    inputs: LocalIndices
    outputs: LocalIndices
    pattern: SampledPattern
    output_positions: LocalIndices

    @classmethod
    def side_by_side(cls, layers: Sequence["FanOutLayer"]) -> "FanOutLayer":
        """Concatenate the nodes of several layers, at least one."""
        before = np.cumsum([0, *(len(layer.inputs) for layer in layers[:-1])]).astype(np.int32)
        return cls(
            np.concatenate([layer.inputs for layer in layers]),
            np.concatenate([layer.outputs for layer in layers]),
            SampledPattern.side_by_side([layer.pattern for layer in layers], before),
            np.concatenate(
                [layer.output_positions + b for layer, b in zip(layers, before, strict=True)]
            ),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays except `outputs`, which a sample shares with the next layer."""
        return self.inputs.nbytes + self.pattern.nbytes + self.output_positions.nbytes


@dataclass(frozen=True, eq=False)
class LayeredSample:
    """The layers of a batch, in the model's order: a layer's inputs are the previous outputs."""

    number: int
    layers: tuple[FanOutLayer, ...]

    @classmethod
    def side_by_side(cls, samples: Sequence["LayeredSample"]) -> "LayeredSample":
        """Return several samples, at least one, as one whose nodes may repeat."""
        if len(samples) == 1:
            return samples[0]
        layers = zip(*(sample.layers for sample in samples), strict=True)
        return cls(samples[0].number, tuple(map(FanOutLayer.side_by_side, layers)))

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(layer.nbytes for layer in self.layers) + self.layers[-1].outputs.nbytes


@dataclass(frozen=True, eq=False)
class FanOutSampler:
    """Samples neighbours of a batch's nodes, then neighbours of those, and so on.

    Neighbours are the columns of a node's row. `fan_outs`, one for each layer of the model in
    order, are how many are drawn without replacement; all are taken if there are no more. `seed` is
    in [0, 2^63).
    """

    topology: Topology
    seed: int
    fan_outs: tuple[int, ...]

    def sample(self, number: int, targets: LocalIndices) -> LayeredSample:
        """Return the layers that compute the outputs of `targets`, (n,) int32 ascending nodes.

        Raises ValueError if `targets` do not ascend or are not nodes of the graph.
        """
        layers: list[FanOutLayer] = []
        depth = len(self.fan_outs)
        for index, fan_out in enumerate(reversed(self.fan_outs)):
            inputs, arrays = _sampling.sample_fan_out(
                self.topology.native, targets, fan_out, self.seed, number * depth + index
            )
            output_positions = np.searchsorted(inputs, targets).astype(np.int32)
            layers.append(FanOutLayer(inputs, targets, SampledPattern(*arrays), output_positions))
            targets = inputs
        return LayeredSample(number, tuple(reversed(layers)))
