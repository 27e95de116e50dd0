"""``run.track``: copy the metrics of a run to experiment trackers.

A run resumes from ``metrics.jsonl``; these are copies of it, made by rank 0. If a tracker fails,
training goes on without it.
"""

import csv
import dataclasses
import importlib.util
import io
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from hpcgnn.config.config import Config
from hpcgnn.config.file import dump_toml
from hpcgnn.console import warn
from hpcgnn.errors import InputError, one_line
from hpcgnn.train.run.directory import RunDirectory

_PROJECT = "hpcgnn"

Row: TypeAlias = dict[str, Any]
"""The line of an epoch, as in ``metrics.jsonl``."""


class Tracker(ABC):
    """Receives the metrics of one seed after the other."""

    def __init__(self, config: Config, directory: RunDirectory) -> None:
        self.config, self.directory = config, directory

    @abstractmethod
    def begin(self, seed: int, rows: list[Row], run: str | None) -> str | None:
        """Begin a seed, or continue it after the `rows` of earlier sessions.

        `run` is the value that `begin` returned in the session that this one continues.
        """

    @abstractmethod
    def add(self, row: Row) -> None:
        """Add the line of an epoch."""

    def end(self, *, finished: bool) -> None:  # noqa: B027 - files need no end
        """End the seed; one that is not `finished` continues in the next session."""

    def name_of(self, seed: int) -> str:
        """Return a readable name for a seed's run."""
        return f"{self.directory.path.absolute().name} seed {seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration by ``section.key``."""
        sections = dataclasses.asdict(self.config).items()
        return {f"{section}.{key}": v for section, table in sections for key, v in table.items()}


class _Csv(Tracker):
    """``metrics.csv``: a line per epoch of all seeds; values not measured are empty."""

    def begin(self, seed: int, rows: list[Row], run: str | None) -> None:
        self._path = self.directory.path / "metrics.csv"
        self._write_all()

    def add(self, row: Row) -> None:
        if not row.keys() <= set(self._columns):
            # The first evaluation brings columns that epochs before it do not have.
            self._write_all()
            return
        with self._path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def _write_all(self) -> None:
        rows = self.directory.read_metrics()
        self._columns = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        self.directory.write_text(self._path, text.getvalue())


class _TensorBoard(Tracker):
    """TensorBoard event files in ``tensorboard/seed-S``."""

    def begin(self, seed: int, rows: list[Row], run: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        # What was written of later epochs, behind the checkpoint, is not shown.
        step = rows[-1]["epoch"] + 1 if rows else 0
        folder = self.directory.path / "tensorboard" / f"seed-{seed}"
        self._writer = SummaryWriter(str(folder), purge_step=step)
        if not rows:
            self._writer.add_text("configuration", f"```\n{dump_toml(self.config)}\n```", 0)

    def add(self, row: Row) -> None:
        for name, value in _values(row).items():
            self._writer.add_scalar(name, value, row["epoch"])

    def end(self, *, finished: bool) -> None:
        self._writer.close()


class _MLflow(Tracker):
    """A run for each seed at ``MLFLOW_TRACKING_URI``, or else in ``mlflow.db``."""

    def begin(self, seed: int, rows: list[Row], run: str | None) -> str:
        # The ranks wait for rank 0: a server that does not answer must not hold them for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        from mlflow.tracking import MlflowClient  # noqa: PLC0415

        address = f"sqlite:///{(self.directory.path / 'mlflow.db').absolute()}"
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or address)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        if run is not None:
            self._client.update_run(run, status="RUNNING")
        else:
            created = self._client.create_run(experiment, run_name=self.name_of(seed))
            run = str(created.info.run_id)
            for key, value in self.settings.items():
                self._client.log_param(run, key, value)
        self._run = run
        return run

    def add(self, row: Row) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, row["epoch"]) for name, value in _values(row).items()]
        self._client.log_batch(self._run, metrics)

    def end(self, *, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "SCHEDULED")


class _WandB(Tracker):
    """A run for each seed, configured by environment variables (``WANDB_MODE=offline``)."""

    def begin(self, seed: int, rows: list[Row], run: str | None) -> str:
        import wandb  # noqa: PLC0415

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            group=self.directory.path.name,
            name=self.name_of(seed),
            dir=str(self.directory.path),
            config=self.settings,
            id=run,
            resume="must" if run else None,
            settings=wandb.Settings(console="off", quiet=True, init_timeout=60),
        )
        self._run.define_metric("*", step_metric="epoch")
        return str(self._run.id)

    def add(self, row: Row) -> None:
        self._run.log({"epoch": row["epoch"], **_values(row)})

    def end(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


_KINDS: Mapping[str, type[Tracker]] = {
    "csv": _Csv,
    "tensorboard": _TensorBoard,
    "mlflow": _MLflow,
    "wandb": _WandB,
}


class Tracking:
    """All trackers of a run on rank 0; none elsewhere.

    ``tracked.json`` holds the tracker's run of each seed, so that a later session can continue it.

    Raises `InputError` if the package of a tracker is not installed.
    """

    def __init__(self, config: Config, directory: RunDirectory, *, active: bool) -> None:
        self._directory = directory
        self._trackers: dict[str, Tracker] = {}
        for name in config.run.track if active else ():
            if name != "csv" and importlib.util.find_spec(name) is None:
                raise InputError(
                    f"run.track={name}: that package is not installed; pip install {name}, or "
                    "leave it out (run.track=csv needs none)"
                )
            self._trackers[name] = _KINDS[name](config, self._directory)

    def begin(self, seed: int) -> None:
        """Begin or continue a seed."""
        rows = self._directory.read_metrics() if self._trackers else []
        of_seed = [row for row in rows if row["seed"] == seed]
        path = self._directory.path / "tracked.json"

        def begin(name: str, tracker: Tracker) -> None:
            runs = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            before = runs.get(name, {}).get(str(seed)) if of_seed else None
            run = tracker.begin(seed, of_seed, before)
            if run != before:
                runs.setdefault(name, {})[str(seed)] = run
                self._directory.write_text(path, json.dumps(runs, indent=1) + "\n")

        self._each(begin)

    def add(self, row: Row) -> None:
        """Pass an epoch's line to all trackers."""
        self._each(lambda _, tracker: tracker.add(row))

    def end(self, *, finished: bool) -> None:
        """End the seed."""
        self._each(lambda _, tracker: tracker.end(finished=finished))

    def _each(self, call: Callable[[str, Tracker], None]) -> None:
        """Call all trackers; drop one that fails, whatever its package raises."""
        for name, tracker in list(self._trackers.items()):
            try:
                call(name, tracker)
            except Exception as error:
                del self._trackers[name]
                fault = f"{type(error).__name__}: {one_line(error)}"
                warn(f"run.track={name} fails ({fault}); the run goes on without it")


def _values(row: Row) -> dict[str, float]:
    return {key: float(value) for key, value in row.items() if key not in ("seed", "epoch")}
