"""The frontier sampler by cumulative sums, compiled at first use: an oracle and a baseline."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.sampling import Topology
from hpcgnn.typing import LocalIndices

__all__ = ["SumsSampler"]

PACKAGE = Path(__file__).parents[1] / "hpcgnn"
SOURCE = PACKAGE / "sampling" / "tests" / "cumulative.cc"


class SumsSampler:
    """The compiled sampler; the library stays loaded after its file is deleted."""

    def __init__(self) -> None:
        includes = [f"-I{PACKAGE}/sampling/src", f"-I{PACKAGE}/kernels/src"]
        with tempfile.TemporaryDirectory() as directory:
            library = Path(directory, "cumulative.so")
            # The flags of the extension.
            words = ["c++", "-O3", "-DNDEBUG", "-std=c++20", "-shared", "-fPIC", *includes]
            try:
                subprocess.run([*words, SOURCE, "-o", library], check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise InputError(
                    f"{SOURCE.name} does not compile; install a C++ compiler"
                ) from error
            self._call = ctypes.CDLL(str(library)).sample_frontier_by_sums
        self._call.restype = ctypes.c_int64

    def visits(
        self, topology: Topology, walkers: int, budget: int, seed: int, number: int
    ) -> LocalIndices:
        """Draw visits from the same distribution as `FrontierSampler.visits`."""
        out = np.empty(budget, np.int32)
        arrays = (topology.indptr, topology.indices)
        pointers = [ctypes.c_void_p(each.ctypes.data) for each in arrays]
        sizes = [ctypes.c_int64(each) for each in (topology.num_nodes, walkers, budget - walkers)]
        keys = [ctypes.c_uint64(seed), ctypes.c_int64(number)]
        count = self._call(*pointers, *sizes, *keys, ctypes.c_void_p(out.ctypes.data))
        return out[:count]
