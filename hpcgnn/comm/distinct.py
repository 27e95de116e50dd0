"""The different ones among many numbers of rows, and the places of all among these."""

from collections.abc import Iterator

import numpy as np

from hpcgnn.typing import Array, LocalIndices

_ENTRIES_PER_STEP = 1 << 17


def distinct(values: Array, limit: int) -> Array:
    """Return `values`, numbers below `limit`, increasing and each once."""
    if limit <= 4 * len(values):
        # Marking beats sorting, and needs no more memory, where values are not few of all numbers.
        marked = np.zeros(limit, bool)
        for step in _steps(len(values)):
            marked[values[step]] = True
        return np.flatnonzero(marked).astype(values.dtype)
    values_seen, waiting = np.empty(0, values.dtype), [np.empty(0, values.dtype)]
    num_waiting = 0
    for step in _steps(len(values)):
        waiting.append(np.unique(values[step]))
        num_waiting += len(waiting[-1])
        # As much again as is there: few merges, and each element is in few of them.
        if num_waiting > max(len(values_seen), _ENTRIES_PER_STEP):
            values_seen, waiting, num_waiting = (
                np.unique(np.concatenate([values_seen, *waiting])),
                [],
                0,
            )
    return np.unique(np.concatenate([values_seen, *waiting]))


def numbered(names: Array, numbers: LocalIndices, values: Array) -> LocalIndices:
    """Return ``numbers[i]`` for each value ``names[i]``; names increase, and all values are there.

    Parameters
    ----------
    names, numbers
        (m,) global and (m,) int32.
    values
        (n,) of the dtype of the names.
    """
    result = np.empty(len(values), np.int32)
    last = int(names[-1]) + 1 if len(names) else 0
    table = None
    if last <= len(values):
        table = np.empty(last, np.int32)
        table[names] = numbers
    for step in _steps(len(values)):
        some = values[step]
        result[step] = numbers[np.searchsorted(names, some)] if table is None else table[some]
    return result


def _steps(size: int) -> Iterator[slice]:
    for first in range(0, size, _ENTRIES_PER_STEP):
        yield slice(first, first + _ENTRIES_PER_STEP)
