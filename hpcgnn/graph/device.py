"""The device that a rank computes on: the CPU, or a GPU of its host."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, TypeVar

import torch
from torch import Tensor

from hpcgnn.autograd.cupy_bridge import own_stream
from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.kernels.cuda import GpuUnavailableError, require_gpu
from hpcgnn.kernels.cuda.device import EventClock, load_cupy, use_device
from hpcgnn.kernels.cuda.groups import MEASURED_RULE, GroupRule
from hpcgnn.nn.group_size import load_group_rule
from hpcgnn.sampling import Prefetch
from hpcgnn.spmd import collective
from hpcgnn.spmm import Transport
from hpcgnn.spmm.gpu.transports import make_transport
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, GlobalIndices, LocalIndices

Item = TypeVar("Item")
Ready = TypeVar("Ready")


@dataclass(frozen=True)
class Device:
    """The device of a rank's tensors and operators; `name` is cpu or cuda.

    `transport` moves rows between GPUs, None on the CPU; `rule` chooses the size of neighbour
    groups in products.
    """

    name: str
    torch_device: torch.device
    transport: Transport | None = None
    rule: GroupRule = MEASURED_RULE

    @property
    def is_gpu(self) -> bool:
        """Whether products run on a GPU."""
        return self.name == "cuda"

    def put(self, tensor: Tensor) -> Tensor:
        """Return a tensor on this device, the same object if it is there already."""
        return tensor.to(self.torch_device)

    def ids(self, array: GlobalIndices | LocalIndices) -> Any:
        """Return ids or rows for kernels on this device: the array itself, or a CuPy array."""
        return load_cupy().asarray(array) if self.is_gpu else array

    def tensor(self, array: Array) -> Tensor:
        """Return a host array as a tensor on this device; on the CPU they share memory."""
        return self.put(torch.from_numpy(array))

    def prepare_ahead(
        self, items: Iterable[Item], prepare: Callable[[Item], Ready]
    ) -> Iterator[Callable[[], Ready]]:
        """Yield for each item a function that returns ``prepare(item)``.

        On the CPU the function prepares the item. On a GPU a thread prepares the next item on its
        own stream while the caller works on the current one. The stream reuses memory of released
        items, so before taking an item the caller must have waited for all work on the previous
        one, as the training loop has after reading a step's loss. Meanwhile nothing else may use
        the source of the items.
        """
        if not self.is_gpu:
            yield from (partial(prepare, item) for item in items)
            return

        def on_stream() -> Iterator[tuple[Ready, torch.cuda.Event]]:
            with own_stream(self.torch_device) as stream:
                for item in items:
                    prepared = prepare(item)
                    yield prepared, stream.record_event()

        # A single thread runs the whole generator, since the current stream is a thread's.
        with Prefetch(next, repeat(on_stream()), threads=1, depth=1) as prepared_ahead:
            for prepared, copied in prepared_ahead:
                yield partial(_wait, prepared, copied)


def _wait(prepared: Ready, copied: torch.cuda.Event) -> Ready:
    torch.cuda.current_stream().wait_event(copied)
    return prepared


CPU = Device("cpu", torch.device("cpu"))


def require_device(config: Config) -> None:
    """Raise `InputError` if train.device is cuda and CuPy or a GPU is missing.

    There is no fallback to the CPU.
    """
    if config.train.device == "cpu":
        return
    try:
        require_gpu()
        if not torch.cuda.is_available():
            raise GpuUnavailableError("this build of torch finds no GPU; install one for CUDA")
    except GpuUnavailableError as error:
        raise InputError(f"train.device = 'cuda': {error}") from error


@collective
def open_device(grid: ProcessGrid, config: Config, trace: TraceRecorder) -> Device:
    """Return the device of this rank; GPUs of a host are assigned by local rank.

    Ranks share GPUs if a host has more ranks than GPUs. The trace uses the device's clock.

    Raises `CollectiveInputError` if a rank finds no GPU, or the transport does not work.
    """
    if config.train.device == "cpu":
        return CPU
    local_rank = grid.local_rank
    with agree(grid.world):
        number = use_device(local_rank)
        torch.cuda.set_device(number)
        # Products of bfloat16 must accumulate in float32, even if cuBLAS were faster otherwise.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    transport = make_transport(config.exchange.transport, grid)
    trace.use_clock(EventClock())
    with agree(grid.world):
        rule = load_group_rule(config.train.group_size)
    return Device("cuda", _place(number), transport, rule)


def _place(number: int) -> torch.device:
    # The emulated GPU of the tests replaces this.
    return torch.device("cuda", number)
