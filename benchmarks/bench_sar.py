"""Epochs of the public SAR package over gloo and of hpcgnn, on the same parts and weights.

    mpiexec -n 4 python -m benchmarks.bench_sar STORE.h5 [--width 256] [--rounds 5]

Trains GraphSAGE (mean) without dropout on the graph with reverse edges, in the parts of the store.
Ways take turns, epoch by epoch, between barriers; seconds are the slowest rank's, medians over the
rounds. ``ours, sequential`` is SAR's algorithm, as in ``exchange.schedule``. All ways start with
the same weights, and report the losses of their epochs. Nothing runs unless the package ``sar``
(github.com/IntelLabs/SAR, with DGL) is installed.

A mode of SAR is ``sequential`` (aggregation and rematerialisation: its default), ``kept`` (the
same without rematerialisation) or ``one-shot`` (all remote rows at once; the package lost it with
the edge types of February 2024). After a plus, ``mfg`` restricts each layer to the rows that the
loss reaches, as ``exchange.active_sets`` does in hpcgnn, and a number is the number of blocks to
prefetch (SAR's pipeline_depth, 1 by default).

Bytes are the peak of an epoch above the resident set before it, the largest over ranks. Memory kept
by one way is in the baseline of the others, so compare memory with one way per process
(``--ours joint --sar ''``, then ``--ours '' --sar sequential``).
"""

import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.bench_memory import status_bytes
from benchmarks.bench_ways import Way, process_like_training
from benchmarks.columns import Columns, megabytes, print_columns, ratio, seconds, text
from benchmarks.exchange_graphs import StoredGraph
from benchmarks.report import circumstances
from benchmarks.spmm_peers import import_dgl
from hpcgnn.comm import Communicator, ProcessGrid, bcast
from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.launch import run_mpi_command
from hpcgnn.console import print_json
from hpcgnn.errors import InputError
from hpcgnn.sparse import DistCSR
from hpcgnn.storage import Split
from hpcgnn.train.seed_run import SeedRun


def loss_text(value: float) -> str:
    return f"{value:.6f}"


COLUMNS: Columns = {
    "way": ("way", text),
    "epoch s": ("epoch_s", seconds),
    "epochs add MB": ("peak_bytes", megabytes),
    "over the fastest": ("over_fastest", ratio),
    "first loss": ("first_loss", loss_text),
    "last loss": ("last_loss", loss_text),
}
OURS = {
    "aware": ("aware", "resident"),
    "joint": ("joint", "resident"),
    "sequential": ("aware", "sequential"),
}
SAR_MODES = "sequential,sequential+0,kept,one-shot"


def main(comm: Communicator) -> int:
    cli = CommandParser(
        prog="python -m benchmarks.bench_sar", description=(__doc__ or "").split("\n")[0]
    )
    cli.add_argument("store", type=Path)
    cli.add_argument("settings", nargs="*", metavar="section.key=value", help="of ours")
    cli.add_argument("--width", type=int, default=256, help="width of hidden layers (default: 256)")
    cli.add_argument("--layers", type=int, default=3, help="(default: 3)")
    cli.add_argument("--rounds", type=int, default=5, help="epochs of each way (default: 5)")
    cli.add_argument("--ours", default=",".join(OURS), help="our ways (default: %(default)s)")
    cli.add_argument("--sar", default=SAR_MODES, help=f"modes of SAR (default: {SAR_MODES})")
    cli.add_argument("--json", action="store_true", help="print one JSON object per way")
    options = cli.parse_args()
    chosen = [word for word in options.ours.split(",") if word]
    if unknown := [word for word in chosen if word not in OURS]:
        raise InputError(f"--ours: {unknown[0]!r} is none of {', '.join(OURS)}")
    modes = [SARMode.read(word) for word in options.sar.split(",") if word]
    if modes and not is_installed():
        raise InputError(
            "SAR is not installed (PyPI's sar is another package): install "
            "github.com/IntelLabs/SAR and DGL; nothing ran"
        )
    if any(mode.way == "one-shot" for mode in modes) and has_edge_types(import_sar()[0]):
        raise InputError(
            "--sar: this version of SAR has no one-shot; take --sar sequential,sequential+0,kept, "
            "or its commit before e7d4ba3"
        )
    words = ["model.name=sage", f"model.hidden={options.width}", "model.dropout=0"]
    words += [f"model.num_layers={options.layers}", "graph.undirected=true", *options.settings]
    with process_like_training(comm) as grid, tempfile.TemporaryDirectory() as folder:
        ways = {}
        for name in chosen or ["aware"]:
            method, schedule = OURS[name]
            keys, place = [*words, f"exchange.schedule={schedule}"], Path(folder) / name
            ways[name] = Way.opened(grid, str(options.store), keys, method, place)
        epochs = {f"ours, {name}": ours_epoch(ways[name]) for name in chosen}
        package = Package.started(grid) if modes else None
        if package is not None:
            matrix = StoredGraph(options.store, (), undirected=True).block_row(grid)
            some = next(iter(ways.values())).run
            epochs |= {f"SAR, {mode.name}": package.epoch(mode, matrix, some) for mode in modes}
        times: dict[str, list[float]] = {name: [] for name in epochs}
        losses: dict[str, list[float]] = {name: [] for name in epochs}
        peaks = dict.fromkeys(epochs, 0)
        for number in range(options.rounds + 1):
            for name, epoch in epochs.items():
                before = reset_peak()
                grid.world.Barrier()
                began = time.perf_counter()
                share = epoch()
                took = max(grid.world.allgather(time.perf_counter() - began))
                losses[name].append(grid.world.allreduce(share))
                peaks[name] = max(
                    peaks[name], *grid.world.allgather(status_bytes("VmHWM") - before)
                )
                # The first epoch builds transposes, buffers and connections.
                times[name] += [took] if number else []
        if package is not None:
            package.end()
    fastest = min(map(statistics.median, times.values()), default=0.0)
    for name, found in times.items() if comm.rank == 0 and options.json else ():
        about = {"store": str(options.store), "ranks": comm.size, "width": options.width}
        about |= {"layers": options.layers, "settings": options.settings}
        told = {"way": name, "epochs_s": found, "losses": losses[name], "peak_bytes": peaks[name]}
        print_json({**about, **told, **circumstances()})
    if comm.rank == 0 and not options.json:
        print(f"{options.store}, {comm.size} ranks: {circumstances()}")
        rows = {name: statistics.median(found) for name, found in times.items()}
        print_columns(
            COLUMNS,
            [
                {
                    "way": name,
                    "epoch_s": took,
                    "peak_bytes": peaks[name],
                    "over_fastest": took / fastest,
                    "first_loss": losses[name][0],
                    "last_loss": losses[name][-1],
                }
                for name, took in rows.items()
            ],
        )
    return 0


