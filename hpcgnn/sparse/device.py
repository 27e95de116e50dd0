"""A CSR matrix in the memory of a GPU."""

from dataclasses import dataclass

from hpcgnn.kernels import cuda
from hpcgnn.kernels.arguments import Half
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy
from hpcgnn.kernels.cuda.group_size import PAPER_RULE, GroupSizeRule
from hpcgnn.sparse.local import LocalCSR

__all__ = ["DeviceCSR"]


@dataclass(frozen=True, eq=False)
class DeviceCSR:
    """A `LocalCSR` on the current device, with its neighbour groups.

    Parameters
    ----------
    indptr, indices, values, rows
        CuPy arrays, as in `LocalCSR`.
    shape
        Rows and columns of the whole matrix.
    groups
        Of `indptr`.
    """

    indptr: DeviceArray
    indices: DeviceArray
    values: DeviceArray | None
    rows: DeviceArray | None
    shape: tuple[int, int]
    groups: cuda.DeviceGroups

    @classmethod
    def upload(cls, matrix: LocalCSR, rule: GroupSizeRule = PAPER_RULE) -> "DeviceCSR":
        """Copy a matrix to the current device.

        Not collective.

        Parameters
        ----------
        matrix
            In host memory; its indices are trusted.
        rule
            Chooses the size of the groups from stored rows and entries.
        """
        cupy = load_cupy()
        size = rule.size(len(matrix.indptr) - 1, matrix.nnz)
        return cls(
            indptr=cupy.asarray(matrix.indptr),
            indices=cupy.asarray(matrix.indices),
            values=None if matrix.values is None else cupy.asarray(matrix.values),
            rows=None if matrix.rows is None else cupy.asarray(matrix.rows),
            shape=matrix.shape,
            groups=cuda.DeviceGroups.upload(cuda.neighbor_groups(matrix.indptr, size)),
        )

    def matmul(
        self,
        x: DeviceArray,
        out: DeviceArray,
        *,
        accumulate: bool = False,
        half: Half | None = None,
    ) -> None:
        """Write or add ``A @ x`` to `out`, on CuPy's current stream.

        Not collective.

        Parameters
        ----------
        x, out, accumulate, half
            As for `LocalCSR.matmul`, CuPy arrays.
        """
        if self.rows is not None and not accumulate:
            out.fill(0)
            accumulate = True
        cuda.spmm(
            self.indptr,
            self.indices,
            self.values,
            x,
            out,
            rows=self.rows,
            accumulate=accumulate,
            half=half,
            groups=self.groups,
        )
