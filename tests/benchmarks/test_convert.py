"""The benchmark of conversion, on a few edges."""

import json

import pytest

from benchmarks import bench_convert


def test_a_case_is_measured(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--edges", "0.002", "--nodes", "0.5", "--memory", "16", "--json"]
    monkeypatch.setattr("sys.argv", ["bench_convert", *words])
    bench_convert.main()
    (found,) = json.loads(capfd.readouterr().out)
    assert found["num_edges"] == 2000
    assert 800 < found["num_nodes"] < 1000
    assert found["cpu_s"] > found["read_cpu_s"] > 0
    assert found["peak_mib"] > 20
