"""Epochs of the public SAR package over gloo beside ours, on the same parts.

    mpiexec -n 4 python -m benchmarks.bench_sar STORE.h5 [--width 256] [--rounds 5]

GraphSAGE (mean) without dropout on the graph with the reverse of every edge, in the parts of the
store; epochs by every way in turn, between barriers, the slowest rank's seconds, medians over the
rounds. ``ours, sequential`` is SAR's algorithm as ``exchange.schedule`` has it. Where the package
``sar`` (github.com/IntelLabs/SAR, with DGL) is not installed nothing runs.

What calls the package was written by its sources and was never run against it: it is not on PyPI,
whose ``sar`` is another, and was not to be had.
"""

import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.bench_ways import Way
from benchmarks.columns import Columns, print_columns, ratio, seconds, text
from benchmarks.exchange_graphs import StoredGraph
from benchmarks.report import circumstances
from benchmarks.spmm_peers import import_dgl
from hpcgnn.comm import Communicator, ProcessGrid, bcast
from hpcgnn.console import print_json
from hpcgnn.errors import InputError
from hpcgnn.launch import RankArgumentParser, run_mpi_command
from hpcgnn.sparse import DistCSR
from hpcgnn.storage import Split
from hpcgnn.train.full.task import NodeTask

COLUMNS: Columns = {
    "way": ("way", text),
    "epoch s": ("epoch_s", seconds),
    "over the fastest": ("over_fastest", ratio),
}
OURS = {
    "ours, aware": ("aware", "resident"),
    "ours, joint": ("joint", "resident"),
    "ours, sequential": ("aware", "sequential"),
}


def main(comm: Communicator) -> int:
    cli = RankArgumentParser(
        prog="python -m benchmarks.bench_sar", description=(__doc__ or "").split("\n")[0]
    )
    cli.add_argument("store", type=Path)
    cli.add_argument("--width", type=int, default=256, help="of hidden layers (default: 256)")
    cli.add_argument("--layers", type=int, default=3, help="(default: 3)")
    cli.add_argument("--rounds", type=int, default=5, help="epochs by each (default: 5)")
    cli.add_argument("--json", action="store_true", help="print one JSON object a way")
    options = cli.parse_args()
    if not is_installed():
        raise InputError(
            "SAR is not installed (PyPI's sar is something else): install github.com/IntelLabs/SAR "
            "and DGL; nothing ran"
        )
    words = ["model.name=sage", f"model.hidden={options.width}", "model.dropout=0"]
    words += [f"model.num_layers={options.layers}", "graph.undirected=true"]
    with ProcessGrid(comm) as grid, tempfile.TemporaryDirectory() as folder:
        ways = {}
        for name, (method, schedule) in OURS.items():
            keys, place = [*words, f"exchange.schedule={schedule}"], Path(folder) / schedule
            ways[name] = Way.opened(grid, str(options.store), keys, method, place)
        matrix = StoredGraph(options.store, (), undirected=True).block_row(grid)
        task = ways["ours, aware"].run._task
        epochs: dict[str, Callable[[], None]] = {name: each.epoch for name, each in ways.items()}
        epochs["SAR over gloo"] = sar_epoch(grid, matrix, task, options.width, options.layers)
        times: dict[str, list[float]] = {name: [] for name in epochs}
        for number in range(options.rounds + 1):
            for name, epoch in epochs.items():
                grid.world.Barrier()
                began = time.perf_counter()
                epoch()
                took = max(grid.world.allgather(time.perf_counter() - began))
                # The first makes transposes, buffers and connections.
                times[name] += [took] if number else []
    fastest = min(map(statistics.median, times.values()))
    for name, found in times.items() if comm.rank == 0 and options.json else ():
        about = {"store": str(options.store), "ranks": comm.size, "width": options.width}
        print_json({**about, "way": name, "epochs_s": found, **circumstances()})
    if comm.rank == 0 and not options.json:
        print(f"{options.store}, {comm.size} ranks: {circumstances()}")
        rows = {name: statistics.median(found) for name, found in times.items()}
        print_columns(
            COLUMNS,
            [{"way": k, "epoch_s": v, "over_fastest": v / fastest} for k, v in rows.items()],
        )
    return 0


def is_installed() -> bool:
    """Return whether ``sar`` is the package of that algorithm."""
    spec = find_spec("sar")
    where = None if spec is None else spec.origin
    return where is not None and Path(where).with_name("construct_shard_manager.py").exists()


def sar_epoch(
    grid: ProcessGrid, matrix: DistCSR, task: NodeTask, width: int, layers: int
) -> Callable[[], None]:
    """Return an epoch by the package, on the rows of this rank; collective."""
    dgl = import_dgl()
    import sar  # noqa: PLC0415  (only where it is installed)

    address = bcast(grid.world, socket.gethostbyname(socket.gethostname()))
    sar.initialize_comms(grid.rank, grid.size, address, "gloo")
    graph = sar.construct_full_graph(partition_data(sar.common_tuples.PartitionData, matrix))
    features, labels = task.graph.features, task.graph.labels
    if not isinstance(features, Tensor) or labels is None or labels.ndim != 1:
        raise InputError("SAR's example wants features of every node, and one label each")
    train = torch.from_numpy(np.flatnonzero(task.graph.split == Split.TRAIN))
    count = grid.world.allreduce(len(train))
    target = torch.from_numpy(labels.astype(np.int64))[train]
    hidden, classes = [width] * (layers - 1), task.graph.facts.num_classes
    widths = [features.shape[1], *hidden, classes]
    convolutions = nn.ModuleList(dgl.nn.SAGEConv(a, b, "mean") for a, b in pairwise(widths))
    sar.sync_params(convolutions)
    optimiser = torch.optim.Adam(convolutions.parameters(), lr=0.01)

    def epoch() -> None:
        rows = features
        for place, each in enumerate(convolutions):
            rows = each(graph, rows if place == 0 else functional.relu(rows))
        loss = functional.cross_entropy(rows[train], target, reduction="sum") / count
        optimiser.zero_grad()
        loss.backward()
        sar.gather_grads(convolutions)
        optimiser.step()

    return epoch


def partition_data(make: Any, matrix: DistCSR) -> Any:
    """Return what SAR loads for a rank: edges by the part that their source is in.

    Parameters
    ----------
    make
        SAR's tuple; its last fields differ between versions.
    matrix
        The block row of this rank: an edge from every column to its row.
    """
    row_map, local, remote = matrix.row_map, matrix.diagonal, matrix.remote
    sources = np.concatenate([local.indices + row_map.start, matrix.ghosts[remote.indices]])
    targets = np.concatenate([local.entry_rows(), remote.entry_rows()]) + row_map.start
    owners = row_map.owner(sources)
    ends = [torch.from_numpy(each.astype(np.int64)) for each in (sources, targets)]
    chosen = [torch.from_numpy(owners == part) for part in range(row_map.num_blocks)]
    shards = [_Shard((ends[0][each], ends[1][each])) for each in chosen]
    starts = row_map.starts.tolist()
    known = {
        "all_shard_edges": shards,
        "node_ranges": list(pairwise(starts)),
        "node_features": {},
        "node_type_names": ["_N"],
        "edge_type_names": ["_E"],
    }
    return make(*(known.get(name) for name in make._fields))


class _Shard:
    """SAR's shard: sources and targets of edges, global numbers, without features."""

    def __init__(self, edges: tuple[Tensor, Tensor]) -> None:
        self.edges, self.edge_features = edges, dict[str, Tensor]()


if __name__ == "__main__":
    run_mpi_command("bench_sar", main)
