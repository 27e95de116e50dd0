"""Time functions on a GPU by CUDA events, and measure the GPU's copy bandwidth."""

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hpcgnn.autograd.cupy_bridge import shared_stream
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
        Rounds that are not counted, and counted rounds.
    captured
        Calls per CUDA graph, whose replay is timed: launching short kernels takes the host longer
        than running them takes the GPU. 0: calls are launched and timed one by one.
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
    """Capture calls in a CUDA graph, and return a function that replays them."""
    # Warm up: allocations and compilation of the first call cannot be captured.
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), shared_stream():
        for _ in range(calls):
            function()
    return graph.replay


def copy_bandwidth() -> float:
    """Return the bytes per second read and written by a copy inside device memory."""
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
    """Return the peak memory that a call adds to the memory allocated before it."""
    pool = load_cupy().get_default_memory_pool()
    pool.free_all_blocks()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated(), pool.total_bytes()
    method()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before[0] + pool.total_bytes() - before[1])
