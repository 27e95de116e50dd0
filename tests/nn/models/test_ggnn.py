import itertools

import numpy as np
import pytest
import torch

from hpcgnn.autograd import DropoutKey, typed_linear
from hpcgnn.banded import Supergraph, held_edges, inside_band, lay_out
from hpcgnn.errors import InputError
from hpcgnn.nn import GGNN, GGNNShape, candidate_loss, make_ggnn, make_propagator
from hpcgnn.trace import TraceRecorder
from tests.support.supergraphs import (
    NUM_BUCKETS,
    NUM_FORWARD,
    dense,
    hub_batch,
    random_batch,
    supergraph,
)

OFF = TraceRecorder.open(None, 0, {})
SHAPE = GGNNShape(num_buckets=NUM_BUCKETS, num_types=2 * NUM_FORWARD, hidden=16, steps=8)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def run(
    model: GGNN, graph: Supergraph, name: str, block: int, key: DropoutKey | None = None
) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """Return logits, gradients of the parameters, and the number of dropped edges."""
    propagator = make_propagator(
        name,
        graph.edges,
        block=block,
        dtype=model.readout.weight.dtype,
        trace=OFF,
        supernodes=graph.supernodes,
    )
    model.zero_grad()
    logits = model(graph, propagator, key)
    loss, _ = candidate_loss(logits, graph, max(graph.num_graphs, 1), 0.05)
    loss.backward()
    return logits.detach(), [each.grad.clone() for each in model.parameters()], propagator.dropped


def assert_equal(found: tuple, wanted: tuple, tolerance: float) -> None:
    for a, b in zip([found[0], *found[1]], [wanted[0], *wanted[1]], strict=True):
        assert torch.linalg.norm(a - b) <= tolerance * max(float(torch.linalg.norm(b)), 1e-3)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("sizes", "reach", "block"), [([30, 9, 1], 5, 6), ([70], 31, 32)])
