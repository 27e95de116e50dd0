"""Build and load the row-gather loop that bounds the SpMM benchmark."""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.spmm_graphs import Matrix
from hpcgnn.errors import InputError
from hpcgnn.typing import FloatArray

__all__ = ["LANES", "gather_loops"]

LANES = 16
"""The loop reads rows of a multiple of this many float32 columns."""

SOURCE = Path(__file__).with_name("gather_limit.cc")


class GatherLimit:
    """The compiled loop; the library stays loaded after its file is deleted."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            library = Path(directory, "gather_limit.so")
            words = ["c++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=c++20"]
            try:
                subprocess.run([*words, "-o", library, SOURCE], check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise InputError(
                    f"{SOURCE.name} does not compile; install a C++ compiler"
                ) from error
            self._call = ctypes.CDLL(str(library)).gather_limit
        self._call.restype = ctypes.c_float

    def read(self, matrix: Matrix, x: FloatArray, registers: int, threads: int) -> float:
        """Read the rows of x that the product reads, `registers` times 16 columns per pass."""
        pointers = matrix.indices.ctypes.data, matrix.indices.size, x.ctypes.data, x.shape[1]
        arguments = [
            ctypes.c_void_p(pointers[0]),
            ctypes.c_int64(pointers[1]),
            ctypes.c_void_p(pointers[2]),
            ctypes.c_int64(pointers[3]),
        ]
        return float(self._call(*arguments, ctypes.c_int(registers), ctypes.c_int(threads)))


def gather_loops(
    limit: GatherLimit, matrix: Matrix, x: FloatArray, threads: int
) -> dict[str, Callable[[], float]]:
    """Return the loop for each tiling of the columns; the fastest is the limit."""
    width = x.shape[1]
    sizes = [regs for regs in (1, 4, 8, 16) if width % (regs * LANES) == 0]
    return {
        f"gather {regs * LANES}": partial(limit.read, matrix, x, regs, threads)
        for regs in sizes[-2:]
    }
