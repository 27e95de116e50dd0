"""Where the rows of a product lie: the arrays, kernels and matrices of main memory or of a GPU.

What multiplies and attends is written once, in terms of these protocols.
"""

from typing import Any, Protocol

from numpy.typing import DTypeLike

from hpcgnn.kernels import Block
from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.typing import Array, FloatArray, LocalIndices, Offsets


class LocalMatrix(Protocol):
    """A CSR matrix in some memory; fields are those of `LocalCSR`."""

    @property
    def memory(self) -> "Memory":
        """Where it is."""
        ...

    @property
    def indptr(self) -> Offsets:
        """Offsets of the stored rows."""
        ...

    @property
    def indices(self) -> LocalIndices:
        """Columns."""
        ...

    @property
    def values(self) -> FloatArray | None:
        """Values; None: ones."""
        ...

    @property
    def rows(self) -> LocalIndices | None:
        """The matrix row of each stored row; None: all rows are stored."""
        ...

    @property
    def features(self) -> FloatArray | None:
        """Features of the entries; None: none."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the whole matrix."""
        ...

    @property
    def transposed(self) -> "LocalMatrix":
        """The transpose with all rows stored, made at the first use and kept."""
        ...

    @property
    def with_all_rows(self) -> "LocalMatrix":
        """The same matrix with all rows stored, made at the first use and kept."""
        ...

    @property
    def edges(self) -> Block:
        """The pattern as the attention kernels of its memory take it."""
        ...

    def matmul(
        self, x: Array, out: Array, *, accumulate: bool = False, half: WireFormat | None = None
    ) -> None:
        """Write or add ``A @ x`` to `out`, see `LocalCSR.matmul`."""
        ...


class Memory(Protocol):
    """A place for arrays; those of a GPU are CuPy's."""

    @property
    def kernels(self) -> Any:
        """The kernels: modules with the same functions."""
        ...

    @property
    def arrays(self) -> Any:
        """The library of the arrays: NumPy or CuPy, whose functions have the same names."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return an uninitialised array, perhaps in memory of results that are gone."""
        ...

    def put(self, array: Array) -> Array:
        """Return an array of main memory here, itself where it is here already."""
        ...

    def matrix(self, block: Any) -> LocalMatrix:
        """Return a `LocalCSR` here, itself where it is here already."""
        ...
