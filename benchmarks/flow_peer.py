"""MeshGraphNet on vortex streets in hpcgnn and plain torch-geometric, trained alike.

    python -m benchmarks.flow_peer flow.h5 FOLDER [--seeds 1,2,3] [--horizons 1,10,50,100]
        [--rollouts 3] [--recipe jobs/configs/flow.toml] [--equal] [--json] [section.key=value ...]

Both have the same layers and widths, parts of the series, order of samples, noise, steps of Adam
and learning rates; each has its own initial weights, from a seed. Errors are those of the velocity
in m/s after each number of steps, over rollouts of the test part; "next = last" is the baseline
that predicts no change. With `--equal` the peer starts from our weights, means, deviations and
noise, in float64, so only rounding differs. Our runs stay in FOLDER: the same command resumes.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from benchmarks.columns import Columns, count, print_columns, seconds, text
from benchmarks.plain_blocks import PlainBlock
from hpcgnn.autograd import DropoutKey
from hpcgnn.config.config import Config
from hpcgnn.config.file import load_config
from hpcgnn.storage import GraphStore
from hpcgnn.train.fields.noise import PLACES, normal
from hpcgnn.train.fields.windows import Windows

NETS = ("ours", "torch-geometric")
Errors = dict[int, float]
"""Number of steps -> error after them."""


def perceptron(first: int, width: int, last: int, *, normed: bool = True) -> nn.Sequential:
    """Return three linear maps with ReLUs between them, and a layer norm."""
    maps = [nn.Linear(first, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    norm = [nn.LayerNorm(last)] if normed else []
    return nn.Sequential(*maps, nn.Linear(width, last), *norm)


class PlainNet(nn.Module):
    """A MeshGraphNet as a torch-geometric user would write it."""

    def __init__(self, widths: tuple[int, int, int], hidden: int, layers: int) -> None:
        super().__init__()
        nodes, edges, out = widths
        self.nodes, self.edges = (perceptron(each, hidden, hidden) for each in (nodes, edges))
        self.layers = nn.ModuleList(
            PlainBlock(*(perceptron(maps * hidden, hidden, hidden) for maps in (3, 2)))
            for _ in range(layers)
        )
        self.out = perceptron(hidden, hidden, out, normed=False)

    def forward(self, x: Tensor, index: Tensor, features: Tensor) -> Tensor:
        """Return (nodes, out)."""
        x, states = self.nodes(x), self.edges(features)
        for layer in self.layers:
            x, states = layer(x, index, states)
        decoded: Tensor = self.out(x)
        return decoded


@dataclass(frozen=True, eq=False)
class Street:
    """The store in memory: the velocity `u` (T, N, 2), and constant inputs."""

    u: Tensor
    static: Tensor
    index: Tensor
    edges: Tensor
    weights: Tensor
    free: Tensor
    windows: Windows

    @classmethod
    def read(cls, config: Config) -> "Street":
        """Return the series of a store."""
        with GraphStore.open(config.graph.store) as store:
            n = store.num_nodes
            block, data = store.read_adjacency(0, n), store.read_edge_data(0, n)
            features, positions = store.read_nodes(0, n).features, store.read_positions(0, n)
            u = np.stack([store.read_field("u", step, 0, n) for step in range(len(store.times))])
            weights, starts = store.read_node_weights(0, n), store.trajectory_starts
        assert features is not None
        assert positions is not None
        assert weights is not None
        targets = np.repeat(np.arange(n), np.diff(block.indptr))
        edges = [] if data.features is None else [data.features]
        if config.graph.positions == "relative":
            apart = positions[block.indices] - positions[targets]
            length = np.linalg.norm(apart, axis=1, keepdims=True)
            edges += [np.concatenate([apart, length], axis=1) / length.mean()]
        columns = [int(name.removeprefix("feature:")) for name in config.fields.fixed]
        dtype = torch.get_default_dtype()
        return cls(
            u=torch.from_numpy(u).to(dtype),
            static=torch.from_numpy(features).to(dtype),
            index=torch.from_numpy(np.stack([block.indices.astype(np.int64), targets])),
            edges=torch.from_numpy(np.concatenate(edges, axis=1)).to(dtype),
            weights=torch.from_numpy(weights).to(dtype),
            free=torch.from_numpy(~features[:, columns].astype(bool).any(1)),
            windows=Windows.of(config.fields, starts),
        )

    def errors(self, predict: Any, rollouts: int, horizons: Sequence[int]) -> Errors:
        """Return the errors of rollouts; `predict` returns the next step from the last one."""
        squared, total = dict.fromkeys(horizons, 0.0), dict.fromkeys(horizons, 0.0)
        weights = (self.weights * self.free)[:, None].double()
        for anchor, steps in self.windows.starts("test", rollouts, max(horizons)):
            u = self.u[anchor]
            for step in range(1, steps + 1):
                u = torch.where(self.free[:, None], predict(u), self.u[anchor + step])
                if step in squared:
                    wrong = (u - self.u[anchor + step]).double()
                    squared[step] += float((weights * wrong.square()).sum())
                    total[step] += float(weights.sum()) * u.shape[1]
        return {step: (squared[step] / total[step]) ** 0.5 for step in horizons if total[step]}


class Plain:
    """The peer on a street, with its own scales and a plain training loop."""

    def __init__(self, street: Street, config: Config) -> None:
        self.street, self.config = street, config
        spans = street.windows.spans["train"]
        frames = torch.cat([street.u[span.start : span.stop] for span in spans])
        steps = torch.cat([street.u[span.start : span.stop].diff(dim=0) for span in spans])
        self.mean, self.size = self._moments(frames, street.weights)
        self.step_mean, self.step_size = self._moments(steps, street.weights * street.free)

    @staticmethod
    def _moments(rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        share = (weights / (weights.sum() * len(rows)))[None, :, None]
        mean = (share * rows).sum((0, 1))
        return mean, (share * (rows - mean).square()).sum((0, 1)).sqrt()

    def train(self, seed: int, start: dict[str, Tensor] | None = None) -> PlainNet:
        """Train a network with a seed, and return it.

        `start` are the tensors of an hpcgnn model file to start from, with our noise; with None the
        network starts from its own weights and scales.
        """
        torch.manual_seed(seed)
        street, train, fields = self.street, self.config.train, self.config.fields
        model = self.config.model
        widths = street.static.shape[1] + street.u.shape[2], street.edges.shape[1], 2
        net = PlainNet(widths, model.hidden, model.num_layers)
        if start is not None:
            net.load_state_dict({name: start[our_name(name)] for name in net.state_dict()})
            self.mean, self.size = (start[f"features/frames/{e}"] for e in ("mean", "deviation"))
            scales = (start[f"features/outputs/{each}"] for each in ("mean", "deviation"))
            self.step_mean, self.step_size = scales
        optimizer = torch.optim.Adam(net.parameters(), train.learning_rate)
        least = train.schedule_gamma * train.learning_rate
        schedule = CosineAnnealingLR(optimizer, max(train.epochs - 1, 1), least)
        free, counts = street.free[:, None], (street.weights * street.free)[:, None]
        for epoch in range(train.epochs):
            anchors = street.windows.epoch(seed, epoch).tolist()
            for first in range(0, len(anchors), fields.batch):
                batch = anchors[first : first + fields.batch]
                loss = torch.zeros(())
                for number, anchor in enumerate(batch):
                    drawn = torch.randn(street.u[anchor].shape)
                    if start is not None:
                        key = DropoutKey(seed, (epoch << 32) + (first + number) * fields.unroll)
                        drawn = torch.from_numpy(
                            normal(np.arange(len(drawn)), 2, key.at(PLACES.nodes))
                        )
                    noise = fields.noise * self.size * drawn
                    u = street.u[anchor] + noise * free
                    for step in range(1, fields.unroll + 1):
                        truth = street.u[anchor + step]
                        given, change = self._scaled(net, u)
                        error = given - (truth - u - self.step_mean) / self.step_size
                        share = (counts * error.square()).sum() / (2 * counts.sum())
                        loss = loss + share / (len(batch) * fields.unroll)
                        u = torch.where(free, u + change, truth)
                optimizer.zero_grad()
                loss.backward()
                if train.clip_norm:
                    nn.utils.clip_grad_norm_(net.parameters(), train.clip_norm)
                optimizer.step()
            schedule.step()
        return net

    def _scaled(self, net: PlainNet, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output of the network, and the change of u that it predicts."""
        street = self.street
        rows = torch.cat([street.static, (u - self.mean) / self.size], dim=1)
        given = net(rows, street.index, street.edges)
        return given, given * self.step_size + self.step_mean

    def predictor(self, net: PlainNet) -> Any:
        """Return a function that predicts the next step."""

        def predict(u: Tensor) -> Tensor:
            with torch.no_grad():
                return u + self._scaled(net, u)[1]

        return predict


