"""Run one partitioner on one graph, in its own process to measure its peak memory.

``python -m benchmarks.partition_case FILE.npz PARTS METHOD SEED LIMIT JOINT`` prints JSON.
Methods: metis, metis-volume, kaminpar, mtkahypar (the peers' Python wheels, one thread), and
volume:OBJECTIVE or volume-fast:OBJECTIVE. Seconds are CPU seconds of the partitioner's own call:
converting the graph for a peer does not count. The process ends after LIMIT CPU seconds in total.
Rows of the joint exchange are counted if JOINT is True.
"""

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from hpcgnn.kernels import vertex_cover
from hpcgnn.partition import CSRGraph, Partition, measure, metis, part_graph

IMBALANCE = 0.05

Run = Callable[[], Any]


def main() -> None:
    file, parts, method, seed, limit, joint = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 1))
    arrays = np.load(file)
    graph = CSRGraph(arrays["indptr"], arrays["indices"], arrays["indptr"].size - 1)
    run = prepare(graph, int(parts), method, int(seed))
    before = resident_bytes()
    Path("/proc/self/clear_refs").write_text("5")
    began = time.process_time()
    part = np.asarray(run(), np.int32)
    seconds = time.process_time() - began
    peak = peak_bytes() - before
    found = result(graph, part, int(parts))
    if joint == "True":
        sent, received = joint_rows(graph, part, int(parts))
        busiest = max(sent.max(), received.max())
        found |= {"joint_rows": int(sent.sum()), "joint_busiest": int(busiest)}
    print(json.dumps(found | {"seconds": seconds, "peak_bytes": peak}))


def result(graph: CSRGraph, part: np.ndarray, num_parts: int) -> dict[str, Any]:
    found = asdict(measure(graph, part, num_parts))
    found["send_imbalance"] = found["max_send_rows"] * num_parts / max(found["total_rows"], 1) - 1
    return found


def prepare(graph: CSRGraph, num_parts: int, method: str, seed: int) -> Run:
    """Return the call to time."""
    name, _, objective = method.partition(":")
    if name == "metis":
        return lambda: metis(seed, IMBALANCE)(graph, num_parts).part
    if name == "metis-volume":
        return lambda: metis(seed, IMBALANCE, "volume")(graph, num_parts).part
    if name == "kaminpar":
        return kaminpar(graph, num_parts, seed)
    if name == "mtkahypar":
        return mtkahypar(graph, num_parts, seed)
    preset = "fast" if name == "volume-fast" else "default"
    return lambda: (
        part_graph(
            num_parts, graph, objective=objective, preset=preset, seed=seed, imbalance=IMBALANCE
        ).part
    )


def kaminpar(graph: CSRGraph, num_parts: int, seed: int) -> Run:
    import kaminpar  # noqa: PLC0415

    weights = graph.row_weights()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "graph.metis")
        with file.open("w") as lines:
            lines.write(f"{graph.num_nodes} {graph.indices.size // 2} 10\n")
            for node in range(graph.num_nodes):
                row = graph.indices[graph.indptr[node] : graph.indptr[node + 1]] + 1
                lines.write(" ".join(map(str, [weights[node], *row])) + "\n")
        loaded = kaminpar.load_graph(str(file), kaminpar.GraphFileFormat.METIS)
    kaminpar.reseed(seed)
    solver = kaminpar.KaMinPar(1, kaminpar.default_context())
    return lambda: solver.compute_partition(loaded, num_parts, IMBALANCE)


def mtkahypar(graph: CSRGraph, num_parts: int, seed: int) -> Run:
    import mtkahypar as library  # noqa: PLC0415

    solver = library.initialize(1)
    library.set_seed(seed)
    context = solver.context_from_preset(library.PresetType.DEFAULT)
    context.set_partitioning_parameters(num_parts, IMBALANCE, library.Objective.KM1)
    columns = graph.to_scipy().tocsc()
    nets = [
        [j, *columns.indices[columns.indptr[j] : columns.indptr[j + 1]].tolist()]
        for j in range(graph.num_nodes)
    ]
    nets = [net for net in nets if len(net) > 1]
    weights = graph.row_weights().tolist()
    hypergraph = solver.create_hypergraph(
        context, graph.num_nodes, len(nets), nets, weights, [1] * len(nets)
    )
    return lambda: hypergraph.partition(context).get_partition()


def joint_rows(graph: CSRGraph, part: np.ndarray, num_parts: int) -> tuple[Any, Any]:
    """Return the rows that each part sends and receives under the joint exchange, int64[K] each."""
    partition = Partition(part, num_parts)
    order, starts = partition.permutation(), partition.row_starts()
    matrix = graph.to_scipy()[order][:, order].tocsr()
    send, recv = np.zeros(num_parts, np.int64), np.zeros(num_parts, np.int64)
    for p in range(num_parts):
        rows = matrix[starts[p] : starts[p + 1]].tocoo()
        outside = (rows.col < starts[p]) | (rows.col >= starts[p + 1])
        entries = rows.data[outside], (rows.row[outside], rows.col[outside])
        remote = sparse.csr_matrix(entries, rows.shape)
        cover = vertex_cover(
            remote.indptr.astype(np.int64), remote.indices.astype(np.int32), starts, threads=1
        )
        sent = cover.fetched_rows + cover.pushed_rows
        send += sent
        recv[p] = sent.sum()
    return send, recv


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
