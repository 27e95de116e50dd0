"""Read the pickles of Planetoid files, of Python 2 and 3, without executing anything.

A pickle is a program that names functions and calls them. This reader accepts only the names that
NumPy arrays, dicts, lists and CSR matrices need, and replaces each by an inert stand-in that only
stores its arguments and state. Arrays are then built here from checked bytes.
"""

import io
import math
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from hpcgnn.convert.read.arrays import checked_matrix
from hpcgnn.convert.read.files import read_error
from hpcgnn.errors import InputError, one_line
from hpcgnn.storage import require_file
from hpcgnn.typing import Array

_TYPE_CODES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_ID_LIMIT = 1 << 62


class _StandIn:
    """Stands in for an object that a pickle names or creates: kind, arguments and state."""

    __slots__ = ("arguments", "kind", "state")

    def __init__(self, kind: str, *arguments: object) -> None:
        self.kind, self.arguments = kind, arguments
        self.state: Any = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __call__(self, *arguments: object) -> object:
        """Return the result of calling the named function or class."""
        if self.kind == "defaultdict":
            return {}
        if self.kind == "bytes" and not arguments:
            return b""
        if self.kind == "encode" and arguments[1:] == ("latin1",):
            return str(arguments[0]).encode("latin1")
        if self.kind == "_reconstruct":
            # The array follows in the state; the arguments carry no information.
            return _StandIn("array")
        if self.kind not in ("dtype", "csr_matrix"):
            raise pickle.UnpicklingError(f"the file calls {self.kind} in an unknown way")
        return _StandIn(self.kind, *arguments)

    def array(self) -> Array:
        """Build the array from the state; damaged states raise `ValueError` and others."""
        _, shape, dtype, fortran_order, data = self.state
        raw = data.encode("latin1") if isinstance(data, str) else data
        if not isinstance(dtype, _StandIn) or not isinstance(raw, bytes):
            raise ValueError("an array holds something other than numbers")
        code, order = dtype.arguments[0], dtype.state[1] if dtype.state else "="
        if code not in _TYPE_CODES or order not in ("<", ">", "=", "|"):
            raise ValueError(f"an array has the dtype {order}{code}")
        values = np.frombuffer(raw, f"{order}{code}")
        if not all(isinstance(side, int) and side >= 0 for side in shape):
            raise ValueError(f"an array has the shape {shape}")
        if math.prod(shape) != len(values):
            raise ValueError(f"an array of shape {shape} has {len(values)} values")
        native = values.astype(values.dtype.newbyteorder("="))
        return native.reshape(shape, order="F" if fortran_order else "C")


_ADMITTED = frozenset(
    {
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("scipy.sparse.csr", "csr_matrix"),
        ("scipy.sparse._csr", "csr_matrix"),
        ("collections", "defaultdict"),
        ("__builtin__", "list"),
        ("builtins", "list"),
        # Python 3 uses these two to write bytes for Python 2.
        ("__builtin__", "bytes"),
        ("_codecs", "encode"),
    }
)


class _Refused(Exception):  # noqa: N818 - caught at once and turned into an InputError
    """The pickle names something that is not admitted."""


class _Reader(pickle._Unpickler):
    # The pure Python unpickler: the one in C allocates up to the largest memo index in the file, so
    # that a damaged byte can request tens of gigabytes.

    # Creating an object of a class calls the stand-in of the class.
    dispatch: ClassVar[Any] = {
        **pickle._Unpickler.dispatch,
        pickle.NEWOBJ[0]: pickle._Unpickler.load_reduce,  # type: ignore[attr-defined]
    }

    def find_class(self, module: str, name: str) -> Any:
        # Keyed on both parts as written: no import, no attribute look-up, no dotted names.
        if (module, name) not in _ADMITTED:
            raise _Refused(f"{module}.{name}")
        return _StandIn(name)


def _load(path: Path, kind: str, expected: str) -> Any:
    require_file(path)
    try:
        value = _Reader(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except OSError as error:
        raise read_error(path, error) from error
    except _Refused as refused:
        raise InputError(
            f"{path}: the pickle asks for {refused}, which is not admitted, and nothing was "
            "executed; only arrays, dicts, lists and CSR matrices are read: save the data as .npz"
        ) from None
    except Exception as error:
        # Damaged pickles raise exceptions of many types, none of which is a bug here.
        raise _damaged(path, error) from error
    if _kind(value) != kind:
        raise InputError(f"{path}: holds {_kind(value)}, not {expected}; copy it again")
    return value


def _kind(value: object) -> str:
    return value.kind if isinstance(value, _StandIn) else type(value).__name__


def _damaged(path: Path, error: Exception) -> InputError:
    reason = one_line(error) or type(error).__name__
    return InputError(f"{path}: is not a valid Planetoid pickle ({reason}); copy it again")


def load_array(path: Path) -> Array:
    """Return the array of numbers that a pickle holds; raises `InputError`."""
    return _array(path, _load(path, "array", "an array"))


def _array(path: Path, value: object) -> Array:
    try:
        if not isinstance(value, _StandIn) or value.kind != "array":
            raise ValueError(f"it has type {_kind(value)} where an array is expected")
        return value.array()
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise _damaged(path, error) from error


def load_matrix(path: Path) -> scipy.sparse.csr_matrix:
    """Return the CSR matrix that a pickle holds; raises `InputError`."""
    state = _load(path, "csr_matrix", "a CSR matrix").state
    if not isinstance(state, dict):
        raise InputError(f"{path}: the matrix has no parts; copy it again")
    data, indices, indptr = (_array(path, state.get(k)) for k in ("data", "indices", "indptr"))
    shape = state.get("_shape", state.get("shape"))
    if not isinstance(shape, tuple):
        raise InputError(f"{path}: the shape of the matrix is {shape!r}; copy it again")
    return checked_matrix(str(path), data=data, indices=indices, indptr=indptr, shape=shape)


def load_lists(path: Path) -> dict[int, list[int]]:
    """Return the dict of lists of integers that a pickle holds; raises `InputError`."""
    value: dict[int, list[int]] = _load(path, "dict", "a dict")
    for key, items in value.items():
        if not isinstance(items, list) or not all(
            type(number) is int and abs(number) < _ID_LIMIT for number in [key, *items]
        ):
            raise InputError(
                f"{path}: the entry of node {key!r} is no list of node numbers; copy it again"
            )
    return value