def our_name(name: str) -> str:
    """Return the name in our model file of a parameter of `PlainNet`."""
    *place, layer, what = name.split(".")
    maps = {"0": "maps.0", "2": "maps.1", "4": "maps.2", "5": "norm"}
    firsts = {"0": "first", "2": "rest.maps.0", "4": "rest.maps.1", "5": "rest.norm"}
    if place[0] == "layers":
        of_edges = place[2] == "edge"
        part = f"layers.{place[1]}.edges" if of_edges else f"layers.{place[1]}.nodes"
        return f"{part}.{(firsts if of_edges else maps)[layer]}.{what}"
    part = {"nodes": "input", "edges": "edge_input", "out": "output"}[place[0]]
    return f"{part}.{maps[layer]}.{what}"


def start_of(options: argparse.Namespace, config: Config, seed: int) -> dict[str, Tensor]:
    """Return the initial tensors of our run: its model file after an epoch with a zero step."""
    from safetensors.torch import load_file  # noqa: PLC0415  (its import costs more than this file)

    still = argparse.Namespace(**vars(options))
    still.words = [*options.words, "train.epochs=1", "train.learning_rate=1e-300"]
    still.folder = options.folder / "start"
    ours(still, config, seed)
    named = load_file(still.folder / f"seed-{seed}" / "model.safetensors")
    return {name: each.double() for name, each in named.items()}


