"""A search as an array of jobs, on a real Slurm over two emulated hosts."""

import json
from pathlib import Path

import pytest

from hpcgnn.analysis import search
from hpcgnn.storage import InstanceHeader, InstanceSplit, InstanceWriter
from tests.slurm.cluster import Cluster
from tests.support.supergraphs import NUM_BUCKETS, NUM_FORWARD, random_batch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONFIG = """
[programs]
hidden = 8
nodes = 100
supergraphs = 2
[train]
task = "programs"
epochs = 2
"""


@pytest.fixture
def store(cluster: Cluster) -> Path:
    path = cluster.directory / "programs.h5"
    names = tuple(f"Type{number}" for number in range(NUM_FORWARD))
    header = InstanceHeader(name="toy", edge_names=names, num_buckets=NUM_BUCKETS, steps=2)
    with InstanceWriter(path, header, ["one.py"]) as writer:
        writer.append(random_batch([60, 20, 9, 80], 50, split=InstanceSplit.TRAIN))
        writer.append(random_batch([6, 9], 5, split=InstanceSplit.VALID))
    return path


def test_each_task_trains_with_its_draw(
    cluster: Cluster, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, folder = cluster.directory / "search.toml", cluster.directory / "search"
    config.write_text(CONFIG)
    words = (folder, "--large-batch", config, f"graph.store={store}", "train.clip_norm=0.5")
    job = cluster.submit("search.sbatch", *words, options=("--array=0-1",))
    for task in (0, 1):
        cluster.wait(f"{job}_{task}", "COMPLETED")
    runs = [str(folder / f"draw-{task:05d}") for task in (0, 1)]
    search.main([*runs, "--json"])
    found = json.loads(capsys.readouterr().out)["runs"]
    assert all(each["finished"] for each in found)
    settings = [each["settings"] for each in found]
    assert "train.clip_norm" not in settings[0]
    assert settings[0] != settings[1]
    assert "train.optimizer" not in settings[0]
