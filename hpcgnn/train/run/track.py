"""``run.track``: the metrics of a run for the programs that people watch runs with.

``metrics.jsonl`` is what a run goes on from; these are copies of it, made by rank 0. Where one
fails, training goes on without it.
"""

import contextlib
import csv
import dataclasses
import importlib.util
import io
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from hpcgnn.config.config import Config
from hpcgnn.config.file import dump_toml
from hpcgnn.console import warn
from hpcgnn.errors import InputError, one_line
from hpcgnn.train.run.directory import RunDirectory

_PROJECT = "hpcgnn"


class Tracker(Protocol):
    """Takes the metrics of one seed after the other."""

    def __init__(self, config: Config, directory: RunDirectory) -> None: ...

    def begin(self, seed: int, rows: list[dict[str, Any]]) -> None:
        """Begin a seed, or go on with it behind its `rows` of earlier starts."""

    def add(self, row: dict[str, Any]) -> None:
        """Take the line of an epoch, as in ``metrics.jsonl``."""

    def end(self, *, finished: bool) -> None:
        """End the seed; one that is not `finished` goes on at the next start."""


class _Csv:
    """``metrics.csv``: a line for each epoch of all seeds, empty where nothing was measured."""

    def __init__(self, config: Config, directory: RunDirectory) -> None:
        self._directory, self._path = directory, directory.path / "metrics.csv"
        self._columns: list[str] = []

    def begin(self, seed: int, rows: list[dict[str, Any]]) -> None:
        self._write_all()

    def add(self, row: dict[str, Any]) -> None:
        if not row.keys() <= set(self._columns):
            # The first evaluation brings columns that epochs before it do not have.
            self._write_all()
            return
        with self._path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def end(self, *, finished: bool) -> None:
        del finished

    def _write_all(self) -> None:
        rows = self._directory.read_metrics()
        self._columns = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        self._directory.write_text(self._path, text.getvalue())


class _TensorBoard:
    """``tensorboard/seed-S``: event files."""

    def __init__(self, config: Config, directory: RunDirectory) -> None:
        self._config, self._folder = config, directory.path / "tensorboard"

    def begin(self, seed: int, rows: list[dict[str, Any]]) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        # What was written of later epochs, behind the checkpoint, is not shown.
        step = rows[-1]["epoch"] + 1 if rows else 0
        self._writer = SummaryWriter(str(self._folder / f"seed-{seed}"), purge_step=step)
        if not rows:
            self._writer.add_text("configuration", f"```\n{dump_toml(self._config)}\n```", 0)

    def add(self, row: dict[str, Any]) -> None:
        for name, value in _values(row).items():
            self._writer.add_scalar(name, value, row["epoch"])

    def end(self, *, finished: bool) -> None:
        self._writer.close()


class _MLflow:
    """A run for each seed where ``MLFLOW_TRACKING_URI`` says, else in ``mlflow.db``."""

    def __init__(self, config: Config, directory: RunDirectory) -> None:
        # The ranks wait for rank 0: a server that does not answer must not hold them for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        from mlflow.tracking import MlflowClient  # noqa: PLC0415

        self._config, self._directory = config, directory
        address = f"sqlite:///{(directory.path / 'mlflow.db').absolute()}"
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or address)

    def begin(self, seed: int, rows: list[dict[str, Any]]) -> None:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        identities = _TrackedRuns(self._directory, "mlflow")
        self._run = identities.get(seed) if rows else None
        if self._run is not None:
            self._client.update_run(self._run, status="RUNNING")
            return
        created = self._client.create_run(experiment, run_name=_name(self._directory, seed))
        self._run = created.info.run_id
        identities.put(seed, self._run)
        for key, value in _settings(self._config).items():
            self._client.log_param(self._run, key, value)

    def add(self, row: dict[str, Any]) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, row["epoch"]) for name, value in _values(row).items()]
        self._client.log_batch(self._run, metrics)

    def end(self, *, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "SCHEDULED")


