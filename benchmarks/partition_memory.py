"""Memory and time of the distributed volume partitioner, step by step.

``mpiexec -n P python -m benchmarks.partition_memory STORE PARTS SEED`` prints, for every step, its
peak memory and the memory held after it (both above that before reading, summed over the ranks, in
bytes per non-zero), and CPU microseconds per non-zero of all ranks, including waiting. Preset
`fast`, objective max_send; the last lines have a hash of the parts, their cost, and the sums.
"""

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np

from benchmarks.partition_case import IMBALANCE, peak_bytes, resident_bytes
from hpcgnn.comm import MpiGroup, ProcessGrid
from hpcgnn.kernels import return_freed_arrays
from hpcgnn.partition import initial
from hpcgnn.partition.groups import GroupShare
from hpcgnn.partition.nets import fetch_pins
from hpcgnn.partition.pattern import read_rows
from hpcgnn.partition.refinement import Terms, refine
from hpcgnn.storage import GraphStore

STEPS: tuple[tuple[Any, str], ...] = (
    *((initial, name) for name in ("finest_level", "cluster", "contract", "_sketch", "_cut")),
    *((GroupShare, name) for name in ("__init__", "count", "return_nets", "refine", "bring_home")),
)


class Steps:
    """Peak memory, held memory and CPU seconds of this rank, by step."""

    def __init__(self) -> None:
        self._base, self._cpu = resident_bytes(), time.process_time()
        self.found: list[tuple[str, int, int, float]] = []
        Path("/proc/self/clear_refs").write_text("5")

    def end(self, name: str) -> None:
        """Record the time and memory of the step that ends here."""
        cpu = time.process_time()
        held = resident_bytes() - self._base
        self.found.append((name, peak_bytes() - self._base, held, cpu - self._cpu))
        Path("/proc/self/clear_refs").write_text("5")
        self._cpu = time.process_time()

    def watch(self, owner: Any, name: str) -> None:
        """Make function `name` of `owner` a step, and the code before it another step."""
        step = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            self.end(f"before {name}")
            result = step(*arguments, **options)
            self.end(name)
            return result

        setattr(owner, name, watched)


def main() -> None:
    file, parts, seed = sys.argv[1:]
    return_freed_arrays()
    with ProcessGrid(MPI.COMM_WORLD) as grid, GraphStore.open(Path(file)) as store:
        comm = grid.layer
        terms = Terms(int(parts), "max_send", "fast", IMBALANCE, int(seed))
        store.read_share(grid.rank, grid.size)
        comm.Barrier()
        steps = Steps()
        for owner, name in STEPS:
            steps.watch(owner, name)
        rows = read_rows(MpiGroup(comm), store, (), undirected=False)
        num_edges = comm.allreduce(len(rows.columns))
        steps.end("reading")
        pins = fetch_pins(comm, rows)
        steps.end("pins")
        part = initial.first_parts(grid, rows, pins.weights, terms.num_parts, terms.seed, IMBALANCE)
        del rows
        found = refine(comm, pins, part, terms, lambda _: None)
        steps.end("the rest")
        parts_of_all = np.concatenate(comm.allgather(found.part))
        figures = comm.gather([figure[1:] for figure in steps.found])
        if comm.rank > 0:
            return
        sums = np.array(figures).sum(axis=0) / num_edges
        for (name, *_), (peak, held, cpu) in zip(steps.found, sums.tolist(), strict=True):
            print(f"{name:20} peak {peak:5.1f} held {held:5.1f} CPU {1e6 * cpu:.3f}")
        peak, cpu = sums[:, 0].max(), 1e6 * sums[:, 2].sum()
        print(f"{num_edges} non-zeros: peak {peak:.1f} bytes, CPU {cpu:.2f} us")
        print(f"{found.describe()}; {hashlib.sha256(parts_of_all.tobytes()).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
