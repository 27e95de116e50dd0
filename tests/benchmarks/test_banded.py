import json
import subprocess
import sys
from pathlib import Path

from hpcgnn.storage import InstanceHeader, InstanceSplit, InstanceWriter
from tests.banded.graphs import NUM_BUCKETS, NUM_FORWARD, random_batch


def test_cases_report_what_they_dropped(tmp_path: Path) -> None:
    path = tmp_path / "programs.h5"
    names = tuple(f"Type{number}" for number in range(NUM_FORWARD))
    header = InstanceHeader(name="toy", edge_names=names, num_buckets=NUM_BUCKETS, steps=2)
    with InstanceWriter(path, header, ["one.py"]) as writer:
        writer.append(random_batch([60, 20, 9, 80], 50, split=InstanceSplit.TRAIN))
    cases = "sparse,banded:8,hybrid:8,banded:128"
    words = ["--store", str(path), "--cases", cases, "--hidden", "8", "--repeat", "1", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_banded", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["propagator"] for each in found] == ["sparse", "banded", "hybrid", "banded"]
    assert [each["dropped_edges"] > 0 for each in found] == [False, True, False, False]
    for each in found:
        assert each["graphs_per_s"] > 0
        assert (each["ranks"], each["graphs_per_supergraph"]) == (1, 4)
        assert each["nodes_per_supergraph"] == 169
