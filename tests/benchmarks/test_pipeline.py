"""The benchmark of the whole pipeline: its fits, and a small run."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import bench_pipeline


def test_exponents_leave_start_up_out() -> None:
    cases = [
        {"scale": scale, "step": "cut", "edges": 10**scale, "cpu_s": 7 + cost, "wall_s": 5.0}
        for scale, cost in ((1, 0), (4, 2 * 10**6), (5, 2 * 10**7.5))
    ]
    assert bench_pipeline.exponent(cases, "cut", "cpu_s") == pytest.approx(1.5)
    assert bench_pipeline.exponent(cases, "cut", "wall_s") is None
    assert bench_pipeline.exponent(cases, "sewn", "cpu_s") is None


def test_memory_of_children_is_seen() -> None:
    code = "import subprocess, sys; x = bytearray(90 << 20); subprocess.run(['sleep', '200'])"
    with subprocess.Popen(["sh", "-c", f'{sys.executable} -c "{code}"; true']) as shell:
        while len(found := bench_pipeline.descendants(shell.pid)) < 3:
            time.sleep(0.05)
        assert max(map(bench_pipeline.high_water, found)) > 90 << 20
        for pid in reversed(found):
            subprocess.run(["kill", str(pid)], check=False)
    assert bench_pipeline.high_water(shell.pid) == 0


@pytest.mark.slow
def test_a_run(tmp_path: Path) -> None:
    words = ["--scales", "7", "--ranks", "2", "--parts", "8", "--models", "gcn-16", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_pipeline", *words, "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["step"] for each in steps] == ["generate", "partition", "gcn-16"]
    assert all(each["cpu_s"] > 0 and each["peak_bytes"] > 50 << 20 for each in steps)
    assert steps[1]["rows"]["parts"] == 8
    assert steps[2]["sent_bytes"] > 0
    assert list(tmp_path.iterdir()) == []
