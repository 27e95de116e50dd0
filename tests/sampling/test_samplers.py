from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy

from benchmarks.sums_sampler import SumsSampler
from hpcgnn.sampling import (
    AliasTable,
    EdgeSampler,
    FrontierSampler,
    NodeSampler,
    RandomWalkSampler,
    Sampler,
    Topology,
    edge_table,
    edge_weights,
    node_table,
    node_weights,
)
from tests.support.sampled_graphs import fits, symmetric, topology_of, ugly_topologies


def make_samplers(topology: Topology, **options: int) -> dict[str, Sampler]:
    common = {"topology": topology, "seed": 5, **options}
    samplers: dict[str, Sampler] = {
        "frontier": FrontierSampler(**common, walkers=30, budget=200),
        "walk of many dimensions": FrontierSampler(**common, walkers=30, budget=200, entered=True),
        "walk": RandomWalkSampler(**common, roots=20, length=4),
        "node": NodeSampler(**common, draws=50, table=node_table(topology)),
    }
    if topology.num_entries:
        samplers["edge"] = EdgeSampler(**common, draws=40, table=edge_table(topology))
    return samplers


@pytest.mark.parametrize("graph", list(ugly_topologies()))
def test_sets_are_ascending_nodes_of_the_graph(graph: str) -> None:
    topology = ugly_topologies()[graph]
    for sampler in make_samplers(topology).values():
        nodes = sampler.sample(3)
        assert np.array_equal(nodes, np.unique(sampler.visits(3)))
        assert 0 < len(nodes) <= topology.num_nodes
        assert nodes.min() >= 0
        assert nodes.max() < topology.num_nodes


def test_an_empty_graph_gives_empty_sets() -> None:
    empty = Topology(np.zeros(1, np.int64), np.zeros(0, np.int32))
    frontier = FrontierSampler(topology=empty, seed=1, walkers=5, budget=9)
    assert len(frontier.sample(0)) == 0
    assert len(RandomWalkSampler(topology=empty, seed=1, roots=5, length=2).sample(0)) == 0
    for table in (node_table, edge_table):
        with pytest.raises(ValueError, match="one of them positive"):
            table(empty)


@pytest.mark.parametrize("name", list(make_samplers(symmetric())))
def test_sets_drawn_together_are_those_drawn_alone(name: str) -> None:
    sampler = make_samplers(symmetric(), multiple=4)[name]
    for count in (1, 2, 3, 8):
        numbers = range(5, 5 + count)
        alone = [sampler.sample(number) for number in numbers]
        together = sampler.sample_each(numbers)
        assert all(np.array_equal(*pair) for pair in zip(alone, together, strict=True))
    assert sampler.sample_each([]) == []


def test_walks_start_at_roots_and_edges_have_one() -> None:
    whole = symmetric(60, 8)
    part = Topology(whole.indptr, whole.indices, 20)
    table = edge_table(part)
    walk = RandomWalkSampler(topology=part, seed=1, roots=300, length=2)
    frontier = FrontierSampler(topology=part, seed=1, walkers=300, budget=300)
    edge = EdgeSampler(topology=part, seed=1, draws=400, table=table)
    assert walk.visits(0)[:300].max() == 19
    assert walk.visits(0)[300:].max() > 19
    assert frontier.visits(0).max() == 19
    rows, columns = edge.visits(0).reshape(-1, 2).T
    assert rows.max() < 20 < columns.max()
    nobody = Topology(whole.indptr, whole.indices, 0)
    assert len(RandomWalkSampler(topology=nobody, seed=1, roots=3, length=2).sample(0)) == 0
    with pytest.raises(ValueError, match="roots"):
        Topology(whole.indptr, whole.indices, 61)


@pytest.mark.parametrize("name", list(make_samplers(symmetric())))
def test_sets_are_a_function_of_seed_and_number(name: str) -> None:
    sampler = make_samplers(symmetric())[name]
    expected = [sampler.sample(number) for number in range(40)]
    assert any(not np.array_equal(expected[0], each) for each in expected[1:])
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(sampler.sample, range(40)))
    assert all(np.array_equal(*pair) for pair in zip(expected, found, strict=True))


def test_clipped_sets_are_parts_of_the_sets() -> None:
    for name, sampler in make_samplers(symmetric()).items():
        clipped = make_samplers(symmetric(), multiple=16)[name].sample(2)
        whole = sampler.sample(2)
        assert len(clipped) == (len(whole) // 16 * 16 or len(whole))
        assert np.isin(clipped, whole).all()


def test_more_walkers_than_nodes_or_budget() -> None:
    for walkers, budget in ((500, 900), (500, 20), (3, 0)):
        frontier = FrontierSampler(topology=symmetric(), seed=1, walkers=walkers, budget=budget)
        assert len(frontier.visits(0)) == budget


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="ascend"):
        Topology(np.array([0, 2], np.int64), np.array([0, 0], np.int32))
    with pytest.raises(ValueError, match="seed"):
        RandomWalkSampler(topology=symmetric(), seed=-1, roots=1, length=1)
    assert len(RandomWalkSampler(topology=symmetric(), seed=0, roots=1, length=1).sample(0))
    with pytest.raises(ValueError, match="enlargement"):
        FrontierSampler(topology=symmetric(), seed=1, walkers=1, budget=2, enlargement=1).sample(0)


