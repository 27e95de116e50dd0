"""The cases of a test that a quick run keeps: each pair of values, or each value, of its axes."""

import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import combinations

import pytest

Case = Mapping[str, Hashable]
"""The value of a case on each axis; an axis is a parametrisation or a fixture's parameters."""
Sizes = Callable[[pytest.Item], Sequence[int]]
"""The numbers of ranks on which the daily run has a test; none if it runs on one rank only."""
RANKS = "comm"
FEW = 8
"""Cases on 3 and 4 ranks for a test without serial cases: none is left out."""
LARGEST_OF = 4
"""One of as many functions with a single case on ranks has it at the largest number of ranks."""


def axes(item: pytest.Item) -> Case:
    """Return the case of `item`; values are distinguished by identity."""
    parameters = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    case: dict[str, Hashable] = {}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = names.split(",") if isinstance(names, str) else names
        # The values of one parametrisation change together: they are one.
        case[",".join(names)] = tuple(id(parameters.pop(name.strip(), None)) for name in names)
    return case | {name: id(value) for name, value in parameters.items()}


def covering(
    cases: Mapping[str, Case], strength: int = 2, elsewhere: Iterable[Case] = ()
) -> set[str]:
    """Return names of cases that have every value, and every pair that no case `elsewhere` has.

    At `strength` 1 they have every value, and few repeated pairs. Greedy: the next case is the
    first of those with the most missing values or pairs.
    """
    values = {name: {*case.items()} for name, case in cases.items()}
    pairs = {name: {*combinations(case.items(), 2)} for name, case in cases.items()}
    wanted = values if strength == 1 else {name: values[name] | pairs[name] for name in cases}
    missing, new = set().union(*wanted.values()), set().union(*pairs.values())
    missing -= {pair for case in elsewhere for pair in combinations(case.items(), 2)}
    kept = set()
    while missing:
        best = max(wanted, key=lambda name: (len(wanted[name] & missing), len(pairs[name] & new)))
        missing -= wanted[best]
        new -= pairs[best]
        kept.add(best)
    return kept


def in_turn(function: str, cases: Mapping[str, Case], *, every: int = 1) -> set[str]:
    """Return one of `every` cases at one number of ranks; numbers of ranks take turns.

    The first one depends on the name of the function. A single case has the largest number for one
    of four functions: another rank takes a third more time, and functions of several cases have
    both numbers.
    """
    sizes: dict[Hashable, list[str]] = defaultdict(list)
    for name, case in cases.items():
        sizes[tuple((axis, value) for axis, value in case.items() if axis != RANKS)].append(name)
    first, rows = zlib.crc32(function.encode()), [*sizes.values()]
    chosen = rows[first % every :: every] or rows
    if len(chosen) == 1:
        (names,) = chosen
        return {names[-1 if first // every % LARGEST_OF == 1 else 0]}
    return {names[(first // every + number) % len(names)] for number, names in enumerate(chosen)}


def on_ranks(function: str, cases: Mapping[str, Case], marks: Collection[str] = ()) -> set[str]:
    """Return the cases of a function with some marks that a quick run has on ranks.

    A function of several parametrisations keeps each value, or each pair where it is marked
    ``pairs``; the numbers of ranks are an axis as the others are. One of a single parametrisation
    keeps a third of its cases, or each where it is marked or has few and none on one rank.
    """
    if len({*next(iter(cases.values()), ())} - {RANKS}) > 1:
        return covering(cases, 2 if "pairs" in marks else 1)
    all_of_them = "pairs" in marks or ("several_ranks" in marks and len(cases) <= FEW)
    return in_turn(function, cases, every=1 if all_of_them else 3)


def on_one_rank(cases: Mapping[str, Case], elsewhere: Sequence[Case]) -> set[str]:
    """Return the cases that a quick run has on one rank, given those that it has on ranks.

    Several parametrisations: each value, and each pair that is not tested on ranks. A single one:
    the cases that are not tested on ranks, or every second case if all are.
    """
    if len(next(iter(cases.values()))) > 1:
        return covering(cases, elsewhere=elsewhere)
    rest = [name for name, case in cases.items() if case not in elsewhere]
    return {*(rest or [*cases][::2])} if elsewhere else {*cases}


def left_out(items: Iterable[pytest.Item], sizes: Sizes | None) -> list[pytest.Item]:
    """Return the items that a quick run leaves out; ``tests/run.sh --all`` leaves nothing out.

    On one rank, `sizes` gives the numbers of ranks on which the daily run has a test; else None.
    """
    functions: dict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        functions[item.nodeid.partition("[")[0]][item.nodeid] = item
    left: list[pytest.Item] = []
    for function, of in functions.items():
        cases, first = {name: axes(item) for name, item in of.items()}, next(iter(of.values()))
        marks = [mark.name for mark in first.iter_markers()]
        if sizes is None:
            kept = on_ranks(function, cases, marks)
        else:
            spread = {
                f"{size} {name}": {**case, RANKS: size} if RANKS in case else case
                for size in sizes(first)
                for name, case in cases.items()
            }
            elsewhere = on_ranks(function, spread, marks)
            alone = {
                name: {axis: value for axis, value in case.items() if axis != RANKS}
                for name, case in cases.items()
            }
            kept = on_one_rank(alone, [alone[name.partition(" ")[2]] for name in elsewhere])
        left += [item for name, item in of.items() if name not in kept]
    return left