def reset_peak() -> int:
    """Reset the high-water mark of the resident set; return its current bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return status_bytes("VmRSS")


def ours_epoch(way: Way) -> Callable[[], float]:
    """Return a function that trains an epoch and returns this rank's share of the loss."""

    def epoch() -> float:
        way.epoch()
        return float(way.run._losses[0])

    return epoch


def is_installed() -> bool:
    """Return whether the installed ``sar`` is the package of SAR's authors."""
    spec = find_spec("sar")
    where = None if spec is None else spec.origin
    return where is not None and Path(where).with_name("construct_shard_manager.py").exists()


@dataclass(frozen=True)
class SARMode:
    """A mode of SAR, see the docstring of this module."""

    name: str
    way: str
    restricted: bool
    depth: int

    @classmethod
    def read(cls, word: str) -> "SARMode":
        """Return the mode that `word` names."""
        way, *more = word.split("+")
        depths = [each for each in more if each.isdecimal()]
        known = way in ("sequential", "kept", "one-shot") and len(depths) <= 1
        if not known or set(more) - {"mfg", *depths}:
            raise InputError(f"--sar: {word!r} is not a mode of SAR")
        return cls(word, way, "mfg" in more, int(depths[0]) if depths else 1)


@dataclass(frozen=True)
class Package:
    """SAR, connected."""

    grid: ProcessGrid
    sar: Any
    dgl: Any

    @classmethod
    def started(cls, grid: ProcessGrid) -> "Package":
        """Connect the ranks over gloo; collective."""
        sar, dgl = import_sar()
        place = None
        if grid.rank == 0:
            with socket.socket() as free:
                free.bind(("", 0))
                place = (sar.comm.get_socket().ip_addr, free.getsockname()[1])
        address, port = bcast(grid.world, place)
        sar.initialize_comms(grid.rank, grid.size, address, "gloo", master_port_number=port)
        return cls(grid, sar, dgl)

    def end(self) -> None:
        """Close the connections; collective."""
        torch.distributed.destroy_process_group()

    def epoch(self, mode: SARMode, matrix: DistCSR, run: SeedRun) -> Callable[[], float]:
        """Return a function that trains an epoch, from the weights of `run`; collective.

        The function returns this rank's share of the loss.
        """
        sar, graph = self.sar, run.task.objective.graph
        features, labels = graph.features, graph.labels
        if not isinstance(features, Tensor) or labels is None or labels.ndim != 1:
            raise InputError("SAR's example needs features and one label for every node")
        # SAR supports a single format.
        convolutions, features = self.convolutions(run), features.float()
        train = torch.from_numpy(np.flatnonzero(graph.split == Split.TRAIN))
        count = self.grid.world.allreduce(len(train))
        target = torch.from_numpy(labels.astype(np.int64))[train]
        graphs, depth = self.graphs(mode, matrix, train, len(convolutions)), mode.depth
        if mode.restricted:
            features, train = features[graphs[0].input_nodes], torch.arange(len(train))
        if mode.way == "one-shot":
            # Layers with the same graph share one object.
            whole = {id(each): each.get_full_partition_graph() for each in set(graphs)}
            graphs = [whole[id(each)] for each in graphs]
        optimiser = torch.optim.Adam(convolutions.parameters(), lr=0.01)

        def epoch() -> float:
            sar.Config.disable_sr, sar.Config.pipeline_depth = mode.way == "kept", depth
            rows = features
            for place, (each, layer) in enumerate(zip(convolutions, graphs, strict=True)):
                rows = each(layer, rows if place == 0 else functional.relu(rows, inplace=True))
            loss = functional.cross_entropy(rows[train], target, reduction="sum") / count
            optimiser.zero_grad()
            loss.backward()
            sar.gather_grads(convolutions)
            optimiser.step()
            return float(loss.detach())

        return epoch

    def convolutions(self, run: SeedRun) -> nn.ModuleList:
        """Return DGL's layers with the weights of our model."""
        ours: Any = run.model.layers
        shapes = [layer.own.weight.shape for layer in ours]
        theirs: list[Any] = [self.dgl.nn.SAGEConv(b, a, "mean") for a, b in shapes]
        with torch.no_grad():
            for each, layer in zip(theirs, ours, strict=True):
                each.fc_self.weight.copy_(layer.own.weight)
                each.fc_self.bias.copy_(layer.own.bias)
                each.fc_neigh.weight.copy_(layer.neighbours[0])
        return nn.ModuleList(theirs)

    def graphs(self, mode: SARMode, matrix: DistCSR, train: Tensor, layers: int) -> list[Any]:
        """Return SAR's graph of every layer; collective."""
        data = self.partition_data(matrix)
        if mode.restricted:
            return self.sar.construct_mfgs(data, train + matrix.row_map.start, layers)
        return [self.sar.construct_full_graph(data)] * layers

    def partition_data(self, matrix: DistCSR) -> Any:
        """Return the partition data that SAR loads on a rank, made from its block row; collective.

        The data are the edges from columns to rows, by the part of their source. Versions since
        2024 also read types of nodes and edges, and a partition book.
        """
        tuples, row_map, local, remote = (
            self.sar.common_tuples,
            matrix.row_map,
            matrix.diagonal,
            matrix.remote,
        )
        sources = np.concatenate([local.indices + row_map.start, matrix.ghosts[remote.indices]])
        targets = np.concatenate([local.entry_rows(), remote.entry_rows()]) + row_map.start
        owners = row_map.owner(sources)
        ends = [torch.from_numpy(each.astype(np.int64)) for each in (sources, targets)]
        shards = []
        for part in range(row_map.num_blocks):
            chosen = torch.from_numpy(owners == part)
            types = torch.zeros(int(chosen.sum()), dtype=torch.int32)
            edges = ends[0][chosen], ends[1][chosen]
            shards.append(tuples.ShardEdgesAndFeatures(edges, {self.dgl.ETYPE: types}))
        rows = torch.zeros(row_map.num_local, dtype=torch.int32)
        ranges = list(pairwise(row_map.starts.tolist()))
        known = {
            "all_shard_edges": shards,
            "node_ranges": ranges,
            "node_features": {self.dgl.NTYPE: rows},
            "node_type_names": ["_N"],
            "edge_type_names": ["_E"],
        }
        if has_edge_types(self.sar):
            edge = ("_N", "_E", "_N")
            counts = np.cumsum([0, *self.grid.world.allgather(len(sources))]).tolist()
            known["edge_type_names"] = [edge]
            known["partition_book"] = self.dgl.distributed.graph_partition_book.RangePartitionBook(
                self.grid.rank,
                self.grid.size,
                {"_N": torch.tensor(ranges)},
                {edge: torch.tensor(list(pairwise(counts)))},
                {"_N": 0},
                {edge: 0},
            )
        return tuples.PartitionData(*(known.get(name) for name in tuples.PartitionData._fields))


def has_edge_types(sar: Any) -> bool:
    """Return whether this version of SAR reads edge types from a partition book."""
    return "partition_book" in sar.common_tuples.PartitionData._fields


def import_sar() -> tuple[Any, Any]:
    """Return the modules of SAR and DGL."""
    dgl = import_dgl()
    if not hasattr(dgl.heterograph, "DGLHeteroGraph"):
        # The name that SAR uses; DGL 2 has only the other one.
        dgl.heterograph.DGLHeteroGraph = dgl.DGLGraph
    import sar  # noqa: PLC0415  (only where it is installed)

    return sar, dgl


if __name__ == "__main__":
    run_mpi_command("bench_sar", main)
