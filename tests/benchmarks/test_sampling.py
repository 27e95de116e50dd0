"""The sampling benchmark prints what it measured; speeds depend on the machine."""

import json

import pytest

from benchmarks import bench_sampling

KEYS = "sampler graph what threads subgraphs_per_s nodes_per_s ns_per_visit pool_bytes"


def test_one_object_a_case(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--graphs", "rmat:8:8", "--walkers", "10", "--budget", "60")
    short = ("--count", "3", "--rounds", "1", "--threads", "1,2", "--json")
    monkeypatch.setattr("sys.argv", ["bench_sampling", *small, *short])
    bench_sampling.main()
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(set(KEYS.split()) <= set(each) for each in found)
    assert all(each["subgraphs_per_s"] > 0 and each["nodes_per_s"] > 0 for each in found)
    cases = {(each["sampler"], each["what"], each["threads"]) for each in found}
    assert ("sums", "visits", 1) in cases
    assert ("frontier", "subgraphs", 2) in cases
