"""nekRS-ML's distributed GNN, in its own code and in hpcgnn, from equal weights on one mesh.

    python -m benchmarks.nekrs_peer STORE FOLDER [--ranks 1] [--hidden 32] [--layers 4] [--maps 5]
        [--steps 20] [--rounds 3] [--inputs u] [--targets p] [--json]

FOLDER has the peer's gnn.py (3rd_party/gnn/dist-gnn of argonne-lcf/nekRS-ML), which is imported
from there. STORE has node fields, of which the first step is used: targets are learned from inputs.
Both get the same rows, edges and edge features, and steps of Adam. Each run is a job of its own;
runs of both take turns. The peer's ranks communicate by gloo, with halo exchanges by its
`all_to_all`; a rank has the edges that end in its block of nodes, and copies of their sources.
Ours recomputes all of a layer in the backward pass. It prints losses, nodes per CPU second over all
ranks, and the memory growth of the largest rank since the first step began.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import hpcgnn
from benchmarks.columns import Columns, count, megabytes, print_columns, text
from hpcgnn.autograd import EdgeInputs
from hpcgnn.nn.edge_linear import EdgeLinear, EdgePerceptron
from hpcgnn.nn.perceptron import Perceptron
from hpcgnn.storage import GraphStore
from hpcgnn.typing import Array

NETS = ("ours", "nekRS-ML")
COLUMNS: Columns = {
    "net": ("net", text),
    "first loss": ("first", "{:.8f}".format),
    "last loss": ("last", "{:.8f}".format),
    "nodes / CPU s": ("speed", "{:,.0f}".format),
    "s": ("wall_s", "{:.2f}".format),
    "CPU s": ("cpu_s", "{:.2f}".format),
    "memory MB": ("grown", megabytes),
    "nodes": ("nodes", count),
}


@dataclass(frozen=True, eq=False)
class Mesh:
    """Rows of all nodes, and the edges (2, E) that end at nodes `start` to `stop` - 1."""

    inputs: Tensor
    targets: Tensor
    index: Array
    features: Tensor
    start: int
    stop: int

    @classmethod
    def read(cls, options: argparse.Namespace, rank: int) -> "Mesh":
        """Return a rank's share of the mesh."""
        with GraphStore.open(options.store) as store:
            n, starts = store.num_nodes, store.row_starts
            starts = starts[np.arange(options.ranks + 1) * (len(starts) - 1) // options.ranks]
            low, high = int(starts[rank]), int(starts[rank + 1])
            block, positions = store.read_adjacency(0, n), store.read_positions(0, n)
            box = np.array(store.box)
            rows = [
                np.concatenate([store.read_field(each, 0, 0, n) for each in names], axis=1)
                for names in (options.inputs, options.targets)
            ]
        assert positions is not None
        index = np.stack([block.indices, np.repeat(np.arange(n), np.diff(block.indptr))])
        apart = positions[index[0]] - positions[index[1]]
        apart -= box * np.rint(apart / np.where(box > 0, box, np.inf))
        length = np.linalg.norm(apart, axis=1, keepdims=True)
        features = torch.from_numpy(np.concatenate([apart, length], axis=1) / length.max())
        own = (index[1] >= low) & (index[1] < high)
        x, y = (
            torch.from_numpy((each - each.mean(0)) / (each.std(0) + 1e-9)).float() for each in rows
        )
        return cls(x, y, index[:, own], features[torch.from_numpy(own)].float(), low, high)


class Layer(nn.Module):
    """``x_i += MLP [x_i, Σ_j (e_ij + MLP [x_j, x_i, e_ij])]``; the edge states e do not change."""

    def __init__(self, width: int, maps: int) -> None:
        super().__init__()
        first, inner = EdgeLinear(width, width, width, width), [width] * (maps + 2)
        rest = Perceptron(inner, "elu", normed=False)
        self.edges = EdgePerceptron(first, rest, residual=True)
        self.nodes = Perceptron([2 * width, *inner], "elu", normed=False, residual=True)

    def forward(self, edges: EdgeInputs, x: Tensor, states: Tensor) -> Tensor:
        """Return the new rows (n, width)."""
        summed, _ = self.edges.reduced(edges, x, x, states, "sum")
        rows: Tensor = self.nodes(x, summed)
        return rows


class OurNet(nn.Module):
    """The network with hpcgnn's operators."""

    def __init__(self, mesh: Mesh, options: argparse.Namespace) -> None:
        super().__init__()
        inner = [options.hidden] * (options.maps + 1)
        ends = mesh.inputs.shape[1], mesh.features.shape[1], mesh.targets.shape[1]
        self.nodes, self.edges = (
            Perceptron([width, *inner, options.hidden], "elu", normed=False) for width in ends[:2]
        )
        self.out = Perceptron([options.hidden, *inner, ends[2]], "elu", normed=False)
        self.layers = nn.ModuleList(
            Layer(options.hidden, options.maps) for _ in range(options.layers)
        )

    def take(self, peer: nn.Module) -> None:
        """Copy the weights of the peer's network."""
        theirs, pairs = peer.state_dict(), []
        parts = {"node_encoder": self.nodes, "edge_encoder": self.edges, "node_decoder": self.out}
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            parts[f"processor.{number}.node_updater"] = layer.nodes
            mine = [layer.edges.first, *(layer.edges.rest.maps if layer.edges.rest else ())]
            pairs += [(f"processor.{number}.edge_updater.mlp.{i}", m) for i, m in enumerate(mine)]
        for name, part in parts.items():
            pairs += [(f"{name}.mlp.{place}", each) for place, each in enumerate(part.maps)]
        with torch.no_grad():
            for name, each in pairs:
                weight = theirs[f"{name}.weight"]
                if isinstance(each, EdgeLinear):
                    # The peer's targets come first.
                    source, target, state = weight.chunk(3, dim=1)
                    weight = torch.cat([target, source, state], dim=1)
                each.weight.copy_(weight)
                each.bias.copy_(theirs[f"{name}.bias"])

    def forward(self, edges: EdgeInputs, x: Tensor, features: Tensor) -> Tensor:
        """Return (n, out)."""
        rows, states = self.nodes(x), self.edges(features)
        for layer in self.layers:
            rows = layer(edges, rows, states)
        found: Tensor = self.out(rows)
        return found


def peer_net(mesh: Mesh, options: argparse.Namespace) -> nn.Module:
    """Return the peer's network with the weights of the seed."""
    sys.path.insert(0, str(options.folder))
    gnn = import_module("gnn")
    torch.manual_seed(1)
    mode = "all_to_all" if options.ranks > 1 else "none"
    widths = mesh.inputs.shape[1], mesh.features.shape[1], options.hidden, mesh.targets.shape[1]
    found: nn.Module = gnn.DistributedGNN(*widths, options.maps, options.layers, mode)
    return found


def ours(options: argparse.Namespace, rank: int) -> dict[str, Any]:
    """Train our network on this rank."""
    mesh = Mesh.read(options, rank)
    with hpcgnn.open_graph(
        None,
        str(options.store),
        model={"name": "pna"},
        run={"threads": 1},
        graph={"structure": "degree"},
        exchange={"keep_states": "never"},
    ) as graph:
        edges, grid = graph.view.edges, graph.grid
        features = edges.with_columns(mesh.features)
        net = OurNet(mesh, options)
        net.take(peer_net(mesh, options))
        own = slice(mesh.start, mesh.stop)
        x, y = mesh.inputs[own], mesh.targets[own]

        def loss() -> Tensor:
            return (net(edges, x, features) - y).square().sum() / mesh.targets.numel()

        def add_up(values: Array) -> None:
            grid.sum_over_blocks(values)

        return measured(net, loss, add_up, len(mesh.inputs), options)


class Halo:
    """The halo arguments of the peer's network; local nodes are own nodes, then copies."""

    def __init__(self, mesh: Mesh, options: argparse.Namespace) -> None:
        size, rank = options.ranks, dist.get_rank() if options.ranks > 1 else 0
        own = np.arange(mesh.start, mesh.stop)
        wanted = np.setdiff1d(mesh.index[0], own)
        self.nodes = np.concatenate([own, wanted])
        lists: list[Any] = [None] * size
        if size > 1:
            dist.all_gather_object(lists, (mesh.start, mesh.stop, wanted))
        shared = []
        for other in range(size):
            ids = np.empty(0, np.int64)
            if other != rank and size > 1:
                low, high, theirs = lists[other]
                mine = theirs[(theirs >= mesh.start) & (theirs < mesh.stop)]
                ids = np.union1d(mine, wanted[(wanted >= low) & (wanted < high)])
            shared.append(self.local(ids))
        ends = len(self.nodes) + np.cumsum([0, *map(len, shared)])
        self.send = [torch.from_numpy(each) for each in shared]
        self.receive = [torch.arange(*pair) for pair in pairwise(ends.tolist())]
        pairs = [np.concatenate(shared), np.arange(ends[0], ends[-1])]
        self.info = torch.from_numpy(np.stack(pairs, axis=1))
        self.peers = torch.tensor([other for other in range(size) if len(shared[other])])
        self.count = int(ends[-1])
        most = torch.tensor(max(map(len, shared)))
        if size > 1:
            dist.all_reduce(most, dist.ReduceOp.MAX)
        self.shape = int(most), options.hidden
        self.index = torch.from_numpy(np.stack([self.local(each) for each in mesh.index]))

    def local(self, ids: Array) -> Array:
        """Return the local numbers of nodes."""
        order = np.argsort(self.nodes, kind="stable")
        return order[np.searchsorted(self.nodes, ids, sorter=order)]

    def rows(self, whole: Tensor) -> Tensor:
        """Return the rows of local nodes, with space for received rows."""
        local = whole[torch.from_numpy(self.nodes)]
        return torch.cat([local, local.new_zeros(self.count - len(local), local.shape[1])])


def peer(options: argparse.Namespace, rank: int) -> dict[str, Any]:
    """Train the peer's network on this rank."""
    torch.set_num_threads(1)
    mesh, size = Mesh.read(options, rank), options.ranks
    if size > 1:
        meeting = f"file://{options.meeting}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    net, halo = peer_net(mesh, options), Halo(mesh, options)
    x, y, own = halo.rows(mesh.inputs), mesh.targets[mesh.start : mesh.stop], len(mesh.index[0])
    weights = torch.ones(own)

    def loss() -> Tensor:
        buffers = [[torch.empty(halo.shape) for _ in range(size)] for _ in range(2)]
        moved = halo.info, halo.send, halo.receive, *buffers, halo.peers, size
        found = net(x, halo.index, mesh.features, weights, *moved)
        return (found[: len(y)] - y).square().sum() / mesh.targets.numel()

    def add_up(values: Array) -> None:
        if size > 1:
            dist.all_reduce(torch.from_numpy(values))

    return measured(net, loss, add_up, len(mesh.inputs), options)


def measured(
    net: nn.Module,
    loss: Callable[[], Tensor],
    add_up: Callable[[Array], None],
    nodes: int,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Take steps of Adam; return the losses over all ranks, and time and memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    optimizer, losses = torch.optim.Adam(net.parameters(), 1e-3), []
    cpu_s = wall_s = 0.0
    for step in range(options.steps + 1):
        began, began_cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        share = loss()
        share.backward()  # type: ignore[no-untyped-call]
        for each in net.parameters():
            assert each.grad is not None
            add_up(each.grad.numpy())
        optimizer.step()
        total = np.array([share.item()])
        add_up(total)
        losses.append(float(total[0]))
        if step:
            # The first step makes plans and buffers.
            cpu_s += time.process_time() - began_cpu
            wall_s += time.perf_counter() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    every = np.zeros(options.ranks)
    every[options.rank] = grown
    add_up(every)
    used = np.array([cpu_s])
    add_up(used)
    found = {"losses": losses, "first": losses[0], "last": losses[-1], "wall_s": wall_s}
    found |= {"cpu_s": float(used[0]), "nodes": nodes, "grown": int(every.max()) * 1024}
    return found | {"speed": nodes * options.steps / float(used[0])}


def run(options: argparse.Namespace, net: str, words: list[str]) -> dict[str, Any]:
    """Run a network in a job of its own."""
    command = [sys.executable, "-m", "benchmarks.nekrs_peer", *words]
    if options.ranks > 1:
        start = ["mpiexec", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
        # For emulated hosts, see bench_hosts.sh.
        start = [os.environ["MPIEXEC"]] if "MPIEXEC" in os.environ else start
        command = [*start, "-n", str(options.ranks), *command]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--worker", net, "--meeting", f"{folder}/ranks"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return {"net": net, **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    """Print the medians of both networks."""
    cli = argparse.ArgumentParser(prog="benchmarks.nekrs_peer", description=__doc__)
    cli.add_argument("store", type=Path)
    cli.add_argument("folder", type=Path)
    defaults = {"ranks": 1, "hidden": 32, "layers": 4, "maps": 5, "steps": 20, "rounds": 3}
    for name, value in defaults.items():
        cli.add_argument(f"--{name}", type=int, default=value)
    for name, field in (("inputs", "u"), ("targets", "p")):
        cli.add_argument(f"--{name}", type=lambda words: words.split(","), default=[field])
    cli.add_argument("--worker", default="")
    cli.add_argument("--meeting", default="", help="rendezvous file of the peer's ranks")
    cli.add_argument("--json", action="store_true", help="one line of JSON each")
    options = cli.parse_args()
    options.rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    if options.worker:
        found = (ours if options.worker == NETS[0] else peer)(options, options.rank)
        if options.rank == 0:
            print(json.dumps(found))
        return
    runs = [run(options, net, sys.argv[1:]) for _ in range(options.rounds) for net in NETS]
    for net in NETS:
        mine = [each for each in runs if each["net"] == net]
        middle = {
            k: median(each[k] for each in mine) for k in mine[0] if k not in ("net", "losses")
        }
        line = {"net": net, **middle, "losses": mine[0]["losses"]}
        if options.json:
            print(json.dumps(line))
        else:
            print_columns(COLUMNS, [line])


if __name__ == "__main__":
    main()
