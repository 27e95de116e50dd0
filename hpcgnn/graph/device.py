"""The device that a rank computes on: the CPU, or a GPU of its host."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, TypeVar

import torch
from torch import Tensor

from hpcgnn.autograd.crossing import own_stream
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
    """Where the tensors and operators of a rank live, by `name`: cpu or cuda.

    `transport` is how rows travel between GPUs, None on the CPU; `rule` chooses the size of the
    neighbour groups of products.
    """

    name: str
    place: torch.device
    transport: Transport | None = None
    rule: GroupRule = MEASURED_RULE

    @property
    def is_gpu(self) -> bool:
        """Whether products run on a GPU."""
        return self.name == "cuda"

    def put(self, tensor: Tensor) -> Tensor:
        """Return a tensor there, itself where it is there already."""
        return tensor.to(self.place)

    def ids(self, array: GlobalIndices | LocalIndices) -> Any:
        """Return ids or rows as kernels there take them: the array itself, or a CuPy array."""
        return load_cupy().asarray(array) if self.is_gpu else array

    def tensor(self, array: Array) -> Tensor:
        """Return an array of the host as a tensor there; on the CPU they share memory."""
        return self.put(torch.from_numpy(array))

    def prepare_ahead(
        self, items: Iterable[Item], prepare: Callable[[Item], Ready]
    ) -> Iterator[Callable[[], Ready]]:
        """Yield, for each item, what returns that which `prepare` makes of it.

        On the CPU it is made when it is called for. For a GPU a thread prepares the next item on a
        stream of its own while the present one is worked on. The stream reuses memory of items that
        are gone: whoever takes an item must have waited for all work on the one before, as the
        training loop has when it has read the loss of a step. Nothing else may use what items come
        from meanwhile.
        """
        if not self.is_gpu:
            yield from (partial(prepare, item) for item in items)
            return

        def on_stream() -> Iterator[tuple[Ready, torch.cuda.Event]]:
            with own_stream(self.place) as stream:
                for item in items:
                    prepared = prepare(item)
                    yield prepared, stream.record_event()

        # One thread runs the generator from end to end, since a stream is current in a thread.
        with Prefetch(next, repeat(on_stream()), threads=1, depth=1) as made_ahead:
            for made, copied in made_ahead:
                yield partial(_taken, made, copied)


def _taken(made: Ready, copied: torch.cuda.Event) -> Ready:
    torch.cuda.current_stream().wait_event(copied)
    return made


CPU = Device("cpu", torch.device("cpu"))


def require_device(config: Config) -> None:
    """Raise unless a rank can train as `config` says on its device.

    Raises `InputError` where cuda lacks CuPy or a GPU. Nothing falls back to the CPU by itself.
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
    """Return the device of this rank, its host's GPUs dealt out by the local rank.

    Ranks share a GPU where there are more ranks than GPUs on a host. The trace gets its clock.

    Raises `CollectiveInputError` when a rank finds no GPU, or the transport does not work there.
    """
    if config.train.device == "cpu":
        return CPU
    local_rank = grid.local_rank
    with agree(grid.world):
        number = use_device(local_rank)
        torch.cuda.set_device(number)
        # Products of bfloat16 add up in float32, whatever cuBLAS would gain by less.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    transport = make_transport(config.exchange.transport, grid)
    trace.use_clock(EventClock())
    with agree(grid.world):
        rule = load_group_rule(config.train.group_size)
    return Device("cuda", _place(number), transport, rule)


def _place(number: int) -> torch.device:
    return torch.device("cuda", number)
