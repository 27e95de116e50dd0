"""What a rehearsed rank moves: exchanges and sums, which a log hears of and nobody sends."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from hpcgnn.comm import RowRequest
from hpcgnn.plan.traffic import PatternKey
from hpcgnn.typing import Array, GlobalIndices, LocalIndices

Kind: TypeAlias = Literal["fetched", "pushed", "summed"]
MOVEMENTS: tuple[Kind, ...] = get_args(Kind)
"""What travels in a product: rows and partial sums between block rows, and between replicas."""


@dataclass(frozen=True)
class Movement:
    """One exchange, as all ranks run it.

    Parameters
    ----------
    pattern
        Key of the matrix.
    what
        Whether it moves what products fetch or what they push, or adds up over replicas.
    reverse
        Whether rows go from ghosts to owners; of a sum, whether it is of the adjoint.
    row_bytes
        Of one row.
    joined
        Bytes of a row of the first of the two exchanges of a product, whose short messages take
        those of the second with them; 0: it is in no such pair.
    """

    pattern: PatternKey
    what: Kind
    reverse: bool
    row_bytes: int
    joined: int = 0


@dataclass(frozen=True)
class Reduction:
    """A sum of arrays of equal size over ranks, that all ranks join in.

    Parameters
    ----------
    num_bytes
        That each rank hands in.
    """

    num_bytes: int


Log = Callable[[Movement | Reduction], None]


@dataclass(frozen=True, eq=False)
class SilentRequest(RowRequest):
    """A request whose rows of other ranks are zeros; see `RowRequest`.

    Parameters
    ----------
    note
        Hears whether rows go back to owners, and of their bytes.
    own, own_rows
        Which of the wanted rows are this rank's, and their local rows.
    """

    note: Callable[[bool, int], None]
    own: GlobalIndices
    own_rows: LocalIndices

    def rows(self, array: Array) -> Array:
        """Return the wanted rows."""
        self.note(False, array.shape[1] * array.itemsize)
        # Packed as for other ranks, which takes its time and memory.
        np.ascontiguousarray(array[self.asked])
        found = np.zeros((len(self.owners), *array.shape[1:]), array.dtype)
        found[self.own] = array[self.own_rows]
        return found

    def add_back(self, array: Array) -> Array:
        """Return the sums for this rank's rows."""
        self.note(True, array.shape[1] * array.itemsize)
        total = np.zeros((self.num_rows, *array.shape[1:]), array.dtype)
        arrived = np.zeros((len(self.asked), *array.shape[1:]), array.dtype)
        total[self.asked] += arrived
        total[self.own_rows] += array[self.own]
        return total
