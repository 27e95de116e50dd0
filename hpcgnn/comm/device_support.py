"""Whether the MPI library takes pointers to the memory of GPUs, as it says itself at run time."""

import ctypes

from hpcgnn.comm.mpi import MPI

# MPI 4.1, section 12.4.3: kinds of memory that a communicator may be given.
_KINDS = "mpi_memory_alloc_kinds"
_MPICH_CUDA = 0


def takes_device_memory(comm: "MPI.Comm") -> bool:
    """Return whether messages may go straight from and to the memory of CUDA devices.

    Not collective, but the same on all ranks of one library.

    Asked are, in this order, the standard's info key of MPI 4.1, Open MPI's
    ``MPIX_Query_cuda_support`` and MPICH's ``MPIX_GPU_query_support``; a library with none of them
    is taken at its word that it knows of no device.
    """
    kinds = comm.Get_info().Get(_KINDS)
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
