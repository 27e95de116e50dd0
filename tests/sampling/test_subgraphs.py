from collections.abc import Iterable
from dataclasses import is_dataclass
from itertools import product
from typing import Any

import numpy as np
import scipy.sparse as sp

from hpcgnn.kernels import transpose_csr, transpose_values_symmetric
from hpcgnn.sampling import (
    FanOutSampler,
    FrontierSampler,
    NodeSampler,
    RandomWalkSampler,
    SubgraphSource,
    count_coverage,
    induce,
    node_table,
    node_weights,
)
from tests.support.sampled_graphs import symmetric, topology_of, ugly_topologies


def test_induced_patterns_are_those_of_scipy() -> None:
    rng = np.random.default_rng(3)
    for topology in ugly_topologies().values():
        count = topology.num_nodes
        numbers = np.arange(1, topology.num_entries + 1)
        whole = sp.csr_matrix((numbers, topology.indices, topology.indptr), shape=(count, count))
        for share in (0.0, 0.4, 1.0):
            nodes = np.flatnonzero(rng.random(count) < share).astype(np.int32)
            pattern = induce(topology, nodes)
            expected = whole[nodes][:, nodes]
            expected.sort_indices()
            assert np.array_equal(pattern.indptr, expected.indptr)
            assert np.array_equal(pattern.indices, expected.indices)
            assert np.array_equal(pattern.entries, expected.data - 1)


def test_values_of_a_symmetric_subgraph_transpose_in_one_pass() -> None:
    source = SubgraphSource(FrontierSampler(topology=symmetric(), seed=1, walkers=9, budget=80))
    pattern = source(0).pattern
    values = np.random.default_rng(1).random(len(pattern.indices))
    count = len(pattern.indptr) - 1
    indptr, indices, expected, _ = transpose_csr(pattern.indptr, pattern.indices, values, count)
    assert np.array_equal(indptr, pattern.indptr)
    assert np.array_equal(indices, pattern.indices)
    found = transpose_values_symmetric(pattern.indptr, pattern.indices, values)
    assert np.array_equal(found, expected)


def test_coefficients_are_those_of_exact_enumeration() -> None:
    """All sets of three draws from five nodes, compared with counts over many sampled sets."""
    topology = topology_of(np.ones((5, 5)) - np.diag([1, 0, 1, 1, 1]))
    sampler = NodeSampler(topology=topology, seed=8, draws=3, table=node_table(topology))
    chances = node_weights(topology) / node_weights(topology).sum()
    held, both = np.zeros(5), np.zeros(topology.num_entries)
    for draws in product(range(5), repeat=3):
        probability = chances[list(draws)].prod()
        held[list(set(draws))] += probability
        inside = np.isin(topology.entry_rows(), draws) & np.isin(topology.indices, draws)
        both[inside] += probability
    runs = 20000
    counted = count_coverage(SubgraphSource(sampler), range(runs))
    for counts, exact in ((counted.nodes, held), (counted.entries, both)):
        deviation = np.abs(counts / runs - exact)
        assert (deviation < 4.5 * np.sqrt(exact * (1 - exact) / runs) + 1e-12).all()
    nodes = np.arange(5, dtype=np.int32)
    pattern = induce(topology, nodes)
    assert np.allclose(counted.loss_weights(nodes), 1 / held, rtol=0.05)
    alpha = both / held[topology.entry_rows()]
    assert np.allclose(counted.edge_factors(nodes, pattern), 1 / alpha, rtol=0.05)


