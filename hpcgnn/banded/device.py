"""Propagation along a sparse pattern in the memory of a GPU."""

from dataclasses import dataclass

from hpcgnn.banded.pairs import LocalOperator, TypedPairs
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy
from hpcgnn.sparse.device import DeviceCSR
from hpcgnn.typing import Offsets

__all__ = ["DeviceLocalOperator", "DevicePairs"]


class DeviceLocalOperator:
    """A `LocalOperator` on the current device.

    Not collective.

    Parameters
    ----------
    host
        The matrix to copy.
    """

    def __init__(self, host: LocalOperator) -> None:
        self.trace, self.size = host.trace, host.size
        self._matrix, self._transpose = (DeviceCSR.upload(each) for each in host.both_ways)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of the result and of the input."""
        return self.size.num_rows, self.size.num_columns

    def apply(self, x: DeviceArray) -> DeviceArray:
        """Return ``A x``.

        Not collective.
        """
        return self._multiply("interior.forward", self._matrix, x)

    def apply_transpose(self, gradient: DeviceArray) -> DeviceArray:
        """Return ``Aᵀ g``.

        Not collective.
        """
        return self._multiply("interior.reverse", self._transpose, gradient)

    def _multiply(self, name: str, matrix: DeviceCSR, x: DeviceArray) -> DeviceArray:
        with self.trace.span(name):
            out = load_cupy().empty((matrix.host.shape[0], x.shape[1]), x.dtype)
            matrix.matmul(x, out)
            return out


@dataclass(frozen=True, eq=False)
class DevicePairs:
    """`TypedPairs` on a device."""

    gather: DeviceLocalOperator
    scatter: DeviceLocalOperator
    type_starts: Offsets

    @classmethod
    def upload(cls, pairs: TypedPairs) -> "DevicePairs":
        """Copy pairs to the current device.

        Not collective.
        """
        gather, scatter = (DeviceLocalOperator(each) for each in (pairs.gather, pairs.scatter))
        return cls(gather, scatter, pairs.type_starts)