def ours(options: argparse.Namespace, config: Config, seed: int) -> dict[str, Any]:
    """Train our run in a process of its own; return its result."""
    horizons = options.horizons
    words = [
        *(options.recipe, f"graph.store={options.store}", *options.words),
        *(f"train.seeds=[{seed}]", f"run.dir={options.folder / f'seed-{seed}'}", "run.threads=1"),
        f"fields.horizons={list(horizons)}",
        f"fields.rollouts={options.rollouts}",
        "run.save_predictions=false",
    ]
    command = [sys.executable, "-m", "hpcgnn.train", *map(str, words)]
    subprocess.run(command, check=True, capture_output=True)
    summary = json.loads((options.folder / f"seed-{seed}" / "summary.json").read_text())
    rmse = summary["seeds"][0]["rollout"]["test"]["rmse"]["u"]
    numbers = load_numbers(options.folder / f"seed-{seed}" / "model.safetensors")
    errors = {step: rmse[step - 1] for step in horizons}
    trained = summary["epoch_s"]["median"] * config.train.epochs
    return line("ours", seed, errors) | {"parameters": numbers, "train_s": trained}


def load_numbers(path: Path) -> int:
    """Return the number of parameters of a model."""
    from safetensors import safe_open  # noqa: PLC0415  (its import costs more than this file)

    with safe_open(path, "pt") as file:
        shapes = [file.get_slice(key).get_shape() for key in file.keys() if "/" not in key]  # noqa: SIM118
    return sum(int(np.prod(shape)) for shape in shapes)


def line(net: str, seed: int | None, errors: Errors) -> dict[str, Any]:
    """Return a row of the table."""
    return {"net": net, "seed": seed} | {f"after_{step}": each for step, each in errors.items()}


def main() -> None:
    """Print a line for each network and seed, and means with deviations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*", metavar="section.key=value")
    parser.add_argument("--recipe", default="jobs/configs/flow.toml")
    parser.add_argument("--rollouts", type=int, default=3)
    for name, value in (("seeds", "1,2,3"), ("horizons", "1,10,50,100")):
        parser.add_argument(f"--{name}", type=numbers_of, default=numbers_of(value))
    parser.add_argument("--equal", action="store_true", help="start from our weights, in float64")
    parser.add_argument("--json", action="store_true", help="one line of JSON each")
    options = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    if options.equal:
        torch.set_default_dtype(torch.float64)
        options.words.append("train.dtype=float64")
    given = [f"graph.store={options.store}", "run.dir=none", *options.words]
    config = load_config(Path(options.recipe), given)
    street = Street.read(config)
    still = street.errors(lambda u: u, options.rollouts, options.horizons)
    lines = [line("next = last", None, still)]
    plain = Plain(street, config)
    for seed in options.seeds:
        lines.append(ours(options, config, seed))
        began = time.perf_counter()
        net = plain.train(seed, start_of(options, config, seed) if options.equal else None)
        trained = time.perf_counter() - began
        errors = street.errors(plain.predictor(net), options.rollouts, options.horizons)
        size = sum(each.numel() for each in net.parameters())
        lines.append(line(NETS[1], seed, errors) | {"parameters": size, "train_s": trained})
    for net in NETS:
        mine = [each for each in lines if each["net"] == net]
        for what, of in (("mean", fmean), ("deviation", stdev if len(mine) > 1 else None)):
            if of is not None:
                steps = [f"after_{step}" for step in options.horizons]
                lines.append({"net": f"{net}, {what}"} | {k: of(e[k] for e in mine) for k in steps})
    if options.json:
        for each in lines:
            print(json.dumps(each))
        return
    columns: Columns = {"": ("net", text), "seed": ("seed", text), "numbers": ("parameters", count)}
    after = {f"after {step}": (f"after_{step}", "{:.4f}".format) for step in options.horizons}
    print_columns({**columns, **after, "train s": ("train_s", seconds)}, lines)


def numbers_of(words: str) -> tuple[int, ...]:
    """Parse integers separated by commas."""
    return tuple(map(int, words.split(",")))


if __name__ == "__main__":
    main()
