"""Read the pickles of Planetoid files without executing anything.

A pickle is a program: it names functions and calls them. This reader admits the names that NumPy
arrays, dicts, lists and CSR matrices need, and gives each an inert stand-in that only keeps what it
is handed; arrays are then built here from checked bytes. Any other name ends the reading. The
stand-ins are classes without instance dictionaries and closed to assignment, so that the pickle's
BUILD step cannot change them either. Pickles of Python 2 and 3 are read.
"""

import io
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.convert.read.features import checked_matrix
from hpcgnn.convert.read.files import read_error
from hpcgnn.errors import InputError
from hpcgnn.storage import require_file
from hpcgnn.typing import Array


class _Closed(type):
    """A class whose attributes cannot be set."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise pickle.UnpicklingError(f"the file tries to change {cls.__name__}")


class _Array(metaclass=_Closed):
    """Stand-in for a NumPy array: keeps shape, dtype, order and bytes."""

    __slots__ = ("state",)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def build(self) -> Array:
        _, shape, dtype, fortran_order, data = self.state
        raw = data.encode("latin1") if isinstance(data, str) else data
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise ValueError("an array holds something other than numbers")
        values = np.frombuffer(raw, dtype.build())
        if not all(isinstance(side, int) and side >= 0 for side in shape):
            raise ValueError(f"an array has the shape {shape}")
        if math.prod(shape) != len(values):
            raise ValueError(f"an array of shape {shape} has {len(values)} values")
        native = values.astype(values.dtype.newbyteorder("="))
        return native.reshape(shape, order="F" if fortran_order else "C")


class _Dtype(metaclass=_Closed):
    """Stand-in for `numpy.dtype`: keeps the type code, then the byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: object, *_: object) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    def build(self) -> np.dtype[Any]:
        if self.code not in _TYPE_CODES or self.order not in ("<", ">", "=", "|"):
            raise ValueError(f"an array has the dtype {self.order}{self.code}")
        return np.dtype(f"{self.order}{self.code}")


_ID_LIMIT = 1 << 62
_TYPE_CODES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


class _Matrix(metaclass=_Closed):
    """Stand-in for a SciPy CSR matrix: keeps its attributes."""

    __slots__ = ("state",)

    def __setstate__(self, state: object) -> None:
        self.state = state


def _stand_in(name: str, call: Callable[..., object]) -> _Closed:
    """Return a stand-in for a function, or for a type of which only the call matters."""

    def new(_: type, *arguments: object) -> object:
        return call(*arguments)

    return _Closed(name, (), {"__slots__": (), "__new__": new})


def _refuse_call(name: str) -> Callable[..., object]:
    def refuse(*_: object) -> object:
        raise pickle.UnpicklingError(f"the file calls {name}")

    return refuse


def _encode(text: object, encoding: object) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError(f"the file encodes text as {encoding}")
    return text.encode("latin1")


_RECONSTRUCT = _stand_in("_Reconstruct", lambda *_: _Array())
"""For NumPy's array constructor, whose arguments say nothing yet."""

_LIST_TYPE = _stand_in("_ListType", _refuse_call("list"))
"""For `list`, only ever an argument."""

_ADMITTED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): _stand_in("_ArrayType", _refuse_call("numpy.ndarray")),
    ("numpy", "dtype"): _Dtype,
    ("scipy.sparse.csr", "csr_matrix"): _Matrix,
    ("scipy.sparse._csr", "csr_matrix"): _Matrix,
    ("collections", "defaultdict"): _stand_in("_DefaultDict", lambda *_: {}),
    ("__builtin__", "list"): _LIST_TYPE,
    ("builtins", "list"): _LIST_TYPE,
    # Python 3 writes bytes for Python 2 by these two.
    ("__builtin__", "bytes"): _stand_in("_NoBytes", lambda: b""),
    ("_codecs", "encode"): _stand_in("_Encode", _encode),
}


class _Refused(Exception):  # noqa: N818 - caught at once and turned into an InputError
    """The pickle names something that is not admitted."""


class _Reader(pickle._Unpickler):
    # The reader in Python: that in C gives room to the largest memo number that a file mentions, so
    # that a damaged byte can ask for tens of gigabytes.
    def find_class(self, module: str, name: str) -> Any:
        # Keyed on both parts as written: no import, no attribute look-up, no dotted names.
        admitted = _ADMITTED.get((module, name))
        if admitted is None:
            raise _Refused(f"{module}.{name}")
        return admitted


def _load(path: Path) -> Any:
    require_file(path)
    try:
        return _Reader(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except OSError as error:
        raise read_error(path, error) from error
    except _Refused as refused:
        raise InputError(
            f"{path}: the pickle asks for {refused}, which is not admitted, and nothing was "
            "executed; only arrays, dicts, lists and CSR matrices are read: save the data as .npz"
        ) from None
    except Exception as error:
        # Damaged pickles fail in countless ways, and none of them is a defect of this program.
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> InputError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"{path}: is no whole Planetoid pickle ({reason}); copy it again")


def load_array(path: Path) -> Array:
    """Return the array of numbers that a pickle holds; raises `InputError`."""
    value = _load(path)
    if not isinstance(value, _Array):
        raise InputError(f"{path}: holds a {_kind(value)} where an array is due; copy it again")
    return _build(path, value)


def _build(path: Path, value: object) -> Array:
    try:
        if not isinstance(value, _Array):
            raise ValueError(f"a {_kind(value)} stands where an array is due")
        return value.build()
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error


def load_matrix(path: Path) -> scipy.sparse.csr_matrix:
    """Return the CSR matrix that a pickle holds; raises `InputError`."""
    value = _load(path)
    state = getattr(value, "state", None)
    if not isinstance(value, _Matrix) or not isinstance(state, dict):
        raise InputError(f"{path}: holds a {_kind(value)} where a CSR matrix is due; copy it again")
    data, indices, indptr = (_build(path, state.get(k)) for k in ("data", "indices", "indptr"))
    shape = state.get("_shape", state.get("shape"))
    if not isinstance(shape, tuple):
        raise InputError(f"{path}: the shape of the matrix is {shape!r}; copy it again")
    return checked_matrix(str(path), data=data, indices=indices, indptr=indptr, shape=shape)


def load_lists(path: Path) -> dict[int, list[int]]:
    """Return the dict of lists of whole numbers that a pickle holds; raises `InputError`."""
    value = _load(path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds a {_kind(value)} where a dict is due; copy it again")
    for key, items in value.items():
        if not isinstance(items, list) or not all(_is_id(i) for i in [key, *items]):
            raise InputError(
                f"{path}: the entry of node {key!r} is no list of node numbers; copy it again"
            )
    return value


def _is_id(value: object) -> bool:
    return type(value) is int and -_ID_LIMIT < value < _ID_LIMIT


def _kind(value: object) -> str:
    return type(value).__name__.strip("_").lower()
