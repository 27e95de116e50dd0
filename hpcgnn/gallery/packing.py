"""Edges and text as arrays that compress well, for the files bundled with the package."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.gallery.graph import Edges

__all__ = ["pack_edges", "pack_text", "unpack_edges", "unpack_text"]


def pack_edges(relation: str, edges: Edges, num_sources: int) -> dict[str, NDArray[Any]]:
    """Return edges, sorted by source, as edges per source and destinations, by array name."""
    src, dst = edges
    return {
        f"count:{relation}": np.bincount(src, minlength=num_sources).astype(np.uint32),
        f"dst:{relation}": dst.astype(np.int32),
    }


def unpack_edges(relation: str, arrays: Mapping[str, NDArray[Any]]) -> Edges:
    """Return the edges that `pack_edges` packed."""
    counts = arrays[f"count:{relation}"]
    src = np.repeat(np.arange(len(counts)), counts)
    return src, arrays[f"dst:{relation}"].astype(np.int64)


def pack_text(lines: tuple[str, ...]) -> NDArray[np.uint8]:
    """Return lines as bytes of UTF-8."""
    return np.frombuffer("\n".join(lines).encode(), np.uint8)


def unpack_text(text: NDArray[Any]) -> tuple[str, ...]:
    """Return the lines that `pack_text` packed."""
    return tuple(text.tobytes().decode().split("\n"))
