"""Assign consecutive parts of a store to ranks, for training, planning and inspection."""

from bisect import bisect_left

import numpy as np
from numpy.typing import ArrayLike

from hpcgnn.errors import InputError
from hpcgnn.typing import Offsets


def assign_parts(row_starts: ArrayLike, weights: ArrayLike, ranks: int) -> Offsets:
    """Return the row boundaries (ranks + 1,) of a contiguous assignment of parts to ranks.

    `row_starts` (K + 1,) are the parts' boundaries and `weights` (K,) their non-negative integer
    weights (non-zeros). Rank r owns rows `result[r]` to `result[r + 1]` - 1, at least one whole
    part. The largest weight of a rank is the smallest possible; the result is deterministic.
    Raises `InputError` if there are more ranks than parts.
    """
    starts, loads = np.asarray(row_starts, np.int64), np.asarray(weights, np.int64)
    parts = len(loads)
    if len(starts) != parts + 1 or parts < 1 or ranks < 1 or loads.min() < 0:
        raise ValueError(f"{len(starts)} boundaries, {parts} weights and {ranks} ranks do not fit")
    if ranks > parts:
        raise InputError(
            f"the store has {parts} part{'s' * (parts > 1)}, too few for {ranks} ranks: take "
            f"at most {parts}, or make more parts: hpcgnn partition STORE --parts {ranks} -o OUT.h5"
        )
    prefix = np.concatenate([[0], np.cumsum(loads)])
    limits = range(int(prefix[-1]))
    limit = bisect_left(
        limits, parts, int(loads.max()), key=lambda limit: fill(prefix, ranks, limit)[-1]
    )
    return starts[fill(prefix, ranks, limit)]


def fill(prefix: Offsets, ranks: int, limit: int) -> Offsets:
    """Return part boundaries (ranks + 1,) that give each rank as many parts as `limit` allows.

    Each rank gets at least one part; the last boundary is the number of parts only if `limit` is
    large enough.
    """
    parts = len(prefix) - 1
    bounds = np.zeros(ranks + 1, np.int64)
    for rank in range(ranks):
        first = int(bounds[rank])
        last = int(np.searchsorted(prefix, prefix[first] + limit, side="right")) - 1
        bounds[rank + 1] = min(last, parts - (ranks - rank - 1))
    return bounds
