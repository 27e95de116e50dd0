"""The files of a run: missing lines of metrics, and the settings that make another run."""

import contextlib
import errno
import json
from pathlib import Path

import pytest

from hpcgnn.config.file import load_config
from hpcgnn.errors import InputError
from hpcgnn.train.run.directory import RunDirectory, check_same_run


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
        directory.start()
        rows = [{"seed": 1, "epoch": epoch} for epoch in lines]
        metrics = directory.path / "metrics.jsonl"
        metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = directory.resume(config, config, {1: done, 2: 0})
    assert found == ({} if missing is None else {1: missing})
    kept = [json.loads(line)["epoch"] for line in metrics.read_text().splitlines()]
    assert kept == [epoch for epoch in lines if epoch < done]


def test_a_run_that_cannot_be_written_keeps_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    config = load_config(None, ["graph.store=g.h5", f"run.dir={tmp_path}/run"])
    directory = RunDirectory(tmp_path / "run")
    with directory.reserve():
        monkeypatch.setattr(Path, "unlink", refuse)
        with pytest.raises(InputError, match="run: Permission denied; make it writable, or"):
            directory.resume(config, config, {})


NORM = ("model.norm=batch",)


@pytest.mark.parametrize(
    ("words", "change", "counts"),
    [
        ((), "sampling.budget=9", True),
        ((), "links.width=3", True),
        ((), "graphs.width=3", True),
        ((), "programs.hidden=3", True),
        (NORM, "exchange.active_sets=true", True),
        ((), "exchange.active_sets=true", False),
        (NORM, "exchange.active_sets=false", False),
        ((*NORM, "model.num_layers=1"), "exchange.active_sets=true", False),
        ((*NORM, "train.task=sampled"), "exchange.active_sets=true", False),
        ((), "exchange.method=joint", False),
    ],
)
def test_an_ended_run_is_of_one_configuration(
    tmp_path: Path, words: tuple[str, ...], change: str, counts: bool
) -> None:
    usual = ["graph.store=g.h5", f"run.dir={tmp_path}/run", "run.save_predictions=false", *words]
    before, now = load_config(None, usual), load_config(None, [*usual, change])
    directory = RunDirectory(tmp_path / "run")
    with directory.reserve():
        directory.start()
        directory.write_config(before)
        directory.write_summary({"epochs": 1})
        assert directory.past(before).summary == {"epochs": 1}
        assert directory.past(now).summary == (None if counts else {"epochs": 1})
    told = pytest.raises(InputError, match=f"^{change.partition('=')[0]} = ")
    with told if counts else contextlib.nullcontext():
        check_same_run(before, now, directory.path)


@pytest.mark.parametrize("name", ["trace", "checkpoints"])
def test_a_folder_that_is_a_link_is_not_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "other")
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(InputError, match=f"{name} is a link"), directory.reserve():
        pass
    assert not [*(tmp_path / "other").iterdir()]


def test_a_log_that_is_a_link_is_not_written(tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("mine\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.txt").symlink_to(other)
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(InputError, match=r"log\.txt is a link"), directory.reserve():
        pass
    assert other.read_text() == "mine\n"
