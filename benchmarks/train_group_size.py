"""Train the classifier of group sizes on the measurements of a calibration.

``python -m benchmarks.train_group_size --calibration RULE.json --output SIZES.safetensors`` reads
the seconds of every graph and size written by `benchmarks.calibrate_group_size`, makes the graphs
again, and trains a classifier whose targets are the sizes near the fastest. Every fifth graph is
held out; the printed JSON has the cost of each rule on these: seconds over the best size's, as a
geometric mean. ``train.group_size=SIZES.safetensors`` uses the result.
"""

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.group_rules import TIGR_SIZE, dimension_rule
from benchmarks.spmm_graphs import Matrix, load_matrix
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json, report
from hpcgnn.errors import InputError
from hpcgnn.kernels.cuda.groups import (
    MEASURED_RULE,
    PAPER_RULE,
    FixedSize,
    GroupRule,
    GroupSizeRule,
)
from hpcgnn.nn.group_size import ClassifiedPattern, GroupSizeNet, LearnedSize

HELD_OUT = 5
# The target of a size this much slower than the best is 1/e of the best's.
TOLERANCE = 0.05


@dataclass(frozen=True, eq=False)
class Sample:
    """A graph, the width of its product, and seconds by size."""

    matrix: Matrix
    width: int
    seconds: dict[int, float]

    @property
    def slowdowns(self) -> dict[int, float]:
        """Seconds of each size over those of the best."""
        least = min(self.seconds.values())
        return {size: each / least for size, each in self.seconds.items()}

    def cost(self, rule: GroupRule) -> float:
        """Return the slowdown of the size chosen by a rule, or of the nearest measured size."""
        matrix = self.matrix
        size = rule.choose(matrix.indptr, matrix.indices, matrix.num_nodes, self.width)
        near = min(self.seconds, key=lambda each: abs(math.log(each / size)))
        return self.slowdowns[near]


def main() -> None:
    options = parse_arguments()
    samples = read_samples(options.calibration)
    held_out = samples[HELD_OUT - 1 :: HELD_OUT]
    if len(samples) - len(held_out) < HELD_OUT:
        raise InputError(f"{options.calibration}: {len(samples)} graphs are too few to learn from")
    trained = [each for each in samples if each not in held_out]
    net = train(trained, options.epochs, options.seed)
    costs = {
        name: statistics.geometric_mean(costs)
        for name, costs in compare(net, held_out, options.calibration).items()
    }
    facts: dict[str, Any] = {"samples": len(samples), "held_out": len(held_out), "slowdown": costs}
    net.save(
        options.output, facts | {"device": json.loads(options.calibration.read_text())["device"]}
    )
    print_json({"output": str(options.output), **facts})


def parse_arguments() -> argparse.Namespace:
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.train_group_size",
        description="Train the learned size of neighbour groups on a calibration.",
    )
    add = cli.add_argument
    add("--calibration", type=Path, required=True, metavar="RULE.json", help="the calibration")
    add("--output", type=Path, required=True, metavar="SIZES.safetensors", help="where to write")
    add("--epochs", type=int, default=200, help="passes over the graphs (default: 200)")
    add("--seed", type=int, default=1, help="seed of the initial weights (default: 1)")
    return cli.parse_args()


def read_samples(path: Path) -> list[Sample]:
    """Return the measurements of a calibration, with its graphs made again."""
    try:
        found = json.loads(path.read_text())
        records = [(r["graph"], r["width"], r["seconds"]) for r in found["graphs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a calibration of group sizes ({error})") from error
    matrices = {name: load_matrix(name) for name, _, _ in records}
    return [
        Sample(matrices[name], width, {int(size): each for size, each in seconds.items()})
        for name, width, seconds in records
    ]


def train(samples: Sequence[Sample], epochs: int, seed: int) -> GroupSizeNet:
    """Return a classifier of the samples; sizes a few per cent slower than the best also count."""
    torch.manual_seed(seed)
    net = GroupSizeNet(sorted(samples[0].seconds))
    patterns = {
        each.matrix.name: ClassifiedPattern.of(
            each.matrix.indptr, each.matrix.indices, each.matrix.num_nodes
        )
        for each in samples
    }
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for epoch in range(epochs):
        total = 0.0
        for place in torch.randperm(len(samples)).tolist():
            sample = samples[place]
            slowdowns = torch.tensor([sample.slowdowns[size] for size in net.ladder])
            wanted = (-(slowdowns - 1) / TOLERANCE).softmax(0)
            logits = net(patterns[sample.matrix.name], sample.width)
            loss = functional.cross_entropy(logits, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        if (epoch + 1) % 50 == 0:
            report(f"epoch {epoch + 1}: cross entropy {total / len(samples):.3f}")
    return net.eval()


def compare(
    net: GroupSizeNet, samples: Sequence[Sample], calibration: Path
) -> dict[str, list[float]]:
    """Return the slowdowns of every rule on the samples."""
    rules = {
        "learned": LearnedSize(net),
        "regression": GroupSizeRule.load(calibration),
        "measured": MEASURED_RULE,
        "paper": PAPER_RULE,
        "tigr": FixedSize(TIGR_SIZE),
    }
    found = {name: [each.cost(rule) for each in samples] for name, rule in rules.items()}
    advisor = [each.cost(FixedSize(dimension_rule(each.width))) for each in samples]
    return found | {"gnnadvisor": advisor}


if __name__ == "__main__":
    run_command("train_group_size", main)
