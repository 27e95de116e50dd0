"""The ways between the memories of GPUs, by the name that configurations use."""

from typing import Protocol

from hpcgnn.comm import CommPlan, Communicator, ProcessGrid, Stage, agree, takes_device_memory
from hpcgnn.errors import InputError
from hpcgnn.kernels.cuda.device import DeviceArray
from hpcgnn.spmm.carrier import Crossing
from hpcgnn.spmm.mpi_transports import DirectTransport, StagedTransport
from hpcgnn.spmm.nccl_transport import NcclTransport

__all__ = ["TRANSPORTS", "Transport", "make_transport"]

TRANSPORTS = ("auto", "staged", "mpi", "nccl")
"""Names of the transports; auto is mpi where the library takes device memory, else staged."""


class Transport(Protocol):
    """A way between devices; rows are sent when the work issued so far is done.

    A transport serves all exchanges of a run.
    """

    in_step: bool

    def start(
        self,
        plan: CommPlan,
        stage: Stage,
        sent: DeviceArray,
        received: DeviceArray,
        *,
        forward: bool,
    ) -> tuple[Crossing, Crossing]:
        """Start to move the rows of a stage, see `Carrier.start`; neighborwise collective."""
        ...

    def start_broadcast(self, comm: Communicator, rows: DeviceArray, root: int) -> Crossing:
        """Start to copy the rows of `root` to all ranks; collective."""
        ...

    def start_reduce(
        self, comm: Communicator, partial: DeviceArray, total: DeviceArray, root: int
    ) -> Crossing:
        """Start to sum into `total` on `root`; collective."""
        ...

    def combine(self, comm: Communicator, values: DeviceArray, *, largest: bool) -> None:
        """Replace an array by its sum or its maximum over the ranks; collective."""
        ...


def make_transport(name: str, grid: ProcessGrid) -> Transport:
    """Return the transport called `name` for the ranks of a grid, whose devices are chosen.

    Collective.

    Raises
    ------
    CollectiveInputError
        For mpi, when the library does not take device memory; for nccl, when CuPy has none, or two
        ranks share a GPU.
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
