"""The cases that a quick run leaves out of products of parameters."""

from itertools import combinations, product

import pytest

from tests.support.covering import RANKS, covering, in_turn, on_one_rank, on_ranks


@pytest.mark.parametrize("sizes", [(4, 3), (7, 5, 4, 3), (2, 2, 2, 2, 2), (25, 4, 2)])
def test_every_pair_comes_and_few_cases(sizes):
    values = product(*map(range, sizes))
    cases = {str(row): {f"axis {i}": value for i, value in enumerate(row)} for row in values}
    kept = [cases[name] for name in covering(cases)]
    for (first, m), (second, n) in combinations(enumerate(sizes), 2):
        pairs = {(case[f"axis {first}"], case[f"axis {second}"]) for case in kept}
        assert len(pairs) == m * n
    largest, next_largest = sorted(sizes)[:-3:-1]
    assert largest * next_largest <= len(kept) <= 1.3 * largest * next_largest + 3


@pytest.mark.parametrize("sizes", [(4, 3), (7, 5, 4, 3), (25, 4, 2)])
def test_every_value_comes_in_as_few_cases_as_the_longest_axis_has(sizes):
    values = product(*map(range, sizes))
    cases = {str(row): {f"axis {i}": value for i, value in enumerate(row)} for row in values}
    kept = covering(cases, strength=1)
    seen = {item for name in kept for item in cases[name].items()}
    assert seen == {(f"axis {i}", value) for i, size in enumerate(sizes) for value in range(size)}
    assert len(kept) == max(sizes)


def test_each_case_has_one_number_of_ranks_and_a_function_both():
    cases = {f"{size}-{k}": {RANKS: size, "k": k} for size, k in product((3, 4), range(5))}
    for function in ("one", "two", "three"):
        kept = in_turn(function, cases)
        assert sorted(name[2:] for name in kept) == [*"01234"]
        assert {name[0] for name in kept} == {"3", "4"}


@pytest.mark.parametrize("number", [1, 2, 3, 4, 12])
def test_a_third_of_the_cases_has_both_numbers_of_ranks(number):
    cases = {f"{size}-{k}": {RANKS: size, "k": k} for size, k in product((3, 4), range(number))}
    for function in ("one", "two", "three"):
        kept = in_turn(function, cases, every=3)
        assert len({name[2:] for name in kept}) == len(kept)
        assert max(number // 3, 1) <= len(kept) <= max((number + 2) // 3, 2)
        assert len({name[0] for name in kept}) == min(len(kept), 2)


def test_a_single_case_has_the_largest_number_of_ranks_for_a_fourth_of_the_functions():
    cases = {"3": {RANKS: 3}, "4": {RANKS: 4}}
    for every in (1, 3):
        kept = [in_turn(f"function {i}", cases, every=every) for i in range(400)]
        assert all(len(names) == 1 for names in kept)
        assert 70 < sum(names == {"4"} for names in kept) < 130
    assert in_turn("a function", {"4": {RANKS: 4}}) == {"4"}


def test_what_one_rank_has_not_stays_on_ranks_where_it_is_little():
    for number in (2, 4, 5):
        cases = {f"{size}-{k}": {RANKS: size, "k": k} for size, k in product((3, 4), range(number))}
        kept = {name[2:] for name in on_ranks("a function", cases, ["several_ranks"])}
        assert (len(kept) == number) == (number <= 4)
        assert on_ranks("a function", cases, ["pairs"]) == in_turn("a function", cases)


@pytest.mark.parametrize("marks", [(), ("pairs",)])
@pytest.mark.parametrize("sizes", [(), (1,), (3,), (12,), (4, 3), (7, 5, 4, 3)])
def test_one_rank_has_what_ranks_lack(sizes, marks):
    values = product(*map(range, sizes))
    cases = {str(row): {f"axis {i}": value for i, value in enumerate(row)} for row in values}
    spread = {(size, name): cases[name] | {RANKS: size} for size in (3, 4) for name in cases}
    elsewhere = [cases[name] for _, name in on_ranks("a function", spread, marks)]
    alone = [cases[name] for name in on_one_rank(cases, elsewhere)]
    assert alone
    assert elsewhere
    for number in range(min(len(sizes), 2) + 1):
        every, both, one = (
            {several for case in some for several in combinations(case.items(), number)}
            for some in (cases.values(), alone + elsewhere, alone)
        )
        assert both == every
        if len(sizes) > 1 and number == 1:
            assert one == every
    assert on_one_rank(cases, []) == (covering(cases) if len(sizes) > 1 else {*cases})
    if len(cases) > 1:
        assert len(alone) < len(cases)
