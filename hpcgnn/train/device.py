"""The device that a rank computes on: the CPU, or a GPU of its host."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.errors import InputError
from hpcgnn.kernels.cuda import GpuUnavailableError, require_gpu
from hpcgnn.kernels.cuda.clock import EventClock
from hpcgnn.kernels.cuda.device import load_cupy, use_device
from hpcgnn.kernels.cuda.group_size import PAPER_RULE, GroupRule
from hpcgnn.nn.group_size import load_group_rule
from hpcgnn.spmm.transports import Transport, make_transport
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.config import Config
from hpcgnn.typing import Array, GlobalIndices, LocalIndices

__all__ = ["CPU", "Device", "open_device", "require_device"]


@dataclass(frozen=True)
class Device:
    """Where the tensors and operators of a rank live.

    Parameters
    ----------
    name
        cpu or cuda.
    place
        As torch names it.
    transport
        How rows travel between GPUs; None on the CPU.
    rule
        Chooses the size of the neighbour groups of products.
    """

    name: str
    place: torch.device
    transport: Transport | None = None
    rule: GroupRule = PAPER_RULE

    @property
    def is_gpu(self) -> bool:
        """Whether products run on a GPU."""
        return self.name == "cuda"

    def put(self, tensor: Tensor) -> Tensor:
        """Return a tensor there, itself where it is there already.

        Not collective.
        """
        return tensor.to(self.place)

    def ids(self, array: GlobalIndices | LocalIndices) -> Any:
        """Return ids or rows as kernels there take them: the array itself, or a CuPy array.

        Not collective.
        """
        return load_cupy().asarray(array) if self.is_gpu else array

    def tensor(self, array: Array) -> Tensor:
        """Return an array of the host as a tensor there; on the CPU they share memory.

        Not collective.
        """
        return self.put(torch.from_numpy(array))


CPU = Device("cpu", torch.device("cpu"))


def require_device(config: Config) -> None:
    """Raise unless a rank can train as `config` says on its device.

    Not collective.

    Raises
    ------
    InputError
        For cuda: CuPy or a GPU is missing. Nothing falls back to the CPU by itself.
    """
    if config.train.device == "cpu":
        return
    try:
        require_gpu()
        if not torch.cuda.is_available():
            raise GpuUnavailableError("this build of torch finds no GPU; install one for CUDA")
    except GpuUnavailableError as error:
        raise InputError(f"train.device = 'cuda': {error}") from error


def open_device(grid: ProcessGrid, config: Config, trace: TraceRecorder) -> Device:
    """Return the device of this rank, its host's GPUs dealt out by the local rank.

    Collective.

    Ranks share a GPU where there are more ranks than GPUs on a host. The trace gets its clock.

    Raises
    ------
    CollectiveInputError
        When a rank finds no GPU, or the transport does not work there.
    """
    if config.train.device == "cpu":
        return CPU
    local_rank = grid.local_rank
    with agree(grid.world):
        number = use_device(local_rank)
        torch.cuda.set_device(number)
    transport = make_transport(config.exchange.transport, grid)
    trace.use_clock(EventClock())
    with agree(grid.world):
        rule = load_group_rule(config.train.group_size)
    return Device("cuda", _place(number), transport, rule)


def _place(number: int) -> torch.device:
    return torch.device("cuda", number)
