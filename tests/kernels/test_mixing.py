import numpy as np

from hpcgnn.kernels.mixing import GOLDEN, key_of, murmur_mix, split_mix, uniform
from hpcgnn.nn.node_types import draw_vectors
from hpcgnn.partition.coarsening import mixed as hash_nodes
from hpcgnn.train.links.edges import mixed as hash_fields

HASHES = [1414996226316560565, 7824127536818006538, 7649273950589185463]
VECTORS = [0.11623421154130334, -0.8341076066643159, 0.8154473564496428, 0.24394017458612652]
"""The values of earlier versions."""


def test_published_outputs():
    # The first outputs of SplitMix64 with seed 0, and fmix64 of MurmurHash3 of 1.
    states = np.uint64(GOLDEN) * np.arange(3, dtype=np.uint64)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert split_mix(states).tolist() == expected
    one = np.ones(1, np.uint64)
    assert murmur_mix(one ^ (one >> np.uint64(33))).tolist() == [0xB456BCFC34C2CB2C]


def test_fields_are_mixed_as_the_keys_of_draws():
    fields = [(0, 0), (1, 2), (-5, 1 << 40)]
    assert [int(hash_fields(*each)[0]) for each in fields] == [key_of(*each) for each in fields]


def test_bits_of_partitions_and_learned_vectors_stay():
    nodes = np.array([0, 1, 1 << 40])
    state = [((node + 77 * GOLDEN) * GOLDEN) % 2**64 for node in (0, 1, 1 << 40)]
    assert (hash_nodes(nodes, 77) == split_mix(np.array(state, np.uint64))).all()
    assert hash_nodes(nodes, 77).tolist() == HASHES
    assert draw_vectors(nodes[:2], 2, seed=3).ravel().tolist() == VECTORS


def test_uniform_numbers_lie_below_one():
    ends = uniform(np.array([0, 1 << 63, 2**64 - 1], np.uint64))
    assert ends.tolist() == [0.0, 0.5, 1 - 2.0**-53]
