"""The distributed volume partitioner on one graph: rows, seconds, memory.

``mpiexec -n P python -m benchmarks.partition_ranks FILE.npz PARTS METHOD SEED`` prints JSON on rank
0. METHOD is volume:OBJECTIVE, volume-fast:OBJECTIVE, or a peer: ptscotch, zoltan (partition_peers).
Each rank reads its rows of the arrays. Seconds are the CPU seconds of all ranks; peak_bytes is that
of the largest rank, above its share of the input, times P.
"""

import json
import sys
import time
from pathlib import Path

from mpi4py import MPI

import numpy as np

from benchmarks.partition_case import IMBALANCE, peak_bytes, resident_bytes, result
from benchmarks.partition_peers import PEERS
from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.partition import CSRGraph
from hpcgnn.partition.distributed_volume import return_freed_arrays
from hpcgnn.partition.initial import first_parts
from hpcgnn.partition.nets import fetch_pins, joint_pins
from hpcgnn.partition.pattern import BlockRow
from hpcgnn.partition.refinement import Terms, refine


def main() -> None:
    file, parts, method, seed = sys.argv[1:]
    name, _, objective = method.partition(":")
    preset = "fast" if name == "volume-fast" else "default"
    return_freed_arrays()
    terms = Terms(int(parts), objective, preset, IMBALANCE, int(seed))
    with ProcessGrid(MPI.COMM_WORLD) as grid:
        comm = grid.layer
        rows = read(Path(file), comm)
        comm.Barrier()
        before = resident_bytes()
        Path("/proc/self/clear_refs").write_text("5")
        began, cpu = time.perf_counter(), time.process_time()
        if name in PEERS:
            weights = np.maximum(np.diff(rows.indptr), 1)
            part = PEERS[name](comm, rows, weights, terms.num_parts, terms.seed, IMBALANCE)
            started, start_bytes = 0.0, 0
        else:
            pins = (joint_pins if objective == "joint" else fetch_pins)(comm, rows)
            part = first_parts(grid, rows, pins.weights, terms.num_parts, terms.seed, IMBALANCE)
            started = time.perf_counter() - began
            start_bytes = peak_bytes() - before
            del rows
            found = refine(comm, pins, part, terms, lambda _: None)
            part = found.part
        seconds = time.perf_counter() - began
        cpu = comm.allreduce(time.process_time() - cpu)
        peak = comm.allreduce(peak_bytes() - before, op=MPI.MAX)
        start_bytes = comm.allreduce(start_bytes, op=MPI.MAX)
        parts_of_all = comm.gather(part)
        if comm.rank > 0:
            return
        arrays = np.load(file)
        graph = CSRGraph(arrays["indptr"], arrays["indices"], arrays["indptr"].size - 1)
        counted = result(graph, np.concatenate(parts_of_all), terms.num_parts)
        if name not in PEERS and objective != "joint":
            # The loads that refinement compares must equal those of the metrics.
            most = found.counts.loads.max(axis=0).tolist()
            assert most == [counted["max_send_rows"], counted["max_recv_rows"]]
        figures = {"seconds": cpu, "wall_s": seconds, "start_wall_s": started}
        figures |= {"ranks": comm.size, "peak_bytes": peak * comm.size}
        figures |= {"start_peak_bytes": start_bytes * comm.size}
        print(json.dumps(counted | figures))


def read(file: Path, comm: MPI.Intracomm) -> BlockRow:
    arrays = np.load(file)
    indptr = arrays["indptr"].astype(np.int64)
    cost = indptr + np.arange(len(indptr))
    starts = np.searchsorted(cost, cost[-1] * np.arange(comm.size + 1) // comm.size)
    starts[0], starts[-1] = 0, len(indptr) - 1
    row_map = RowMap(starts.astype(np.int64), comm.rank)
    indptr = indptr[row_map.start : row_map.stop + 1]
    columns = arrays["indices"][indptr[0] : indptr[-1]].astype(np.int32)
    return BlockRow(row_map, indptr - indptr[0], columns, symmetric=True)


if __name__ == "__main__":
    main()
