"""Which cases of a test a quick run keeps: each pair of values, or each value, of its axes."""

import zlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from itertools import combinations

import pytest

Case = Mapping[str, Hashable]
"""The value of a case on each axis; an axis is a parametrisation, or a fixture's parameters."""
RANKS = "comm"
FEW = 4
"""Cases that are all kept."""


def axes(item: pytest.Item) -> Case:
    """Return the case that `item` is; values are told apart by their identity."""
    parameters = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    case: dict[str, Hashable] = {}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = names.split(",") if isinstance(names, str) else names
        # The values of a row move together: they are one.
        case[",".join(names)] = tuple(id(parameters.pop(name.strip(), None)) for name in names)
    return case | {name: id(value) for name, value in parameters.items()}


def covering(cases: Mapping[str, Case], strength: int = 2) -> set[str]:
    """Return names of cases that have every pair of values which any of `cases` has.

    At `strength` 1 they have every value, and few the same pair. Greedy: the next one is the first
    of those with the most that is still missing.
    """
    values = {name: {*case.items()} for name, case in cases.items()}
    pairs = {name: {*combinations(case.items(), 2)} for name, case in cases.items()}
    wanted = values if strength == 1 else pairs
    missing, new = set().union(*wanted.values()), set().union(*pairs.values())
    kept = set()
    while missing:
        best = max(wanted, key=lambda name: (len(wanted[name] & missing), len(pairs[name] & new)))
        missing -= wanted[best]
        new -= pairs[best]
        kept.add(best)
    return kept


def in_turn(function: str, cases: Mapping[str, Case], *, half: bool = False) -> set[str]:
    """Return each of `cases` at one number of ranks, which they take in turn.

    Which one is first depends on the name of the function. Where `half`, every second of more than
    `FEW` cases is left out.
    """
    sizes: dict[Hashable, list[str]] = defaultdict(list)
    for name, case in cases.items():
        sizes[tuple((axis, value) for axis, value in case.items() if axis != RANKS)].append(name)
    first = zlib.crc32(function.encode())
    chosen = [names[(first + number) % len(names)] for number, names in enumerate(sizes.values())]
    # Pairs of neighbours, so that both numbers of ranks stay.
    kept = [name for number, name in enumerate(chosen) if (number // 2 + first) % 2 == 0]
    return {*(kept if half and len(chosen) > FEW else chosen)}


def left_out(items: Iterable[pytest.Item], strength: int) -> list[pytest.Item]:
    """Return what a quick run leaves out; ``tests/run.sh --all`` leaves nothing out.

    A test of several parametrisations keeps a covering set of this strength, or of 2 where it is
    marked ``pairs``, in which the numbers of ranks are an axis as the others are. One of a single
    parametrisation keeps each case, on 3 ranks or on 4; at strength 1 half of them, unless they are
    few or marked ``pairs``.
    """
    functions: dict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        functions[item.nodeid.partition("[")[0]][item.nodeid] = item
    left: list[pytest.Item] = []
    for function, of in functions.items():
        cases = {name: axes(item) for name, item in of.items()}
        marked = next(iter(of.values())).get_closest_marker("pairs") is not None
        several = len({*next(iter(cases.values()))} - {RANKS}) > 1
        if several:
            kept = covering(cases, 2 if marked else strength)
        else:
            kept = in_turn(function, cases, half=strength == 1 and not marked)
        left += [item for name, item in of.items() if name not in kept]
    return left
