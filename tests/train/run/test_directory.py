"""The files of a run: what a checkpoint covers and the metrics lack is counted, not listed."""

import json
from pathlib import Path

import pytest

from hpcgnn.config.file import load_config
from hpcgnn.train.run.directory import RunDirectory


@pytest.mark.parametrize(
    ("lines", "done", "missing"),
    [
        (range(5), 5, None),
        (range(7), 5, None),
        ([0, 1, 4], 5, (2, 2, 3)),
        ([], 3, (3, 0, 2)),
        (range(5), 2**31 - 1, (2**31 - 6, 5, 2**31 - 2)),
    ],
)
def test_missing_epochs(
    tmp_path: Path, lines: list[int], done: int, missing: tuple[int, int, int] | None
) -> None:
    config = load_config(None, ["graph.store=g.h5", f"run.dir={tmp_path}/run"])
    directory = RunDirectory(tmp_path / "run")
    with directory.reserve():
        directory.start(config)
        rows = [{"seed": 1, "epoch": epoch} for epoch in lines]
        metrics = directory.path / "metrics.jsonl"
        metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = directory.resume(config, {1: done, 2: 0})
    assert found == ({} if missing is None else {1: missing})
    kept = [json.loads(line)["epoch"] for line in metrics.read_text().splitlines()]
    assert kept == [epoch for epoch in lines if epoch < done]