def pop_counts(topology: Topology, walkers: int, pops: int) -> np.ndarray:
    """Return how often walkers leave each node, over many sets."""
    sampler = FrontierSampler(topology=topology, seed=7, walkers=walkers, budget=walkers + pops)
    left = [sampler.visits(number)[walkers:] for number in range(3000)]
    return np.bincount(np.concatenate(left), minlength=topology.num_nodes)


def test_the_first_pop_is_proportional_to_degree() -> None:
    """With many walkers on uniform nodes, the first to move is on v with p = deg / sum."""
    topology = symmetric(40, 4)
    # A frontier of 2000 walkers holds every node almost equally often.
    assert fits(pop_counts(topology, 2000, 1), topology.degrees().astype(float))


def test_one_walker_is_a_random_walk() -> None:
    """The step after the first pop of one walker is to a uniform neighbour."""
    topology = topology_of(np.array([[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]))
    sampler = FrontierSampler(topology=topology, seed=3, walkers=1, budget=3)
    visits = np.stack([sampler.visits(number) for number in range(4000)])
    assert np.array_equal(visits[:, 0], visits[:, 1])
    after_hub = visits[visits[:, 1] == 0, 2]
    assert fits(np.bincount(after_hub, minlength=4), np.array([0, 1.0, 1.0, 1.0]))


def test_frontier_agrees_with_the_sampler_by_sums() -> None:
    """Frequencies of left nodes in a long run: Dashboard and sums of degrees agree."""
    topology, oracle = symmetric(60, 8), SumsSampler()
    walkers, budget, runs = 12, 60, 2000
    sampler = FrontierSampler(topology=topology, seed=2, walkers=walkers, budget=budget)
    last = np.array([sampler.visits(number)[-1] for number in range(runs)])
    expected = np.array([oracle.visits(topology, walkers, budget, 9, k)[-1] for k in range(runs)])
    table = np.stack([np.bincount(each, minlength=60) for each in (last, expected)])
    assert scipy.stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue > 1e-4


def test_hubs_that_exceed_the_dashboard_are_popped_by_degree() -> None:
    """A star: every second move leaves the hub, whose degree is larger than any slot."""
    spokes = 400
    dense = np.zeros((spokes + 1, spokes + 1))
    dense[0, 1:] = dense[1:, 0] = 1
    topology, oracle = topology_of(dense), SumsSampler()
    sampler = FrontierSampler(topology=topology, seed=2, walkers=5, budget=400)
    hub = sum(int((sampler.visits(k)[5:] == 0).sum()) for k in range(30))
    expected = sum(int((oracle.visits(topology, 5, 400, 1, k)[5:] == 0).sum()) for k in range(30))
    assert abs(hub - expected) < 0.05 * expected
    counts = sampler.dashboard(0)
    assert counts["truncated"] == 0
    # At least one round of probes for each pop, and few more.
    assert 395 <= counts["probes"] < 1200


def test_walks_follow_the_transition_matrix() -> None:
    topology = symmetric(30, 5)
    sampler = RandomWalkSampler(topology=topology, seed=6, roots=1, length=2)
    walks = [sampler.visits(number) for number in range(6000)]
    adjacency = np.zeros((30, 30))
    adjacency[topology.entry_rows(), topology.indices] = 1
    steps = adjacency / np.maximum(adjacency.sum(axis=1, keepdims=True), 1)
    ends = np.bincount([walk[2] for walk in walks if len(walk) == 3], minlength=30)
    assert fits(ends, np.full(30, 1 / 30) @ steps @ steps)
    assert fits(np.bincount([walk[0] for walk in walks], minlength=30), np.full(30, 1 / 30))


def test_edges_and_nodes_follow_their_weights() -> None:
    topology = symmetric(40, 6)
    edges = EdgeSampler(topology=topology, seed=4, draws=20000, table=edge_table(topology))
    rows, columns = edges.visits(0).reshape(-1, 2).T.astype(np.int64)
    keys = topology.entry_rows().astype(np.int64) * 40 + topology.indices
    counts = np.bincount(np.searchsorted(keys, rows * 40 + columns), minlength=len(keys))
    weights = edge_weights(topology)
    degrees = topology.degrees()
    assert np.allclose(weights, 1 / degrees[rows_of(topology)] + 1 / degrees[topology.indices])
    assert fits(counts, weights)
    nodes = NodeSampler(topology=topology, seed=4, draws=20000, table=node_table(topology))
    assert fits(np.bincount(nodes.visits(0), minlength=40), node_weights(topology))


def rows_of(topology: Topology) -> np.ndarray:
    return np.repeat(np.arange(topology.num_nodes), topology.degrees())


def test_node_weights_are_squared_norms_of_columns() -> None:
    topology = symmetric(25, 2)
    links = np.zeros((25, 25))
    links[topology.entry_rows(), topology.indices] = 1
    # A self loop of the graph and the identity are two entries.
    squares = (links + np.eye(25)) / (1 + topology.degrees())[:, None] ** 2
    assert np.allclose(node_weights(topology), squares.sum(axis=0))


def test_alias_tables_refuse_bad_weights() -> None:
    for weights in ([], [0.0], [1.0, -1.0], [np.inf], [np.nan]):
        with pytest.raises(ValueError, match="weights"):
            AliasTable.build(np.array(weights))
