import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.group_rules import TIGR_SIZE, dimension_rule, fit_rule, save_rule
from hpcgnn.errors import InputError
from hpcgnn.kernels.cuda import neighbor_groups
from hpcgnn.kernels.cuda.groups import PAPER_RULE, GroupSizeRule
from tests.kernels.conftest import ugly_graph


def check_groups(indptr, size):
    groups = neighbor_groups(indptr, size)
    lengths = groups.stop - groups.start
    assert ((lengths >= 1) & (lengths <= size)).all()
    # Each non-zero is in one group, of its own row, in order.
    rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    np.testing.assert_array_equal(np.repeat(groups.row, lengths), rows)
    covered = np.concatenate([[0], groups.stop])
    np.testing.assert_array_equal(covered[:-1], groups.start)
    # The size allows no fewer groups.
    counts = np.bincount(groups.row, minlength=indptr.size - 1)
    np.testing.assert_array_equal(counts, -(-np.diff(indptr) // size))
    np.testing.assert_array_equal(groups.empty_rows, np.flatnonzero(counts == 0))
    np.testing.assert_array_equal(groups.split_rows, np.flatnonzero(counts > 1))
    np.testing.assert_array_equal(np.diff(groups.split_starts), counts[groups.split_rows])
    alone = counts[groups.row] == 1
    np.testing.assert_array_equal(groups.piece < 0, alone)
    np.testing.assert_array_equal(groups.piece[~alone], np.arange(groups.num_pieces))


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 50))
def test_groups_of_any_rows(lengths, size):
    check_groups(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), size)


@pytest.mark.parametrize("name", ["no rows", "all empty", "power law", "hubs"])
def test_groups_of_ugly_graphs(name):
    check_groups(ugly_graph(name).indptr, 10)


def test_faults_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        neighbor_groups(np.zeros(1, np.int64), 0)
    with pytest.raises(ValueError, match="decrease"):
        neighbor_groups(np.array([0, 2, 1]), 3)


def test_the_regression_of_the_paper():
    # Cora: 2708 nodes, 10556 edges; by hand 0.65538 + 0.04534 - 0.02368 + 2.48081 = 3.15785.
    assert PAPER_RULE.size(2708, 10556) == 3
    assert PAPER_RULE.size(0, 0) == 1
    # By hand 43.537; and a value below zero, from many edges with a small degree.
    assert PAPER_RULE.size(10**5, 10**7) == 44
    assert PAPER_RULE.size(3 * 10**6, 10**8) == 1


def test_rules_that_ignore_the_graph():
    assert TIGR_SIZE == 10
    assert [dimension_rule(width) for width in (16, 32, 128, 1 << 20)] == [1024, 1024, 256, 1]


def test_refitting_finds_the_coefficients_again(tmp_path):
    rng = np.random.default_rng(12)
    nodes, degrees = rng.integers(1000, 10**6, 30), rng.uniform(2, 100, 30)
    edges = (nodes * degrees).astype(int)
    wanted = GroupSizeRule(1.5, 2e-6, -3e-8, 0.5)
    samples = [
        (n, e, 1.5 + 2e-6 * n - 3e-8 * e + 0.5 * e / n) for n, e in zip(nodes, edges, strict=True)
    ]
    found = fit_rule(samples)
    path = tmp_path / "rule.json"
    save_rule(found, path, device="none", graphs=30)
    for name in GroupSizeRule.__dataclass_fields__:
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-6)
    assert GroupSizeRule.load(path) == found
    assert json.loads(path.read_text())["device"] == "none"


def test_alike_graphs_do_not_determine_a_rule():
    for samples in ([], [(10, 20, 3)] * 9):
        with pytest.raises(InputError, match="do not determine"):
            fit_rule(samples)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot read group-size coefficients"),
        ("[1]", "cannot read group-size coefficients"),
        ('{"intercept": 1}', "per_node.* is missing"),
        ('{"intercept": 1, "per_node": NaN, "per_edge": 0, "per_degree": 0}', "not a finite"),
    ],
)
def test_broken_coefficients_are_one_line(tmp_path, text, words):
    path = tmp_path / "rule.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        GroupSizeRule.load(path)
