"""What is wrong with arrays of edges; errors name the edge by its number, counted from 0."""

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.typing import Array, FloatArray

__all__ = ["check_arrays", "check_ids", "finite_weights"]


def check_arrays(sources: Array, targets: Array, weights: Array | None) -> None:
    """Raise `InputError` unless these are integers (m,), integers (m,) and numbers (m,)."""
    for name, array in (("source", sources), ("target", targets)):
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            kind = f"shape {array.shape} and type {array.dtype}"
            raise InputError(f"the edges' {name} ids have {kind}; give integers (m,)")
    if len(sources) != len(targets) or (weights is not None and weights.shape != sources.shape):
        counts = f"{len(sources)} sources, {len(targets)} targets"
        if weights is not None:
            counts += f" and weights of shape {weights.shape}"
        raise InputError(f"edges have {counts}; give one of each for every edge")
    if weights is not None and weights.dtype.kind not in "iuf":
        raise InputError(f"the edges' weights have type {weights.dtype}; give numbers")


def check_ids(role: str, ids: Array, limit: int, first_edge: int) -> None:
    """Raise `InputError` unless the ids, at least one, lie in 0..limit."""
    if ids.min() >= 0 and ids.max() <= limit:
        return
    position = int(((ids < 0) | (ids > limit)).argmax())
    raise InputError(
        f"edge {first_edge + position}: {role} {ids[position]} is outside 0..{limit}; "
        "number the nodes from 0 and below their number"
    )


def finite_weights(weights: Array, first_edge: int) -> FloatArray:
    """Return the weights as float32, or raise `InputError` for what is infinite or no number."""
    with np.errstate(over="ignore"):
        # What overflows becomes infinite, and is refused as that.
        single = weights.astype(np.float32)
    finite = np.isfinite(single)
    if not np.all(finite):
        position = int(finite.argmin())
        raise InputError(
            f"edge {first_edge + position}: weight {weights[position]} is not a finite float32 "
            "number"
        )
    return single