def test_the_estimator_is_unbiased() -> None:
    """The mean over subgraphs of the weighted sum of aggregations is that of the whole graph."""
    topology = symmetric(50, 9)
    count = topology.num_nodes
    rng = np.random.default_rng(4)
    x, values = rng.normal(size=count), rng.random(topology.num_entries)
    whole = sp.csr_matrix((values, topology.indices, topology.indptr), shape=(count, count))
    sampler = RandomWalkSampler(topology=topology, seed=12, roots=8, length=3)
    counted = count_coverage(SubgraphSource(sampler), range(4000))
    assert counted.nodes.min() > 0
    assert counted.entries.min() > 0
    source = SubgraphSource(
        RandomWalkSampler(topology=topology, seed=77, roots=8, length=3), counted
    )
    estimates = []
    for number in range(4000):
        each = source(number)
        size = len(each.nodes)
        weights = values[each.pattern.entries] * each.edge_factors
        matrix = sp.csr_matrix((weights, each.pattern.indices, each.pattern.indptr), (size, size))
        estimates.append(each.loss_weights @ (matrix @ x[each.nodes]))
    error = np.std(estimates) / np.sqrt(len(estimates))
    # The coefficients are themselves estimates from as many sets.
    assert abs(np.mean(estimates) - (whole @ x).sum()) < 4 * np.sqrt(2) * error


def test_unseen_nodes_have_finite_coefficients() -> None:
    topology = symmetric()
    sampler = RandomWalkSampler(topology=topology, seed=1, roots=1, length=1)
    counted = count_coverage(SubgraphSource(sampler), [0])
    nodes = np.arange(topology.num_nodes, dtype=np.int32)
    pattern = induce(topology, nodes)
    assert np.isfinite(counted.loss_weights(nodes)).all()
    assert np.isfinite(counted.edge_factors(nodes, pattern)).all()


def test_fan_out_draws_neighbours_without_repeats() -> None:
    for topology in ugly_topologies().values():
        targets = np.arange(0, topology.num_nodes, 3, dtype=np.int32)
        sample = FanOutSampler(topology, 5, (4, 3)).sample(2, targets)
        assert np.array_equal(sample.layers[-1].outputs, targets)
        assert np.array_equal(sample.layers[0].outputs, sample.layers[1].inputs)
        for layer, fan_out in zip(sample.layers, (4, 3), strict=True):
            pattern = layer.pattern
            degrees = topology.degrees()[layer.outputs]
            assert np.array_equal(np.diff(pattern.indptr), np.minimum(degrees, fan_out))
            assert np.array_equal(layer.inputs[layer.output_positions], layer.outputs)
            columns = layer.inputs[pattern.indices]
            assert np.array_equal(columns, topology.indices[pattern.entries])
            assert (np.diff(pattern.entries) > 0).all()
            rows = topology.entry_rows()[pattern.entries]
            assert np.array_equal(rows, layer.outputs[pattern.entry_rows()])


def test_fan_out_is_uniform() -> None:
    topology = topology_of(np.ones((7, 7)))
    sampler = FanOutSampler(topology, 3, (3,))
    targets = np.array([2], np.int32)
    counts = np.zeros(7)
    for number in range(4000):
        counts[sampler.sample(number, targets).layers[0].pattern.entries - 14] += 1
    assert np.abs(counts - 4000 * 3 / 7).max() < 5 * np.sqrt(4000 * 3 / 7 * 4 / 7)


def arrays_of(value: Any) -> dict[int, np.ndarray]:
    """Return the arrays of a sample by their identity."""
    if isinstance(value, np.ndarray):
        return {id(value): value}
    parts = vars(value).values() if is_dataclass(value) else value
    below = [arrays_of(part) for part in parts] if isinstance(parts, Iterable) else []
    return {key: array for each in below for key, array in each.items()}


def test_bytes_are_those_of_each_array_once() -> None:
    topology = symmetric()
    sampler = RandomWalkSampler(topology=topology, seed=1, roots=4, length=3)
    counted = count_coverage(SubgraphSource(sampler), range(3))
    nodes = np.arange(5, dtype=np.int32)
    for sample in (
        SubgraphSource(sampler)(0),
        SubgraphSource(sampler, counted)(0),
        FanOutSampler(topology, 5, (4, 3)).sample(0, nodes),
    ):
        assert sample.nbytes == sum(array.nbytes for array in arrays_of(sample).values())
