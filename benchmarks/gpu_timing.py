"""Timing on a GPU by its own events, and what the card can do at best."""

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hpcgnn.autograd.crossing import shared_stream
from hpcgnn.kernels.cuda.device import load_cupy

__all__ = ["copy_bandwidth", "device_name", "device_peak_bytes", "interleave_on_device"]

_COPIED_BYTES = 1 << 30


def interleave_on_device(
    functions: Mapping[str, Callable[[], object]],
    *,
    warmup: int,
    repeat: int,
    captured: int = 0,
) -> dict[str, float]:
    """Time functions in turn, in a rotating order; return each one's median seconds on the GPU.

    Parameters
    ----------
    functions
        Each issues its work on CuPy's current stream.
    warmup, repeat
        Rounds that are not counted, and that are.
    captured
        Calls that one CUDA graph holds, whose replay is timed: of short kernels the host takes
        longer to issue them than the GPU to run them. 0: calls are timed as the host issues them.
    """
    cupy, calls = load_cupy(), max(captured, 1)
    names, seconds = list(functions), {name: list[float]() for name in functions}
    run = {
        name: _replay(function, captured) if captured else function
        for name, function in functions.items()
    }
    for done in range(-warmup, repeat):
        first = done % len(names)
        for name in names[first:] + names[:first]:
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            run[name]()
            end.record()
            end.synchronize()
            if done >= 0:
                seconds[name].append(cupy.cuda.get_elapsed_time(start, end) / 1e3 / calls)
    return {name: statistics.median(values) for name, values in seconds.items()}


def _replay(function: Callable[[], object], calls: int) -> Callable[[], None]:
    """Return what replays some calls, which have been captured."""
    # What is made at the first call cannot be captured.
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), shared_stream():
        for _ in range(calls):
            function()
    return graph.replay


def copy_bandwidth() -> float:
    """Return the bytes a second that a copy inside the card's memory reads and writes."""
    cupy = load_cupy()
    source = cupy.zeros(_COPIED_BYTES, "uint8")
    target = cupy.empty_like(source)

    def copy() -> None:
        target[...] = source

    return 2 * _COPIED_BYTES / interleave_on_device({"copy": copy}, warmup=2, repeat=9)["copy"]


def device_name() -> str:
    """Return the name of the current device."""
    runtime = load_cupy().cuda.runtime
    facts: dict[str, Any] = runtime.getDeviceProperties(runtime.getDevice())
    return bytes(facts["name"]).decode()


def device_peak_bytes(method: Callable[[], object]) -> int:
    """Return the most memory that a call adds to what was allocated before it."""
    pool = load_cupy().get_default_memory_pool()
    pool.free_all_blocks()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated(), pool.total_bytes()
    method()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before[0] + pool.total_bytes() - before[1])
