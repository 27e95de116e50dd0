"""MPI, started at its first use: whoever only imports layers and models starts none.

mpi4py starts MPI when its module is loaded, which fails where no MPI library is found, and takes
time where one is. `MPI` loads it when something is first asked of it; where a process is alone
and there is no library, `one_rank` replaces it.
"""

import ctypes
import os
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from hpcgnn.spmd import load_mpi, num_launched

if TYPE_CHECKING:
    from mpi4py import MPI as MPI
else:

    def _library() -> ModuleType:
        try:
            return load_mpi()
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
    return " ".join(words.partition(",")[0].split())


def installed_mpi() -> tuple[str, str] | None:
    """Return the name of the MPI library and the version of the standard, without starting it.

    None where no library is loaded. For a process that will not use MPI.
    """
    rc = import_module("mpi4py").rc
    rc.initialize = rc.finalize = False
    try:
        import_module("mpi4py.MPI")
    except (ImportError, RuntimeError):
        return None
    return mpi_library(), ".".join(map(str, MPI.Get_version()))


Communicator: TypeAlias = "MPI.Intracomm"
"""For annotations, also above this package, which do not import mpi4py."""

# MPI 4.1, section 12.4.3: kinds of memory that a communicator may be given.
_MEMORY_KINDS = "mpi_memory_alloc_kinds"
_MPICH_CUDA = 0


def takes_device_memory(comm: Communicator) -> bool:
    """Return whether messages may go straight from and to the memory of CUDA devices.

    Not collective, but the same on all ranks of one library.

    Asked are, in this order, the standard's info key of MPI 4.1, Open MPI's
    ``MPIX_Query_cuda_support`` and MPICH's ``MPIX_GPU_query_support``; a library with none of them
    is taken at its word that it knows of no device.
    """
    kinds = comm.Get_info().Get(_MEMORY_KINDS)
    if kinds is not None:
        return any(kind.split(":")[0] == "cuda" for kind in kinds.split(","))
    # The extension module is linked to the library that runs, whose symbols its handle finds.
    library = ctypes.CDLL(MPI.__file__)
    if hasattr(library, "MPIX_Query_cuda_support"):
        return bool(library.MPIX_Query_cuda_support())
    if hasattr(library, "MPIX_GPU_query_support"):
        supported = ctypes.c_int(0)
        status = library.MPIX_GPU_query_support(_MPICH_CUDA, ctypes.byref(supported))
        return status == MPI.SUCCESS and bool(supported.value)
    return False
