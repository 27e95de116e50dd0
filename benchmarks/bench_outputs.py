"""What every model learns with few outputs, compared with the same layers in torch-geometric.

    python -m benchmarks.bench_outputs [--models gin,gine] [--outputs 1,2,3] [--task sums] [--json]

The graph has 1,000 points, each connected to its six nearest, with noisy waves of the position as
features. The targets are smooth functions of the position (``--task smooth``), or sums of
neighbours' features (``--task sums``): N numbers, or N >= 2 classes (quantiles of the first
function). Both sides train on all nodes at once with Adam. Scores are R² or accuracy on the test
nodes at the epoch that is best on the validation nodes: minimum, mean and maximum over the seeds.
Sizes and learning rates are equal; each side has its own initial weights. In torch-geometric
``sign`` gets its powers from a transform, and ``mixhop`` (MixHopConv) a final linear map.
"""

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.columns import BESIDE_PYG, Columns, print_columns, text
from benchmarks.harness import surroundings
from hpcgnn.comm import ProcessGrid
from hpcgnn.commands.launch import run_command
from hpcgnn.config.file import load_config
from hpcgnn.console import print_json
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.nn import MODELS
from hpcgnn.storage import EdgeData, GraphArrays, Split, store_from_arrays
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.process import prepare_process
from hpcgnn.train.seed_run import SeedRun
from hpcgnn.train.tasks import load_task
from hpcgnn.typing import Array

NUM_NODES, NEIGHBOURS, NUM_FEATURES = 1000, 6, 8
HEADS, HOPS, TELEPORT, THETA = 2, 2, 0.1, 0.5

COLUMNS: Columns = {
    "model": ("model", text),
    "predicts": ("predicts", text),
    **BESIDE_PYG,
}


@dataclass(frozen=True, eq=False)
class Case:
    """A graph and the targets of its nodes.

    Parameters
    ----------
    index
        (2, E) both directions of every edge.
    kinds, lengths
        (E,) relation, and (E, 1) feature of an edge, its length.
    features, targets
        (N, F) and (N, T) float32.
    split
        (N,) uint8.
    """

    index: Array
    kinds: Array
    lengths: Array
    features: Array
    targets: Array
    split: Array

    def classes(self, count: int) -> Array:
        """Return the quantile (N,) of each node in the first target."""
        first = self.targets[:, 0]
        return np.searchsorted(np.quantile(first, np.arange(1, count) / count), first)


def make_case(task: str) -> Case:
    rng = np.random.default_rng(11)
    points = rng.random((NUM_NODES, 2))
    near = cKDTree(points).query(points, NEIGHBOURS + 1)[1][:, 1:]
    both = np.stack([np.repeat(np.arange(NUM_NODES), NEIGHBOURS), near.ravel()])
    index = np.unique(np.concatenate([both, both[::-1]], axis=1), axis=1)
    lengths = np.linalg.norm(points[index[0]] - points[index[1]], axis=1)[:, None]
    lengths /= lengths.mean()
    waves = np.sin(points @ rng.normal(scale=4, size=(2, NUM_FEATURES)) + rng.random(NUM_FEATURES))
    features = waves + rng.normal(scale=0.7, size=waves.shape)
    x, y = points.T * 2 * np.pi
    targets = np.stack([np.sin(x) + np.cos(y), np.cos(x), np.sin(x) * np.sin(y)], axis=1)
    if task == "sums":
        features = rng.normal(size=waves.shape)
        targets = np.zeros_like(targets)
        np.add.at(targets, index[1], features[index[0], : targets.shape[1]])
    parts = [Split.TRAIN] * 6 + [Split.VALID] * 2 + [Split.TEST] * 2
    split = rng.permutation(np.resize(parts, NUM_NODES)).astype(np.uint8)
    kinds = (lengths[:, 0] > np.median(lengths)).astype(np.int64)
    narrow = (each.astype(np.float32) for each in (lengths, features, targets))
    return Case(index, kinds, *narrow, split)


