"""Inputs that are made ready on a GPU while it works on the ones before."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

import torch

from hpcgnn.autograd.crossing import own_stream
from hpcgnn.train.device import Device
from hpcgnn.train.prefetch import Prefetch

__all__ = ["ready_ahead"]

Item = TypeVar("Item")
Ready = TypeVar("Ready")


def ready_ahead(
    device: Device, items: Iterable[Item], prepare: Callable[[Item], Ready]
) -> Iterator[Callable[[], Ready]]:
    """Yield, for each item, what returns that which `prepare` makes of it.

    Not collective.

    On the CPU it is made when it is called for. For a GPU a thread prepares the next item on a
    stream of its own while the present one is worked on. The stream reuses memory of items that are
    gone: whoever takes an item must have waited for all work on the one before, as the training
    loop has when it has read the loss of a step.

    Parameters
    ----------
    device
        Where to.
    items
        In order; nothing else may use what they come from meanwhile.
    prepare
        Makes arrays and tensors of an item on the current stream.
    """
    if not device.is_gpu:
        yield from (partial(prepare, item) for item in items)
        return

    def on_stream() -> Iterator[tuple[Ready, torch.cuda.Event]]:
        with own_stream(device.place) as stream:
            for item in items:
                made = prepare(item)
                yield made, stream.record_event()

    with Prefetch(on_stream(), depth=1) as prefetch:
        for made, copied in prefetch:
            yield partial(_taken, made, copied)


def _taken(made: Ready, copied: torch.cuda.Event) -> Ready:
    torch.cuda.current_stream().wait_event(copied)
    return made
