"""Propagators on a GPU, or its emulator, equal those of the host."""

import numpy as np
import pytest
import torch

from hpcgnn.autograd import DropoutKey
from hpcgnn.autograd.band import TorchBand
from hpcgnn.banded import BandedOperator, Supernodes
from hpcgnn.nn import GGNNShape, candidate_loss, make_ggnn, make_propagator
from hpcgnn.trace import TraceRecorder
from tests.support.emulated_gpu import emulated_gpu
from tests.support.supergraphs import NUM_BUCKETS, NUM_FORWARD, supergraph

OFF = TraceRecorder.off()
CPU = torch.device("cpu")
SHAPE = GGNNShape(
    num_buckets=NUM_BUCKETS, num_types=2 * NUM_FORWARD, hidden=8, steps=2, dropout=0.2
)


# Two hubs in the first graph and one in the last.
HUBS = Supernodes(np.array([0, 24]), np.array([2, 1]), np.array([23, 33]))


@pytest.mark.parametrize(
    ("name", "block", "supernodes"),
    [
        ("sparse", 0, None),
        ("banded", 7, None),
        ("hybrid", 4, None),
        ("banded", 7, HUBS),
        ("hybrid", 4, HUBS),
    ],
)
def test_logits_and_gradients_are_those_of_the_host(
    name: str, block: int, supernodes: Supernodes | None
) -> None:
    graph = supergraph([23, 1, 9], 12)
    model = make_ggnn(SHAPE, seed=2, dtype=torch.float64)
    host = make_propagator(
        name, graph.edges, block=block, dtype=torch.float64, trace=OFF, supernodes=supernodes
    )
    found = []

    def run(propagator: object) -> None:
        model.zero_grad()
        logits = model(graph, propagator, DropoutKey(1, 2))
        candidate_loss(logits, graph, 3)[0].backward()
        found.append([logits.detach(), *(each.grad.clone() for each in model.parameters())])

    run(host)
    with emulated_gpu():
        device = host.on_gpu(CPU, "native")
        assert device.dropped == host.dropped
        run(device)
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("supernodes", [None, HUBS])
@pytest.mark.parametrize("block", [1, 5, 64])
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("native", 1e-5), ("tf32", 2e-3), ("bfloat16", 1e-2)]
)
def test_a_band_by_torch_and_its_adjoint(
    block: int, precision: str, tolerance: float, supernodes: Supernodes | None
) -> None:
    graph = supergraph([23, 1, 9], 9)
    operator = BandedOperator(graph.edges, block, np.float32, OFF, supernodes)
    band = TorchBand(operator, precision, CPU)
    torch.manual_seed(3)
    x, y = torch.randn(operator.shape[1], 5), torch.randn(operator.shape[0], 5)
    pairs = (
        (band.apply(x), operator.apply(x.numpy())),
        (
            band.apply_transpose(y),
            operator.apply_transpose(y.numpy()),
        ),
    )
    for mine, wanted in pairs:
        theirs = torch.from_numpy(wanted)
        scale = float(theirs.abs().max())
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance * scale)
    left, right = (band.apply(x) * y).sum(), (x * band.apply_transpose(y)).sum()
    torch.testing.assert_close(left, right, rtol=20 * tolerance, atol=20 * tolerance)