def write_case(case: Case, folder: Path) -> None:
    """Write stores of one and of two relations, with labels for each number of classes."""
    # One direction of each edge: the store adds the other itself.
    once = case.index[0] < case.index[1]
    for name, kinds in (("one", np.zeros_like(case.kinds)), ("two", case.kinds)):
        parts = [once & (kinds == kind) for kind in range(kinds.max() + 1)]
        names = [""] if name == "one" else ["short", "long"]
        for count in (2, 3):
            store_from_arrays(
                folder / f"{name}{count}.h5",
                GraphArrays(
                    name=name,
                    num_nodes=NUM_NODES,
                    edges={
                        key: tuple(case.index[:, part])
                        for key, part in zip(names, parts, strict=True)
                    },
                    edge_data={
                        key: EdgeData(features=case.lengths[part])
                        for key, part in zip(names, parts, strict=True)
                    },
                    features=case.features,
                    labels=case.classes(count),
                    split=case.split,
                    undirected=True,
                ),
            )
    for count in (1, 2, 3):
        np.save(folder / f"targets{count}.npy", case.targets[:, :count])


def ours(name: str, folder: Path, outputs: int, numbers: bool, options: Any) -> list[float]:
    """Return the scores of our model, one per seed."""
    store = folder / f"{'two' if name in ('rgcn', 'hgt') else 'one'}{max(outputs, 2)}.h5"
    words = [
        f"graph.store={store}",
        f"run.dir={folder / 'run'}",
        "run.threads=1",
        f"model.name={name}",
        f"model.hidden={options.hidden}",
        f"model.num_layers={options.layers}",
        "model.dropout=0",
        f"train.epochs={options.epochs}",
        f"train.learning_rate={options.rate}",
        "train.weight_decay=0",
        "train.seeds=" + str(list(range(1, options.seeds + 1))),
        *([f"graph.targets={folder / f'targets{outputs}.npy'}"] if numbers else []),
    ]
    given = MODELS[name].options | set(MODELS[name].own_options)
    words += [f"model.heads={HEADS}"] if "heads" in given else []
    words += [f"model.hops={HOPS}"] if "hops" in given and name != "appnp" else []
    config = load_config(None, words)
    with ProcessGrid(MPI.COMM_SELF, 1) as grid:
        prepare_process(grid, 1)
        trace = TraceRecorder.off()
        task = load_task(Context.open(grid, config, trace))
        scores = []
        for seed in config.train.seeds:
            run = SeedRun(task, config, seed, trace)
            while not run.finished:
                run.begin_epoch()
                for step in task.steps(seed, run.epoch):
                    run.step(step)
                run.end_epoch(stop=False)
            scores.append(run.result()["test"])
    return scores


