"""MKL's sparse product by its inspector-executor interface, from the pip package `mkl`.

The handle knows the width and the number of calls in advance and may keep a second layout of the
matrix. MKL checks the vendor of the processor and uses its oldest code for any but Intel's;
`MKL(any_maker=True)` makes the check succeed, so that MKL uses all instructions of the processor.
``MKL_ENABLE_INSTRUCTIONS=AVX2`` in the environment disables AVX-512.
"""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.metadata import files
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.typing import FloatArray

__all__ = ["MKL", "load_mkl"]

EXPECTED_CALLS = 1000
NOT_TRANSPOSED, ROW_MAJOR, GENERAL = 10, 101, 20
AGGRESSIVE = 81
LP64, GNU = 0, 3
MAKER = b"static int yes(void){return 1;} void *mkl_serv_get_cpu_true(void){return (void *)yes;}"


class Description(ctypes.Structure):
    """MKL's `matrix_descr`: kind, triangle and diagonal (the last two unused here)."""

    _fields_ = [(name, ctypes.c_int) for name in ("kind", "triangle", "diagonal")]


class MKL:
    """The loaded library: LP64 interface, GNU OpenMP threads."""

    def __init__(self, *, any_maker: bool) -> None:
        if any_maker:
            _answer_yes()
        self._library = ctypes.CDLL(str(_found()))
        self._library.MKL_Set_Interface_Layer(LP64)
        self._library.MKL_Set_Threading_Layer(GNU)

    def product(
        self, matrix: Any, width: int, threads: int
    ) -> Callable[[FloatArray, FloatArray], None]:
        """Return a function of x (columns, width) and out (rows, width), both float32.

        It writes the product of a SciPy CSR matrix (float32, int32 indices) with x to out.
        """
        handle, kind = ctypes.c_void_p(), Description(GENERAL, 0, 0)
        indptr, indices, values = matrix.indptr, matrix.indices, matrix.data
        if (indptr.dtype, indices.dtype, values.dtype) != (np.int32, np.int32, np.float32):
            raise TypeError(f"MKL's matrix of {indptr.dtype}, {indices.dtype}, {values.dtype}")
        arrays = map(_address, (indptr, indptr[1:], indices, values))
        self._do("s_create_csr", ctypes.byref(handle), 0, *matrix.shape, *arrays)
        self._do("set_mm_hint", handle, NOT_TRANSPOSED, kind, ROW_MAJOR, width, EXPECTED_CALLS)
        self._do("set_memory_hint", handle, AGGRESSIVE)
        self._library.MKL_Set_Num_Threads(threads)
        self._do("optimize", handle)
        one, zero = ctypes.c_float(1), ctypes.c_float(0)

        def multiply(x: FloatArray, out: FloatArray) -> None:
            dense = ROW_MAJOR, _address(x), width, width, zero, _address(out), width
            self._do("s_mm", NOT_TRANSPOSED, one, handle, kind, *dense)

        # MKL reads these arrays in place: the finalizer keeps them alive as long as the handle.
        finalize(multiply, self._release, handle, (indptr, indices, values))
        return multiply

    def _release(self, handle: ctypes.c_void_p, _arrays: object) -> None:
        self._do("destroy", handle)

    def _do(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, f"mkl_sparse_{name}")(*arguments):
            raise RuntimeError(f"mkl_sparse_{name}: status {status}")


@cache
def load_mkl() -> MKL:
    """Return the library, set to the best instructions of the processor."""
    return MKL(any_maker=True)


def _found() -> Path:
    named = [each for each in files("mkl") or () if each.name.startswith("libmkl_rt.so")]
    if not named:
        raise InputError("no libmkl_rt in the package mkl; pip install mkl")
    return Path(named[0].locate()).resolve()


def _answer_yes() -> None:
    # Loaded first with global symbols, it overrides the function of the same name in MKL.
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory, "maker.so")
        words = ["cc", "-x", "c", "-shared", "-fPIC", "-o", str(library), "-"]
        subprocess.run(words, input=MAKER, check=True)
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def _address(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
