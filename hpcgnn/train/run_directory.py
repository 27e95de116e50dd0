"""The run directory: what a run writes beside its checkpoints, by rank 0 only."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from hpcgnn.errors import InputError
from hpcgnn.train.config import Config
from hpcgnn.train.config_file import dump_toml, load_config

__all__ = ["RunDirectory"]

_FREE_SECTIONS = ("run", "trace", "exchange")


class RunDirectory:
    """Paths and files of one run.

    Not collective. Methods raise `InputError` where the directory does not take a file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.traces = self.path / "trace"
        self.predictions = self.path / "predictions.h5"
        self._metrics = self.path / "metrics.jsonl"
        self._config = self.path / "config.toml"
        self._summary = self.path / "summary.json"

    def create(self) -> None:
        """Make the directory and see that it can be written."""
        try:
            for directory in (self.checkpoints, self.traces):
                directory.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".probe-{os.getpid()}"
            probe.write_bytes(b"x")
            probe.unlink()
        except OSError as error:
            raise InputError(
                f"run.dir {self.path}: {error.strerror}; choose a directory that can be written"
            ) from error

    def start(self, config: Config) -> None:
        """Begin a run: write the resolved configuration and drop the results of an earlier one."""
        for file in (self._metrics, self._summary, self.predictions):
            file.unlink(missing_ok=True)
        for trace in self.traces.glob("rank*.jsonl"):
            trace.unlink()
        self._write(self._config, dump_toml(config))

    def resume(self, config: Config, epochs_done: dict[int, int]) -> None:
        """Continue a run: check that it is the same, and cut the metrics back to the checkpoint.

        Parameters
        ----------
        config
            The new configuration; only where and how it runs may differ.
        epochs_done
            Epochs that the checkpoints cover, by seed.
        """
        self._check_same(config)
        kept = [
            json.dumps(row) + "\n"
            for row in self.read_metrics()
            if row["epoch"] < epochs_done.get(row["seed"], 0)
        ]
        self._write(self._metrics, "".join(kept))
        self._write(self._config, dump_toml(config))

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add the line of an epoch."""
        try:
            with self._metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise InputError(f"{self._metrics}: {error.strerror}; free space and resume") from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the lines written so far; a last line cut short by a crash is left out."""
        rows: list[dict[str, Any]] = []
        if not self._metrics.is_file():
            return rows
        lines = self._metrics.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                if number < len(lines):
                    raise InputError(
                        f"{self._metrics} line {number} is not JSON; mend or remove that line"
                    ) from error
        return rows

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json."""
        self._write(self._summary, json.dumps(summary, indent=1) + "\n")

    def _check_same(self, config: Config) -> None:
        if not self._config.is_file():
            raise InputError(
                f"{self.path} has checkpoints but no config.toml; use another run.dir, or "
                "run.resume=never to start over"
            )
        before = load_config(self._config)
        for section in dataclasses.fields(Config):
            if section.name in _FREE_SECTIONS:
                continue
            old, new = getattr(before, section.name), getattr(config, section.name)
            for key in (each.name for each in dataclasses.fields(old)):
                may_change = (section.name, key) == ("graph", "store") or (
                    (section.name, key) == ("train", "epochs") and len(config.train.seeds) == 1
                )
                if getattr(old, key) != getattr(new, key) and not may_change:
                    raise InputError(
                        f"{section.name}.{key} = {getattr(new, key)!r}, but the run in {self.path} "
                        f"has {getattr(old, key)!r}: set it back, use another run.dir, or "
                        "run.resume=never to start over"
                    )

    def _write(self, path: Path, text: str) -> None:
        partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise InputError(f"{path}: {error.strerror}; free space or change run.dir") from error
