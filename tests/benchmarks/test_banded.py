import json
from pathlib import Path
from typing import Any

from mpi4py import MPI

import pytest

from benchmarks import bench_banded, supernodes
from hpcgnn.storage import InstanceHeader, InstanceSplit, InstanceWriter
from tests.support.supergraphs import NUM_BUCKETS, NUM_FORWARD, random_batch


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return `run(main, *words)`, which runs a benchmark and returns the objects it prints."""

    def call(main: Any, *words: object) -> list[dict[str, Any]]:
        monkeypatch.setattr("sys.argv", ["benchmark", *map(str, words), "--json"])
        main(MPI.COMM_SELF)
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return call


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "programs.h5"
    names = tuple(f"Type{number}" for number in range(NUM_FORWARD))
    header = InstanceHeader(name="toy", edge_names=names, num_buckets=NUM_BUCKETS, steps=2)
    with InstanceWriter(path, header, ["one.py"]) as writer:
        writer.append(random_batch([60, 20, 9, 80], 50, split=InstanceSplit.TRAIN))
    return path


def test_supernodes_shrink_what_is_dropped(store: Path, run: Any) -> None:
    words = ("--store", store, "--blocks", "8", "--supernodes", "0,4,32")
    none, some, many = run(supernodes.main, *words)
    assert none["graphs"] == 4
    assert none["dropped"] > some["dropped"] > many["dropped"]
    assert (none["mean_supernodes"], none["beside"]) == (0, 0)
    assert many["fit"] > none["fit"]


def test_cases_report_what_they_dropped(store: Path, run: Any) -> None:
    cases = "sparse,banded:8,hybrid:8,banded:128,banded:8:16"
    words = ("--cases", cases, "--hidden", "8", "--repeat", "1")
    found = run(bench_banded.main, "--store", store, *words)
    assert [each["propagator"] for each in found] == [
        "sparse",
        "banded",
        "hybrid",
        "banded",
        "banded",
    ]
    assert [each["dropped_edges"] > 0 for each in found] == [False, True, False, False, True]
    assert found[4]["dropped_edges"] < found[1]["dropped_edges"]
    assert [each["supernode_edges"] > 0 for each in found] == [False] * 4 + [True]
    for each in found:
        assert each["graphs_per_s"] > 0
        assert (each["ranks"], each["graphs_per_supergraph"]) == (1, 4)
        assert each["nodes_per_supergraph"] == 169
