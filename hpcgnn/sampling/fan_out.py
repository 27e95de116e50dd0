"""Layer-wise sampling of neighbours (GraphSAGE), the baseline of subgraph samplers."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.sampling import _sampling
from hpcgnn.sampling.subgraph import SampledPattern
from hpcgnn.sampling.topology import Topology
from hpcgnn.typing import LocalIndices


@dataclass(frozen=True, eq=False)
class FanOutLayer:
    """What one layer reads and gives.

    `inputs` (k,) and `outputs` (n,) are int32 ascending nodes; the outputs are among the inputs.
    `pattern` (n, k) has a row for every output; columns are places in `inputs`.
    """

    inputs: LocalIndices
    outputs: LocalIndices
    pattern: SampledPattern

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.inputs.nbytes + self.pattern.nbytes

    @property
    def kept(self) -> LocalIndices:
        """(n,) places of the outputs among the inputs."""
        return np.searchsorted(self.inputs, self.outputs).astype(np.int32)


@dataclass(frozen=True, eq=False)
class LayeredSample:
    """The layers of a batch, the model's first one first: inputs are outputs of the one before."""

    number: int
    layers: tuple[FanOutLayer, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(layer.nbytes for layer in self.layers)


@dataclass(frozen=True, eq=False)
class FanOutSampler:
    """Draws some neighbours of each node of a batch, some of each of those, and so on.

    Neighbours are the columns of a node's row. For each layer of the model, the first first,
    `fan_outs` are drawn without repeats, or all where there are no more. `seed` is in [0, 2^63).
    """

    topology: Topology
    seed: int
    fan_outs: tuple[int, ...]

    def sample(self, number: int, targets: LocalIndices) -> LayeredSample:
        """Return the layers that give the outputs of `targets`, (n,) int32 ascending nodes.

        Raises ValueError when they are not ascending, or no nodes of the graph.
        """
        layers: list[FanOutLayer] = []
        depth = len(self.fan_outs)
        for index, fan_out in enumerate(reversed(self.fan_outs)):
            inputs, arrays = _sampling.sample_fan_out(
                self.topology.native, targets, fan_out, self.seed, number * depth + index
            )
            layers.append(FanOutLayer(inputs, targets, SampledPattern(*arrays)))
            targets = inputs
        return LayeredSample(number, tuple(reversed(layers)))
