"""The transports between GPUs by their names in configurations."""

from hpcgnn.comm import ProcessGrid, agree, takes_device_memory
from hpcgnn.errors import InputError
from hpcgnn.spmd import collective
from hpcgnn.spmm.carrier import Transport
from hpcgnn.spmm.gpu.mpi import (
    DirectTransport,
    StagedTransport,
)
from hpcgnn.spmm.gpu.nccl import NcclTransport

TRANSPORTS = ("auto", "staged", "mpi", "nccl")
"""Names of the transports; auto is mpi if the library supports device memory, else staged."""


@collective
def make_transport(name: str, grid: ProcessGrid) -> Transport:
    """Return the transport `name` for the ranks of a grid, which must have chosen their devices.

    Raises CollectiveInputError for mpi if the library does not support device memory, and for nccl
    if CuPy lacks NCCL or two ranks share a GPU.
    """
    direct = takes_device_memory(grid.layer)
    with agree(grid.world):
        if name == "mpi" and not direct:
            raise InputError(
                "exchange.transport = 'mpi': this MPI library does not take device memory; use "
                "one built with CUDA, or exchange.transport=staged"
            )
    if name == "nccl":
        return NcclTransport(grid)
    return DirectTransport() if direct and name in ("auto", "mpi") else StagedTransport()
