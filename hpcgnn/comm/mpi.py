"""MPI, started at its first use, so that importing layers and models does not start it.

Importing ``mpi4py.MPI`` starts MPI, which takes time, and fails if no MPI library is found. The
object `MPI` imports it at the first access to an attribute. If there is no library and the process
was started alone, `one_rank` takes its place.
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
            # Several ranks cannot do without MPI.
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
    """Return the name and version of the MPI library, from the first line of its description."""
    words: str = MPI.Get_library_version().strip("\0 \n").splitlines()[0]
    return " ".join(words.partition(",")[0].split())


def installed_mpi() -> tuple[str, str] | None:
    """Return the name of the MPI library and the version of the standard, without starting MPI.

    None if no library is found. Only for processes that will not use MPI.
    """
    rc = import_module("mpi4py").rc
    rc.initialize = rc.finalize = False
    try:
        import_module("mpi4py.MPI")
    except (ImportError, RuntimeError):
        return None
    return mpi_library(), ".".join(map(str, MPI.Get_version()))


Communicator: TypeAlias = "MPI.Intracomm"
"""For annotations, also in other packages, without importing mpi4py."""

# MPI 4.1, section 12.4.3: kinds of memory that a communicator supports.
_MEMORY_KINDS = "mpi_memory_alloc_kinds"
_MPICH_CUDA = 0


def takes_device_memory(comm: Communicator) -> bool:
    """Return whether messages can be sent directly from and to the memory of CUDA devices.

    Not collective; the answer is the same on all ranks that use the same library.

    It comes from the first of these that exists: the info key of MPI 4.1, Open MPI's
    ``MPIX_Query_cuda_support``, MPICH's ``MPIX_GPU_query_support``. A library with none of them
    counts as unable to.
    """
    kinds = comm.Get_info().Get(_MEMORY_KINDS)
    if kinds is not None:
        return any(kind.split(":")[0] == "cuda" for kind in kinds.split(","))
    # The extension module is linked to the MPI library, so its handle finds the library's symbols.
    library = ctypes.CDLL(MPI.__file__)
    if hasattr(library, "MPIX_Query_cuda_support"):
        return bool(library.MPIX_Query_cuda_support())
    if hasattr(library, "MPIX_GPU_query_support"):
        supported = ctypes.c_int(0)
        status = library.MPIX_GPU_query_support(_MPICH_CUDA, ctypes.byref(supported))
        return status == MPI.SUCCESS and bool(supported.value)
    return False
