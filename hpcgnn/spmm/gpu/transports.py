"""The ways between the memories of GPUs, by the name that configurations use."""

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
"""Names of the transports; auto is mpi where the library takes device memory, else staged."""


@collective
def make_transport(name: str, grid: ProcessGrid) -> Transport:
    """Return the transport called `name` for the ranks of a grid, whose devices are chosen.

    Raises CollectiveInputError for mpi when the library does not take device memory; for nccl when
    CuPy has none, or two ranks share a GPU.
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
