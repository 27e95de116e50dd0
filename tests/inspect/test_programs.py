import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcgnn.inspect import inspect_path
from hpcgnn.inspect.show import show
from hpcgnn.storage import CANDIDATE_DTYPE, InstanceHeader, InstanceSplit, InstanceWriter
from tests.support.run_here import run_here
from tests.support.supergraphs import NUM_BUCKETS, NUM_FORWARD, random_batch


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "programs.h5"
    names = tuple(f"Type{number}" for number in range(NUM_FORWARD))
    header = InstanceHeader(name="toy", edge_names=names, num_buckets=NUM_BUCKETS, steps=8)
    with InstanceWriter(path, header, ["one.py"]) as writer:
        writer.append(random_batch([4, 300, 700], 400))
        writer.append(random_batch([9], 3, split=InstanceSplit.UNSEEN))
    return path


def test_distributions_and_shares(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspect_path(store, verify=True, quiet=True)
    assert (found["kind"], found["num_graphs"], found["num_nodes"]) == ("programs", 4, 1013)
    assert found["below"] == {"128": 0.5, "256": 0.5, "512": 1.0, "1024": 1.0}
    assert [each["graphs"] for each in found["splits"]] == [3, 0, 0, 1]
    assert found["distributions"]["nodes"]["max"] == 700
    show(found)
    printed = capsys.readouterr().out
    assert "50.0 %" in printed
    assert "unseen" in printed


def test_guesses(tmp_path: Path) -> None:
    batch = random_batch([9, 9], 3)
    batch.graphs["num_candidates"], batch.graphs["label"] = [2, 3], [0, 1]
    candidates = np.zeros(5, CANDIDATE_DTYPE)
    candidates["num_uses"], candidates["distance"] = [5, 1, 2, 2, 7], [3, 3, 9, 1, 4]
    path = tmp_path / "programs.h5"
    header = InstanceHeader(
        name="toy", edge_names=("A", "B", "C"), num_buckets=NUM_BUCKETS, steps=8
    )
    with InstanceWriter(path, header, ["one.py"]) as writer:
        writer.append(replace(batch, candidates=candidates))
    train = inspect_path(path, verify=False, quiet=True)["splits"][0]
    assert train["chance"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert (train["most_used"], train["least_used"], train["nearest"]) == (0.5, 0.25, 0.75)


def test_command(store: Path) -> None:
    assert json.loads(run_here("inspect", store, "--json").stdout)["steps"] == 8
