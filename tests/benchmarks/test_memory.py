"""The memory benchmark prints what it measured; the values depend on the machine."""

import json

import pytest

from tests.conftest import MpiRun

KEYS = "model ranks schedule prefetch peak_rss_bytes idle_rss_bytes ghost_bytes_max epoch_s"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sage", "gat"])
def test_one_object_a_launch(mpi_run: MpiRun, model: str) -> None:
    case = ("--model", model, "--graph", "rmat:8:8", "--epochs", 1, "--compare", "--json")
    schedule = ("--schedule", "sequential", "--prefetch", 1)
    ended = mpi_run(2, "-m", "benchmarks.bench_memory", *case, *schedule)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert set(KEYS.split()) <= set(found)
    assert (found["ranks"], found["schedule"], found["prefetch"]) == (2, "sequential", 1)
    assert found["peak_rss_bytes"] >= found["idle_rss_bytes"] > 0
    assert found["ghost_bytes_max"] > 0
    assert found["epoch_ratio"] == pytest.approx(found["epoch_s"] / found["resident_epoch_s"])
