"""Facts about a hole, apart from the graph's structure and labels, must not reveal the answer."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcgnn.banded import Supergraph
from hpcgnn.convert.programs import ProgramOptions, convert_programs
from hpcgnn.nn import GGNNShape, candidate_loss, make_ggnn, make_propagator
from hpcgnn.storage import InstanceBatch, InstanceStore
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array

OFF = TraceRecorder.open(None, 0, {})
NUM_FORWARD = 10


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> InstanceBatch:
    """Return the holes of a package of the standard library."""
    path = tmp_path_factory.mktemp("leaks") / "some.h5"
    library = Path(sysconfig.get_path("stdlib"))
    options = ProgramOptions(
        granularity="function", functions_per_file=0, holes_per_function=2, num_buckets=512
    )
    convert_programs([library / "asyncio"], path, options)
    with InstanceStore.open(path) as store:
        return store.read(0, len(store))


def lists(batch: InstanceBatch, values: Array) -> list[Array]:
    return np.split(values, batch.starts("num_candidates")[1:-1])


def within_chance(hits: Array, counts: Array) -> bool:
    """Tell whether hits are within four deviations of uniform guesses among `counts`."""
    chance = 1 / counts
    deviation = np.sqrt((chance * (1 - chance)).sum())
    return bool(abs(hits.sum() - chance.sum()) < 4 * deviation)


def test_order_and_numbers_of_candidates_say_nothing(batch: InstanceBatch) -> None:
    labels, counts = batch.graphs["label"], batch.graphs["num_candidates"]
    assert len(batch) > 500
    nodes = lists(batch, batch.candidates["node"])
    guesses = {
        "first": np.zeros(len(batch), int),
        "last": counts - 1,
        "smallest node": np.array([each.argmin() for each in nodes]),
        "largest node": np.array([each.argmax() for each in nodes]),
    }
    for name, guess in guesses.items():
        assert within_chance(guess == labels, counts), name


def test_features_without_structure_reach_chance(batch: InstanceBatch) -> None:
    """Train on positions and numbers, evaluate on other holes."""
    owner = np.repeat(np.arange(len(batch)), batch.graphs["num_candidates"])
    place = np.concatenate([np.arange(count) for count in batch.graphs["num_candidates"]])
    nodes = batch.candidates["node"].astype(np.float64)
    sizes, widths = batch.graphs["num_nodes"][owner], batch.graphs["bandwidth"][owner]
    features = np.column_stack([place, nodes, nodes / sizes, sizes, widths, nodes % 2])
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    x = torch.from_numpy(np.column_stack([features, features**2, features * place[:, None]]))
    right = torch.from_numpy(batch.starts("num_candidates")[:-1] + batch.graphs["label"])
    where = torch.from_numpy(owner)
    train = torch.arange(len(batch)) % 2 == 0
    weight = torch.zeros(x.shape[1], 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=50)

    def log_shares() -> torch.Tensor:
        scores = (x @ weight).squeeze(1)
        totals = torch.zeros(len(batch), dtype=torch.float64).index_add(0, where, scores.exp())
        return scores - totals[where].log()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = -log_shares()[right][train].mean() + 1e-3 * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(step)
    best = [each.argmax() for each in lists(batch, log_shares().detach().numpy())]
    hits = np.array(best) == batch.graphs["label"]
    judged = ~train.numpy()
    assert within_chance(hits[judged], batch.graphs["num_candidates"][judged])


@pytest.mark.parametrize("shuffled", [True, False])
def test_shuffled_labels_reach_chance(batch: InstanceBatch, shuffled: bool) -> None:
    """The short training that learns from true labels learns nothing from random ones."""
    small = np.flatnonzero(batch.graphs["num_nodes"] < 250)[:800]
    chosen = batch.select(small)
    if shuffled:
        rng = np.random.default_rng(7)
        chosen.graphs["label"] = rng.integers(0, chosen.graphs["num_candidates"])
    shape = GGNNShape(num_buckets=512, num_types=2 * NUM_FORWARD, hidden=16, steps=8)
    model = make_ggnn(shape, seed=1, dtype=torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    hits = []
    for low in range(0, len(chosen), 25):
        part = chosen.select(range(low, min(low + 25, len(chosen))))
        graph = Supergraph.build(part, NUM_FORWARD, part.starts("num_nodes")[:-1])
        propagator = make_propagator("sparse", graph.edges, block=0, dtype=torch.float32, trace=OFF)
        # Every graph is evaluated before it is trained on.
        loss, correct = candidate_loss(model(graph, propagator, None), graph, len(part))
        hits.append(correct.numpy())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    later = slice(len(chosen) // 2, None)
    found = np.concatenate(hits)[later]
    counts = chosen.graphs["num_candidates"][later]
    assert within_chance(found, counts) == shuffled
