"""Memory that a rank needs to set up an exchange, and memory that it keeps.

    mpiexec -n 4 python -m benchmarks.setup_memory STORE.h5

All ranks count as one host unless --per-host gives the ranks of a host. For each exchange, with
resident and with sequential products, it prints the largest over ranks of the peak allocations of
Python and NumPy during set-up and of what remains, without the matrix, and the shared memory.
"""

import argparse
import gc
import platform
import tracemalloc

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.comm.mpi import MPI
from hpcgnn.config.file import load_config
from hpcgnn.graph.context import Context
from hpcgnn.graph.read_edges import read_matrix
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.spmm import Schedule, make_exchange
from hpcgnn.storage import GraphStore, assign_parts
from hpcgnn.trace import TraceRecorder


def main() -> None:
    """Print a line for each exchange."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("store")
    cli.add_argument("--per-host", type=int)
    options = cli.parse_args()
    comm = MPI.COMM_WORLD
    if options.per_host:
        name = f"host{comm.rank // options.per_host}"
        platform.node = lambda: name
    config = load_config(None, [f"graph.store={options.store}", "run.dir=none", "model.name=sage"])
    with GraphStore.open(options.store) as store, ProcessGrid(comm) as grid:
        starts = assign_parts(store.row_starts, store.part_edges(), comm.size)
        rows = StoredRows(Context(grid, config), store, RowMap(starts, grid.block))
        matrix = read_matrix(rows).matrix
        ghosts = len(matrix.ghosts)
        for method in ("aware", "joint", "hierarchical", "hierarchical_joint"):
            for name in ("resident", "sequential"):
                gc.collect()
                comm.Barrier()
                tracemalloc.start()
                made = make_exchange(
                    method,
                    grid,
                    matrix,
                    TraceRecorder.off(),
                    schedule=Schedule(name == "sequential"),
                )
                gc.collect()
                kept, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                window = grid.shared_window()
                shared = sum(window._sizes.values())
                window.close()
                del made
                values = comm.gather((peak / ghosts, kept / ghosts, shared / ghosts))
                if comm.rank == 0:
                    line = " ".join(f"{max(each):8.1f}" for each in zip(*values, strict=True))
                    print(f"{method:20s} {name:10s} {line}  bytes a ghost", flush=True)


if __name__ == "__main__":
    main()
