"""Peak memory of one step of a method, in a process of its own.

``python -m benchmarks.epoch_memory METHOD MODEL GRAPH THREADS`` prints the peak bytes that one
forward and backward pass adds to the process's memory before it: graph, features, parameters, and
whatever a first step leaves behind.
"""

import ctypes
import gc
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.epoch_methods import METHODS, make_problem

__all__ = ["peak_bytes"]

# A parameter of mallopt in glibc's malloc.h: the size from which arrays get their own mapping.
M_MMAP_THRESHOLD, LARGE = -3, 2**16


def peak_bytes(method: str, model: str, graph: str, threads: int) -> int:
    """Run the command above in a subprocess and return the bytes that it prints."""
    words = [sys.executable, "-m", __spec__.name, method, model, graph, str(threads)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr[-2000:]}")
    return int(done.stdout.split()[-1])


def measure(method: str, model: str, graph: str, threads: int) -> int:
    # Otherwise arrays in holes of the heap would not count.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)
    torch.set_num_threads(threads)
    made = METHODS[method](make_problem(model, graph, threads))
    made.differentiate(made.forward())
    for tensor in (made.features, *made.parameters):
        tensor.grad = None
    gc.collect()
    # Writing 5 resets the high-water mark to the resident set.
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
