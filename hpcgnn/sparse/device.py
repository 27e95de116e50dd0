"""The memory of a GPU, and a CSR matrix in it."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from numpy.typing import DTypeLike

from hpcgnn.kernels import Block, cuda
from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy
from hpcgnn.kernels.cuda.groups import MEASURED_RULE, GroupRule
from hpcgnn.sparse.local import LocalCSR, multiply, operand
from hpcgnn.typing import Array


@dataclass(frozen=True, eq=False)
class DeviceCSR:
    """A `LocalCSR` of CuPy arrays on the current device, with its neighbour groups by `rule`."""

    host: LocalCSR
    indptr: DeviceArray
    indices: DeviceArray
    values: DeviceArray | None
    rows: DeviceArray | None
    rule: GroupRule
    _groups: dict[int, cuda.DeviceGroups] = field(default_factory=dict)

    @classmethod
    def upload(cls, matrix: LocalCSR, rule: GroupRule = MEASURED_RULE) -> "DeviceCSR":
        """Copy a matrix to the current device; its indices must be valid."""
        cupy, values = load_cupy(), matrix.entries()
        return cls(
            host=matrix,
            indptr=cupy.asarray(matrix.indptr),
            indices=cupy.asarray(matrix.indices),
            values=None if values is None else cupy.asarray(values),
            rows=None if matrix.rows is None else cupy.asarray(matrix.rows),
            rule=rule,
        )

    @property
    def memory(self) -> "DeviceMemory":
        """The memory of the current device."""
        return DeviceMemory(self.rule)

    @property
    def features(self) -> None:
        """None, since no GPU kernel reads features of entries."""
        return None

    row_factors: ClassVar[None] = None
    column_factors: ClassVar[None] = None
    coded: ClassVar[None] = None
    """None, since GPU kernels need values and plain columns."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the whole matrix."""
        return self.host.shape

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return self.host.nnz

    @cached_property
    def with_all_rows(self) -> "DeviceCSR":
        """The same matrix with every row stored, made once."""
        if self.rows is None:
            return self
        return DeviceCSR.upload(self.host.with_all_rows, self.rule)

    @cached_property
    def transposed(self) -> "DeviceCSR":
        """The transpose on the device, made once."""
        return DeviceCSR.upload(self.host.transposed, self.rule)

    @cached_property
    def edges(self) -> Block:
        """The pattern with neighbour groups for attention, made once."""
        groups = cuda.neighbor_groups(self.host.indptr, cuda.ATTENTION_GROUP_SIZE)
        return Block(self.indptr, self.indices, self.rows, cuda.DeviceGroups.upload(groups))

    def groups(self, width: int) -> cuda.DeviceGroups:
        """Return the neighbour groups for products with `width` columns, made once."""
        if width not in self._groups:
            host = self.host
            size = self.rule.choose(host.indptr, host.indices, host.shape[1], width)
            groups = {group.host.size: group for group in self._groups.values()}
            if size not in groups:
                groups[size] = cuda.DeviceGroups.upload(cuda.neighbor_groups(host.indptr, size))
            self._groups[width] = groups[size]
        return self._groups[width]

    def matmul(
        self,
        x: DeviceArray,
        out: DeviceArray,
        *,
        accumulate: bool = False,
        half: WireFormat | None = None,
    ) -> None:
        """Write or add ``A @ x`` as `LocalCSR.matmul`, on CuPy's current stream."""
        matrix = operand(self, self.groups(x.shape[1]))
        multiply(cuda, matrix, x, out, accumulate=accumulate, half=half)


@dataclass(frozen=True)
class DeviceMemory:
    """Arrays and matrices of the current device; a `Memory`. `rule` chooses neighbour groups."""

    rule: GroupRule = MEASURED_RULE

    kernels = cuda

    @property
    def arrays(self) -> Any:
        """CuPy."""
        return load_cupy()

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """Return an uninitialised array from CuPy's memory pool."""
        return load_cupy().empty(shape, dtype)

    def put(self, array: Array) -> DeviceArray:
        """Return a copy on the current device."""
        return load_cupy().asarray(array)

    def matrix(self, block: LocalCSR) -> DeviceCSR:
        """Return a copy on the current device."""
        return DeviceCSR.upload(block, self.rule)

    def coded(self, block: LocalCSR) -> DeviceCSR:
        """Return a plain copy, since no GPU kernel reads coded columns."""
        return self.matrix(block)
