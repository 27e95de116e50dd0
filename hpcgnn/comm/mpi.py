"""MPI, started at its first use: whoever only imports layers and models starts none.

mpi4py starts MPI when its module is loaded, which fails where no MPI library is found, and takes a
second where one is. `MPI` loads it when something is first asked of it; where a process is alone
and there is no library, `one_rank` replaces it.
"""

import os
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from hpcgnn.spmd import num_launched

if TYPE_CHECKING:
    from mpi4py import MPI as MPI
else:

    def _library() -> ModuleType:
        try:
            return import_module("mpi4py.MPI")
        except (ImportError, RuntimeError):
            # Whoever shares work between ranks has loaded it before, or said why not.
            if num_launched(os.environ) > 1:
                raise
            return import_module("hpcgnn.comm.one_rank")

    class _FirstUse:
        def __getattr__(self, name: str) -> Any:
            value = getattr(_library(), name)
            setattr(self, name, value)
            return value

    MPI = _FirstUse()


def mpi_library() -> str:
    """Return the name and version of the MPI library, the first words of what it says of itself."""
    words: str = MPI.Get_library_version().strip("\0 \n").splitlines()[0]
    return words.partition(",")[0].strip()


Communicator: TypeAlias = "MPI.Intracomm"
"""For annotations, also above this package, which do not import mpi4py."""