class _WandB:
    """A run for each seed, by the settings in the environment (``WANDB_MODE=offline``)."""

    def __init__(self, config: Config, directory: RunDirectory) -> None:
        self._config, self._directory = config, directory

    def begin(self, seed: int, rows: list[dict[str, Any]]) -> None:
        import wandb  # noqa: PLC0415

        identities = _TrackedRuns(self._directory, "wandb")
        before = identities.get(seed) if rows else None
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            group=self._directory.path.name,
            name=_name(self._directory, seed),
            dir=str(self._directory.path),
            config=_settings(self._config),
            id=before,
            resume="must" if before else None,
            settings=wandb.Settings(console="off", quiet=True, init_timeout=60),
        )
        identities.put(seed, self._run.id)
        self._run.define_metric("*", step_metric="epoch")

    def add(self, row: dict[str, Any]) -> None:
        self._run.log({"epoch": row["epoch"], **_values(row)})

    def end(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


class _TrackedRuns:
    """Which runs of a tracker the seeds have, for a start that goes on: ``tracked.json``."""

    def __init__(self, directory: RunDirectory, tracker: str) -> None:
        self._directory, self._tracker = directory, tracker
        self._path = directory.path / "tracked.json"

    def get(self, seed: int) -> str | None:
        identity = self._read().get(self._tracker, {}).get(str(seed))
        return identity if isinstance(identity, str) else None

    def put(self, seed: int, run: str) -> None:
        content = self._read()
        content.setdefault(self._tracker, {})[str(seed)] = run
        self._directory.write_text(self._path, json.dumps(content, indent=1) + "\n")

    def _read(self) -> dict[str, dict[str, str]]:
        if not self._path.is_file():
            return {}
        return json.loads(self._path.read_text(encoding="utf-8"))


_KINDS: Mapping[str, type[Tracker]] = MappingProxyType(
    {"csv": _Csv, "tensorboard": _TensorBoard, "mlflow": _MLflow, "wandb": _WandB}
)


def check_trackers(names: tuple[str, ...]) -> None:
    """See that the packages of ``run.track`` are there.

    Raises
    ------
    InputError
        Naming one that is not.
    """
    for name in names:
        if name != "csv" and importlib.util.find_spec(name) is None:
            raise InputError(
                f"run.track={name}: that package is not installed; pip install {name}, or leave it "
                "out (run.track=csv needs none)"
            )


class Tracking:
    """All trackers of a run, on rank 0; elsewhere none."""

    def __init__(self, config: Config, directory: RunDirectory, *, active: bool) -> None:
        self._directory = directory
        self._trackers: dict[str, Tracker] = {}
        for name in config.run.track if active else ():
            with self._guarded(name):
                self._trackers[name] = _KINDS[name](config, directory)

    def begin(self, seed: int) -> None:
        """Begin or go on with a seed."""
        rows = self._directory.read_metrics() if self._trackers else []
        of_seed = [row for row in rows if row["seed"] == seed]
        for name, tracker in list(self._trackers.items()):
            with self._guarded(name):
                tracker.begin(seed, of_seed)

    def add(self, row: dict[str, Any]) -> None:
        """Give an epoch's line to all."""
        for name, tracker in list(self._trackers.items()):
            with self._guarded(name):
                tracker.add(row)

    def end(self, *, finished: bool) -> None:
        """End the seed."""
        for name, tracker in list(self._trackers.items()):
            with self._guarded(name):
                tracker.end(finished=finished)

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Leave out a tracker that fails, whatever its package raises."""
        try:
            yield
        except Exception as error:
            self._trackers.pop(name, None)
            fault = f"{type(error).__name__}: {one_line(error)}"
            warn(f"run.track={name} fails ({fault}); the run goes on without it")


def _name(directory: RunDirectory, seed: int) -> str:
    return f"{Path(directory.path).absolute().name} seed {seed}"


def _values(row: dict[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in row.items() if key not in ("seed", "epoch")}


def _settings(config: Config) -> dict[str, Any]:
    """Return the configuration by ``section.key``."""
    return {
        f"{section}.{key}": value
        for section, values in dataclasses.asdict(config).items()
        for key, value in values.items()
    }
