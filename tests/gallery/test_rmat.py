import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcgnn import gallery
from hpcgnn.errors import InputError
from hpcgnn.gallery import RandomNodes, RmatEdges, rmat_edges, streamed


@given(st.integers(1, 5000), st.integers(0, 2**40), st.data())
def test_shuffling_is_one_to_one_below_every_limit(
    size: int, seed: int, data: st.DataObject
) -> None:
    limit = data.draw(st.integers(1, size))
    found = streamed.shuffled(np.arange(limit), size, seed, limit)
    assert np.array_equal(np.sort(found), np.arange(limit))
    limits = np.where(np.arange(limit) % 2, limit, size)
    each = streamed.shuffled(np.arange(limit), size, seed, limits)
    assert np.all((each >= 0) & (each < limits))
    assert np.array_equal(each[1::2], found[1::2])


def test_chunks_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "CHUNK_EDGES", 100)
    edges = RmatEdges(6, 5, 31)
    made = [edges.chunk(number) for number in range(edges.num_chunks)]
    assert [src.size for src, _ in made] == [100, 100, 100, 20]
    alone = edges.chunk(2)
    assert np.array_equal(alone[0], made[2][0])
    assert np.array_equal(alone[1], made[2][1])
    assert not np.array_equal(made[0][0], made[1][0])


def test_quadrants_have_their_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rmat_edges, "shuffled", lambda nodes, *_: nodes)
    src, dst = RmatEdges(1, 50_000, 31).chunk(0)
    found = np.bincount(2 * src + dst) / src.size
    assert found == pytest.approx([0.57, 0.19, 0.19, 0.05], abs=0.01)
    src, dst = RmatEdges(1, 5_000, 31, 0.5, 0.25, 0.25).chunk(0)
    assert not (src & dst).any()


def test_degrees_are_skewed_and_ids_are_shuffled() -> None:
    graph = gallery.rmat(10, 8, 31)
    degrees = np.bincount(graph.dst, minlength=1024)
    assert degrees.max() > 12 * degrees.mean()
    low_half = degrees[:512].sum() / degrees.sum()
    assert 0.3 < low_half < 0.7


@pytest.mark.parametrize(
    "arguments", [(-1, 2, 3), (41, 2, 3), (3, -2, 3), (3, 2, -3), (3, 2, 3, 0.9, 0.2)]
)
def test_wrong_parameters_are_refused(arguments: tuple[float, ...]) -> None:
    with pytest.raises(InputError):
        RmatEdges(*arguments)


def test_random_nodes_do_not_depend_on_the_number_of_nodes() -> None:
    few = RandomNodes(100, 3, 5, 8).block(0)
    nodes = RandomNodes(streamed.NODE_CHUNK + 9, 3, 5, 8)
    many = [nodes.block(0), nodes.block(streamed.NODE_CHUNK)]
    assert [labels.size for _, labels, _ in many] == [streamed.NODE_CHUNK, 9]
    assert few[0].dtype == np.float32
    assert set(np.unique(many[0][1])) == set(range(5))
    shares = np.bincount(many[0][2]) / streamed.NODE_CHUNK
    assert shares == pytest.approx([0, 0.6, 0.2, 0.2], abs=0.02)
