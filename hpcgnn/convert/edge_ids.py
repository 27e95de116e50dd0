"""The ids at the ends of edges, checked where they still can be found in the input."""

import numpy as np

from hpcgnn.convert.source import EdgeChunk
from hpcgnn.errors import InputError

__all__ = ["check_ends"]


def check_ends(
    chunk: EdgeChunk, limits: tuple[int, int], remedy: str, kinds: tuple[str, str] = ("", "")
) -> None:
    """Raise `InputError` for the first edge with an id outside 0 to `limits` (source, target).

    `kinds` are the node types that the ids count, empty where they count all nodes.
    """
    faults = []
    ends = (("source", chunk.src), ("target", chunk.dst))
    for (role, ids), limit, kind in zip(ends, limits, kinds, strict=True):
        if ids.dtype.kind not in "iu":
            raise InputError(
                f"{chunk.locate(0)}: {role} ids have dtype {ids.dtype}; node ids are whole numbers"
            )
        if ids.size and (ids.min() < 0 or ids.max() > limit):
            position = int(np.argmax((ids < 0) | (ids > limit)))
            whose = f" of the node type {kind!r}" if kind else ""
            fault = f"{role} id {ids[position]} is outside 0..{limit}{whose}"
            faults.append((position, fault))
    if faults:
        position, fault = min(faults)
        raise InputError(f"{chunk.locate(position)}: {fault}; {remedy}")