class Layered(nn.Module):
    """Layers with ReLUs between them."""

    def __init__(self, layers: list[nn.Module], call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layers, self._call = nn.ModuleList(layers), call

    def forward(self, x: Tensor, first: Tensor | None = None) -> Tensor:
        """Return the outputs of all nodes."""
        for place, layer in enumerate(self.layers):
            x = self._call(layer, x if place == 0 else functional.relu(x))
        return x


def peer(name: str, case: Case, outputs: int, options: Any) -> nn.Module:
    """Return the model in torch-geometric, as a function of the features."""
    from torch_geometric import nn as pyg  # noqa: PLC0415

    index, kinds = torch.from_numpy(case.index), torch.from_numpy(case.kinds)
    lengths = torch.from_numpy(case.lengths)
    hidden, inner = options.hidden, options.layers - 1
    widths = [NUM_FEATURES, *[hidden] * inner, outputs]
    pairs = list(itertools.pairwise(widths))

    def maps(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(before, hidden), nn.ReLU(), nn.Linear(hidden, after))

    def heads(kind: type[nn.Module]) -> list[nn.Module]:
        return [
            kind(
                before,
                after // HEADS if place < inner else after,
                heads=HEADS,
                concat=place < inner,
            )
            for place, (before, after) in enumerate(pairs)
        ]

    def plain(layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x) if isinstance(layer, nn.Linear) else layer(x, index)

    if name in ("gcn", "sage"):
        kind = {"gcn": pyg.GCNConv, "sage": pyg.SAGEConv}[name]
        return Layered([kind(*pair) for pair in pairs], plain)
    if name in ("gat", "gatv2", "transformer"):
        kind = {"gat": pyg.GATConv, "gatv2": pyg.GATv2Conv, "transformer": pyg.TransformerConv}[
            name
        ]
        return Layered(heads(kind), plain)
    if name == "gin":
        return Layered([pyg.GINConv(maps(*pair), train_eps=True) for pair in pairs], plain)
    if name == "gine":
        layers = [pyg.GINEConv(maps(*pair), train_eps=True, edge_dim=1) for pair in pairs]
        return Layered(layers, lambda layer, x: layer(x, index, lengths))
    if name == "rgcn":
        layers = [pyg.RGCNConv(*pair, 2) for pair in pairs]
        return Layered(layers, lambda layer, x: layer(x, index, kinds))
    if name == "mixhop":
        share = hidden // (HOPS + 1)
        powers, wide = list(range(HOPS + 1)), share * (HOPS + 1)
        layers = [
            pyg.MixHopConv(NUM_FEATURES if place == 0 else wide, share, powers=powers)
            for place in range(options.layers)
        ]
        return Layered([*layers, nn.Linear(wide, outputs)], plain)
    if name == "appnp":
        steps = pyg.APPNP(10, TELEPORT)
        body = Layered([nn.Linear(*pair) for pair in pairs], plain)
        return Composed(body, lambda x: steps(x, index))
    if name == "sign":
        from torch_geometric.utils import scatter  # noqa: PLC0415

        def powers_of(x: Tensor) -> Tensor:
            found = [x]
            for _ in range(HOPS):
                found.append(scatter(found[-1][index[0]], index[1], 0, NUM_NODES, "mean"))
            return torch.stack(found)

        return Sign(pairs, powers_of)
    if name == "gcnii":
        layers = [
            pyg.GCN2Conv(hidden, TELEPORT, THETA, place + 1) for place in range(options.layers)
        ]
        return Even(
            layers, hidden, outputs, lambda layer, x, first: layer(x, first, index), bends=True
        )
    if name == "hgt":
        edges = {("n", key, "n"): index[:, kinds == kind] for kind, key in enumerate(("s", "l"))}
        layers = [
            pyg.HGTConv(hidden, hidden, (["n"], list(edges)), HEADS) for _ in range(options.layers)
        ]

        def call(layer: nn.Module, x: Tensor, _first: Tensor) -> Tensor:
            return layer({"n": x}, edges)["n"]

        return Even(layers, hidden, outputs, call, bends=False)
    raise InputError(f"--models {name}: choose of {', '.join(MODELS)}")


class Composed(nn.Module):
    """A body, followed by a function of its rows."""

    def __init__(self, body: nn.Module, last: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self._last = body, last

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all nodes."""
        return self._last(self.body(x))


class Sign(nn.Module):
    """Linear maps of every power of the features, concatenated, and a perceptron."""

    def __init__(self, pairs: list[tuple[int, int]], powers: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        (before, hidden), *others = pairs
        self.branches = nn.ModuleList(nn.Linear(before, hidden) for _ in range(HOPS + 1))
        joined = [hidden * (HOPS + 1), *[after for _, after in others]]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(joined))
        self._powers = powers

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all nodes."""
        parts = zip(self.branches, self._powers(x), strict=True)
        x = torch.cat([branch(power) for branch, power in parts], dim=1)
        for layer in self.layers:
            x = layer(functional.relu(x))
        return x


class Even(nn.Module):
    """Layers of one width between two linear maps."""

    def __init__(
        self,
        layers: list[nn.Module],
        hidden: int,
        outputs: int,
        call: Callable[..., Tensor],
        *,
        bends: bool,
    ) -> None:
        super().__init__()
        self.input, self.output = nn.Linear(NUM_FEATURES, hidden), nn.Linear(hidden, outputs)
        self.layers, self._call, self._bends = nn.ModuleList(layers), call, bends

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all nodes."""
        x = first = functional.relu(self.input(x))
        for layer in self.layers:
            x = self._call(layer, x, first)
            x = functional.relu(x) if self._bends else x
        return self.output(x)


def theirs(name: str, case: Case, outputs: int, numbers: bool, options: Any) -> list[float]:
    """Return the scores of the peer, one per seed."""
    x, split = torch.from_numpy(case.features), case.split
    train, valid, test = (
        torch.from_numpy(np.flatnonzero(split == each))
        for each in (Split.TRAIN, Split.VALID, Split.TEST)
    )
    truth = torch.from_numpy(case.targets[:, :outputs] if numbers else case.classes(outputs))
    if numbers:
        truth = (truth - truth[train].mean(0)) / truth[train].std(0, unbiased=False)

    def score(out: Tensor, rows: Tensor) -> float:
        if not numbers:
            return float((out[rows].argmax(1) == truth[rows]).double().mean())
        errors = (out[rows] - truth[rows]).square().sum(0)
        spread = (truth[rows] - truth[rows].mean(0)).square().sum(0)
        return float((1 - errors / spread).mean())

    scores = []
    for seed in range(1, options.seeds + 1):
        torch.manual_seed(seed)
        model = peer(name, case, outputs, options)
        model(x)
        optimizer = torch.optim.Adam(model.parameters(), options.rate)
        best, kept = -np.inf, 0.0
        for _ in range(options.epochs):
            optimizer.zero_grad()
            out = model(x)[train]
            loss = (functional.mse_loss if numbers else functional.cross_entropy)(out, truth[train])
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                out = model(x)
            if score(out, valid) > best:
                best, kept = score(out, valid), score(out, test)
        scores.append(kept)
    return scores


def spread(scores: list[float], prefix: str = "") -> Mapping[str, float]:
    values = {"least": min(scores), "mean": statistics.fmean(scores), "most": max(scores)}
    return {prefix + key: value for key, value in values.items()}


def main() -> None:
    options = parse_arguments()
    case, results = make_case(options.task), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_case(case, folder)
        for model in options.models.split(","):
            for outputs in map(int, options.outputs.split(",")):
                for kind in ("numbers", "classes")[: 1 + (outputs > 1)]:
                    numbers = kind == "numbers"
                    line: dict[str, Any] = {"model": model, "predicts": f"{outputs} {kind}"}
                    mine = ours(model, folder, outputs, numbers, options)
                    line |= spread(mine) | {"scores": mine}
                    if not options.alone:
                        other = theirs(model, case, outputs, numbers, options)
                        line |= {**spread(other, "peer_"), "peer_scores": other}
                    results.append(line)
                    if options.json:
                        print_json(line | {"task": options.task} | surroundings("torch_geometric"))
    if not options.json:
        print_columns(COLUMNS, results)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.bench_outputs", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument(
        "--outputs", default="1,2,3", help="numbers of outputs; from 2 on also of classes"
    )
    parser.add_argument("--task", choices=("smooth", "sums"), default="smooth")
    parser.add_argument("--hidden", type=int, default=18, help="divisible by 2 heads and 3 powers")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, default=6, help="1, 2, ...")
    parser.add_argument("--alone", action="store_true", help="without torch-geometric")
    parser.add_argument("--json", action="store_true", help="print one JSON object per case")
    return parser.parse_args()


if __name__ == "__main__":
    run_command("bench_outputs", main)
