"""Which entries of the remote part are fetched and which are pushed.

Every off-diagonal block is covered by some of its columns and some of its rows: a covered column's
row of X is fetched and multiplied here; the entries left lie in covered rows, are multiplied by the
owner of their column, and one partial sum for each covered row is pushed. All columns make the
sparsity-aware exchange, all rows its mirror image, and a minimum vertex cover (by König's theorem
as large as a maximum matching) the joint exchange: no scheme that moves rows or partial sums moves
fewer.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from hpcgnn import kernels
from hpcgnn.sparse import LocalCSR
from hpcgnn.typing import Mask, Offsets

__all__ = ["COVERS", "Cover"]

Cover: TypeAlias = Callable[[LocalCSR, Offsets], Mask]
"""Maps a remote part, and the bounds (peers + 1,) of each owner's columns in it, to the (nnz,) mask
of entries that are pushed."""


def all_columns(remote: LocalCSR, _starts: Offsets) -> Mask:
    """Fetch everything.

    Not collective.
    """
    return np.zeros(remote.nnz, np.bool_)


def all_rows(remote: LocalCSR, _starts: Offsets) -> Mask:
    """Push everything.

    Not collective.
    """
    return np.ones(remote.nnz, np.bool_)


def minimum(remote: LocalCSR, starts: Offsets) -> Mask:
    """Move the fewest rows of either kind.

    Not collective.
    """
    return kernels.vertex_cover(remote.indptr, remote.indices, starts).pushed


COVERS: Mapping[str, Cover] = MappingProxyType(
    {"aware": all_columns, "push": all_rows, "joint": minimum}
)
"""The covers by the name of their exchange."""
