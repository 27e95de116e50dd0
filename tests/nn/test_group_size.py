"""The learned size of neighbour groups, on made-up calibrations."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import train_group_size
from benchmarks.group_rules import save_rule
from benchmarks.train_group_size import read_samples, train
from hpcgnn.errors import InputError
from hpcgnn.kernels.cuda.groups import PAPER_RULE, GroupSizeRule
from hpcgnn.nn.group_size import ClassifiedPattern, GroupSizeNet, LearnedSize, load_group_rule

LADDER = (1, 4, 16)


def calibration(path: Path) -> Path:
    """Write times for which sparse graphs need small groups, and dense ones large groups."""
    graphs = []
    for scale in (4, 5):
        for factor, best in ((1, 1), (6, 16)):
            for width in (16, 64):
                seconds = {str(size): 1.0 + (size != best) for size in LADDER}
                graph = f"rmat:{scale}:{factor}"
                graphs.append({"graph": graph, "width": width, "seconds": seconds})
    rule = GroupSizeRule(1.0, 0.0, 0.0, 0.5)
    save_rule(rule, path, device="made up", graphs=graphs)
    return path


def test_learns_and_comes_back_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured, output = calibration(tmp_path / "rule.json"), tmp_path / "sizes.safetensors"
    words = ["x", "--calibration", str(measured), "--output", str(output), "--epochs", "60"]
    monkeypatch.setattr("sys.argv", words)
    train_group_size.main()
    costs = json.loads(capsys.readouterr().out)["slowdown"]
    assert costs["learned"] == 1.0
    rule = load_group_rule(str(output))
    for sample in read_samples(measured):
        assert sample.cost(rule) == 1.0


def test_training_is_the_same_every_time(tmp_path: Path) -> None:
    samples = read_samples(calibration(tmp_path / "rule.json"))
    first, second = (train(samples, 2, seed=3).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_patterns_of_any_shape() -> None:
    """The logits do not depend on the order of the vertices; empty patterns also have a size."""
    indptr, indices = np.array([0, 2, 2, 5]), np.array([0, 3, 1, 2, 3], np.int32)
    torch.manual_seed(1)
    net = GroupSizeNet(LADDER)
    order = np.array([2, 0, 3, 1], np.int32)
    whole, other = (
        net(ClassifiedPattern.of(indptr, each, 4), 8) for each in (indices, order[indices])
    )
    torch.testing.assert_close(whole, other)
    assert LearnedSize(net).choose(np.zeros(4, np.int64), np.zeros(0, np.int32), 4, 8) == 1


def test_rules_by_name(tmp_path: Path) -> None:
    assert load_group_rule("paper") is PAPER_RULE
    assert load_group_rule("48").size == 48
    star = np.array([0, 3, 3, 3, 3], np.int64), np.array([1, 2, 3], np.int32)
    learned = load_group_rule("learned")
    assert learned.choose(*star, 4, 64) in learned.net.ladder
    assert load_group_rule(str(calibration(tmp_path / "r.json"))).size(10, 40) == 3
    with pytest.raises(InputError, match="give a number, measured, learned, paper, or a file"):
        load_group_rule("0")
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not the weights of a group-size model"):
        load_group_rule(str(tmp_path / "bad.safetensors"))