def test_banded_is_sparse_where_the_bandwidth_fits(
    sizes: list[int], reach: int, block: int, dtype: torch.dtype
) -> None:
    graph, model = supergraph(sizes, reach), make_ggnn(SHAPE, seed=1, dtype=dtype)
    wanted = run(model, graph, "sparse", 0)
    found = run(model, graph, "banded", block)
    assert found[2] == 0
    assert_equal(found, wanted, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("block", [1, 3, 16, 25])
def test_hybrid_is_sparse_and_banded_is_sparse_without_the_dropped(
    block: int, dtype: torch.dtype
) -> None:
    graph, model = supergraph([90, 5, 33], 60), make_ggnn(SHAPE, seed=2, dtype=dtype)
    assert_equal(
        run(model, graph, "hybrid", block), run(model, graph, "sparse", 0), TOLERANCE[dtype]
    )
    found, wanted = run(model, graph, "banded", block), run(model, graph, "sparse", block)
    outside = int((~inside_band(graph.edges, block)).sum())
    assert found[2] == wanted[2] == outside > 0
    assert_equal(found, wanted, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_supernodes_are_sparse_forward_and_backward(dtype: torch.dtype) -> None:
    batch, model = hub_batch([70, 5, 41], hubs=2, reach=30), make_ggnn(SHAPE, seed=2, dtype=dtype)
    # Sums over hubs are large: saturated gates would magnify the rounding errors of one step.
    with torch.no_grad():
        model.weight_PHH *= 0.1
    ids = batch.starts("num_nodes")[:-1]
    key = DropoutKey(3, 1)
    wanted = run(model, Supergraph.build(batch, NUM_FORWARD, ids), "sparse", 0, key)
    lost = {}
    for most in (0, 1, 4, 16):
        graph = Supergraph.build(batch, NUM_FORWARD, ids, lay_out(batch, 12, most))
        assert_equal(run(model, graph, "hybrid", 12, key), wanted, TOLERANCE[dtype])
        found, sparse = run(model, graph, "banded", 12), run(model, graph, "sparse", 12)
        assert_equal(found, sparse, TOLERANCE[dtype])
        assert found[2] == sparse[2] == (~held_edges(graph.edges, 12, graph.supernodes)).sum()
        lost[most] = found[2]
    assert lost[0] > lost[1] > lost[4] > lost[16]
    narrow = hub_batch([70, 5, 41], hubs=2, reach=3)
    graph = Supergraph.build(narrow, NUM_FORWARD, ids, lay_out(narrow, 16, 2))
    banded = run(model, graph, "banded", 16, key)
    assert banded[2] == 0
    wanted = run(model, Supergraph.build(narrow, NUM_FORWARD, ids), "sparse", 0, key)
    assert_equal(banded, wanted, TOLERANCE[dtype])


def test_states_are_equation_1() -> None:
    """Compare with dense matrices, a written-out GRU and a written-out loss."""
    graph = supergraph([7, 4], 3)
    model = make_ggnn(SHAPE, seed=3, dtype=torch.float64)
    torch.nn.init.normal_(model.bias_PH)
    A = torch.from_numpy(dense(graph.edges))
    table, starts = model.embedding.weight.detach(), graph.subtoken_starts
    rows = [
        table[graph.subtokens[low:high]].mean(0) if low < high else torch.zeros(16)
        for low, high in itertools.pairwise(starts)
    ]
    E = torch.stack(rows).double()
    cell = model.cell
    for _ in range(8):
        m = sum(
            A[p] @ (E @ model.weight_PHH[p]) + A[p].sum(1, keepdim=True) * model.bias_PH[p]
            for p in range(2 * NUM_FORWARD)
        )
        gi = (m @ cell.weight_ih.T + cell.bias_ih).chunk(3, 1)
        gh = (E @ cell.weight_hh.T + cell.bias_hh).chunk(3, 1)
        r, z = torch.sigmoid(gi[0] + gh[0]), torch.sigmoid(gi[1] + gh[1])
        E = (1 - z) * torch.tanh(gi[2] + r * gh[2]) + z * E
    wanted = (E[graph.candidates] @ model.readout.weight.T).squeeze(1)
    found, _, _ = run(model, graph, "sparse", 0)
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-10, atol=1e-12)
    loss, correct = candidate_loss(found, graph, 2, 0.1)
    total = 0.0
    for number in range(2):
        mine = found[torch.from_numpy(graph.candidate_graphs == number)]
        right = int(graph.labels[number])
        total += float(
            torch.nn.functional.cross_entropy(
                mine[None], torch.tensor([right]), label_smoothing=0.1
            )
        )
        assert bool(correct[number]) == (int(mine.argmax()) == right)
    assert float(loss) == pytest.approx(total / 2)


def test_gradients_by_differences() -> None:
    graph = supergraph([6, 3], 2)
    model = make_ggnn(
        GGNNShape(num_buckets=NUM_BUCKETS, num_types=6, hidden=3, steps=2, dropout=0.3),
        seed=4,
        dtype=torch.float64,
    )
    key = DropoutKey(1, 2)
    for name, block in (("sparse", 0), ("banded", 2), ("hybrid", 2)):
        _, gradients, _ = run(model, graph, name, block, key)
        propagator = make_propagator(name, graph.edges, block=block, dtype=torch.float64, trace=OFF)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            place = int(gradient.abs().argmax())
            values = []
            for step in (1e-6, -1e-6):
                with torch.no_grad():
                    parameter.view(-1)[place] += step
                    logits = model(graph, propagator, key)
                    values.append(float(candidate_loss(logits, graph, 2, 0.05)[0]))
                    parameter.view(-1)[place] -= step
            difference = (values[0] - values[1]) / 2e-6
            assert difference == pytest.approx(float(gradient.view(-1)[place]), rel=1e-4, abs=1e-8)


def test_graphs_of_a_supergraph_do_not_meet() -> None:
    batch = random_batch([12, 5, 9], 4)
    model = make_ggnn(SHAPE, seed=5, dtype=torch.float64)
    whole = Supergraph.build(batch, NUM_FORWARD, batch.starts("num_nodes")[:-1])
    logits, _, _ = run(model, whole, "sparse", 0)
    for number in range(3):
        part = batch.select([number])
        alone = Supergraph.build(part, NUM_FORWARD, batch.starts("num_nodes")[number : number + 1])
        mine, _, _ = run(model, alone, "sparse", 0)
        torch.testing.assert_close(mine, logits[torch.from_numpy(whole.candidate_graphs == number)])


def test_typed_linear() -> None:
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    starts = np.array([0, 2, 2, 6, 7])
    assert torch.autograd.gradcheck(lambda a, b: typed_linear(a, b, starts), (x, weight))


def test_block_sizes_are_checked() -> None:
    graph = supergraph([3], 1)
    with pytest.raises(InputError, match="block"):
        make_propagator("banded", graph.edges, block=0, dtype=torch.float32, trace=OFF)


def test_empty_supergraph() -> None:
    model = make_ggnn(SHAPE, seed=1, dtype=torch.float32)
    for name in ("sparse", "banded", "hybrid"):
        logits, _, _ = run(model, supergraph([], 1), name, 4)
        assert logits.shape == (0,)
