"""Peak memory of one step of a method, in a process of its own.

``python -m benchmarks.epoch_memory METHOD MODEL GRAPH THREADS`` prints the bytes that one forward
and backward pass adds, at its peak, to what the process holds before it: graph, features and
parameters, and whatever a first step has left behind.
"""

import ctypes
import gc
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.epoch_methods import METHODS, make_problem

__all__ = ["peak_bytes"]

# From glibc's malloc.h: arrays from so many bytes on get a mapping of their own.
M_MMAP_THRESHOLD, LARGE = -3, 2**16


def peak_bytes(method: str, model: str, graph: str, threads: int) -> int:
    """Return what the command above prints."""
    words = [sys.executable, "-m", __spec__.name, method, model, graph, str(threads)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr[-2000:]}")
    return int(done.stdout.split()[-1])


def measure(method: str, model: str, graph: str, threads: int) -> int:
    # Arrays in holes of the heap would count as memory from before.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)
    torch.set_num_threads(threads)
    made = METHODS[method](make_problem(model, graph, threads))
    made.differentiate(made.forward())
    for tensor in (made.features, *made.parameters):
        tensor.grad = None
    gc.collect()
    # Writing 5 sets the high-water mark back to what is resident now.
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    made.differentiate(made.forward())
    return status("VmHWM") - before


def status(key: str) -> int:
    """Return a value of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    raise RuntimeError(f"no {key} in /proc/self/status")


if __name__ == "__main__":
    name, model_name, graph_name, count = sys.argv[1:]
    print(measure(name, model_name, graph_name, int(count)))
