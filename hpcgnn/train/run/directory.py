"""The run directory: the files of a run beside its checkpoints, and the state to resume from.

Only rank 0 reads and writes; the functions pass the results to all ranks.
"""

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.comm import ProcessGrid, agree, bcast
from hpcgnn.config.config import Config
from hpcgnn.config.file import OWN_CODE, dump_toml, load_config
from hpcgnn.console import logged_to, warn
from hpcgnn.errors import InputError
from hpcgnn.graph.facts import Facts
from hpcgnn.graph.targets import fingerprint_of
from hpcgnn.nn import find_model
from hpcgnn.spmd import collective
from hpcgnn.storage import OpenStore, hold, write_whole
from hpcgnn.train.run.checkpoint import Checkpoint, check_state, checkpoint_paths, read_checkpoint

_FREE_SECTIONS = ("exchange", "run", "trace")
_START_OVER = "another run.dir, or run.resume=never to start over"


def check_same_run(before: Config, now: Config, directory: Path) -> None:
    """Check that `now` continues the run that `before` started.

    Settings of where and how it runs may change: the exchange, the run directory, the trace, the
    path of the store, the device. Seeds may be appended, and a run of one seed may get more epochs
    if its schedule allows.

    Raises `InputError` naming the first other setting that differs.
    """
    for key, old, new in _changes(before, now):
        if not _may_change(key, old, new, before):
            raise InputError(
                f"{key} = {new!r}, but the run in {directory} has {old!r}: set it back, use "
                f"{_START_OVER}"
            )


def _changes(before: Config, now: Config) -> Iterator[tuple[str, Any, Any]]:
    """Yield the settings that differ and may affect results, with both values."""
    for section in dataclasses.fields(Config):
        old, new = getattr(before, section.name), getattr(now, section.name)
        for name in (option.name for option in dataclasses.fields(old)):
            key, values = f"{section.name}.{name}", (getattr(old, name), getattr(new, name))
            if values[0] != values[1] and not _is_free(key, *values, before):
                yield key, *values


def _is_free(key: str, old: Any, new: Any, before: Config) -> bool:
    if key != "exchange.active_sets":
        return key.partition(".")[0] in _FREE_SECTIONS
    model = before.model
    kind, relations = find_model(model.name), max(model.num_bases, 1)
    shape = model.shape(num_features=1, num_classes=1, num_relations=relations)
    # With True, norms over nodes also compute their statistics over fewer nodes.
    normalises = kind.aggregations_after_norms(shape) < kind.num_aggregations(shape)
    restricts = before.train.task == "full"
    return not (normalises and restricts) or (old is True) == (new is True)


def _may_change(key: str, old: Any, new: Any, before: Config) -> bool:
    if key in ("graph.store", "graph.features_dir", "train.device", "train.group_size"):
        return True
    if key == "train.seeds":
        return bool(new[: len(old)] == old)
    # Finished seeds are not continued, so only a single seed can be extended. The learning rates
    # of its past epochs must not depend on the number of epochs.
    lasting = before.train.schedule in ("constant", "step")
    return key == "train.epochs" and len(before.train.seeds) == 1 and lasting and new > old


_HOLDER_BYTES = 200
_LEFTOVERS = (".*.tmp", "checkpoints/.*.partial-*")


@dataclass(frozen=True)
class Past:
    """The earlier run that a directory holds.

    `config` is set if it has checkpoints, `summary` if it has finished with the same
    configuration.
    """

    config: Config | None = None
    summary: dict[str, Any] | None = None


class RunDirectory:
    """Paths and files of one run.

    Methods raise `InputError` if a file cannot be read or written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.traces = self.path / "trace"
        self.predictions = self.path / "predictions.h5"
        self.log = self.path / "log.txt"
        self.model = self.path / "model.safetensors"
        self._metrics = self.path / "metrics.jsonl"
        self._config = self.path / "config.toml"
        self._summary = self.path / "summary.json"
        self._sessions = self.path / "sessions.json"

    @contextlib.contextmanager
    def reserve(self) -> Iterator[None]:
        """Create the directory, check that it can be written, and lock it against other runs.

        A job that is requeued, or submitted twice, must not write beside the one still running.
        """
        with self._faults(f"run.dir {self.path}", "choose a directory that can be written"):
            self.path.mkdir(parents=True, exist_ok=True)
            # In a directory that others can write to, a link could lead to any file of this user.
            for path in (self.checkpoints, self.traces, self.log):
                if path.is_symlink():
                    raise OSError(errno.ELOOP, f"{path.name} is a link")
            for directory in (self.checkpoints, self.traces):
                directory.mkdir(exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(self.path / ".lock", flags, 0o666)
        try:
            self._lock(lock)
            yield
        finally:
            os.close(lock)

    def _lock(self, lock: int) -> None:
        if not hold(lock):
            holder = os.pread(lock, _HOLDER_BYTES, 0).decode(errors="replace").strip()
            raise InputError(
                f"run.dir {self.path} is in use ({holder}): wait for that run to end, or choose "
                "another run.dir"
            )
        with self._faults(f"run.dir {self.path}", "free space, or choose another directory"):
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{platform.node()}, process {os.getpid()}\n".encode(), 0)

    def start(self) -> None:
        """Begin a run: remove the checkpoints and results of an earlier one.

        Sessions of a run without an epoch stay: it begins again.
        """
        with self._faults(self.path, "remove its files, or choose another run.dir"):
            for path in self.checkpoints.glob("seed*-epoch*"):
                shutil.rmtree(path)
            for trace in self.traces.glob("rank*.jsonl"):
                trace.unlink()
            files = [self._metrics, self.path / "metrics.csv"]
            if any(session.get("epochs") != 0 for session in self.read_sessions()):
                files.append(self._sessions)
            for file in files:
                file.unlink(missing_ok=True)
            self._drop_results()

    def write_config(self, config: Config) -> None:
        """Write the resolved configuration."""
        self.write_text(self._config, dump_toml(config))

    def resume(
        self, before: Config | None, config: Config, epochs_done: dict[int, int]
    ) -> dict[int, tuple[int, int, int]]:
        """Continue a run: check that it is the same, and truncate the metrics to the checkpoint.

        `epochs_done` counts the epochs that checkpoints cover, by seed. Returns, for each seed with
        epochs that have no line of metrics, their number, the first and the last of them.
        """
        if before is None:
            raise InputError(f"{self.path} has checkpoints but no config.toml; use {_START_OVER}")
        check_same_run(before, config, self.path)
        rows = [
            row for row in self.read_metrics() if row["epoch"] < epochs_done.get(row["seed"], 0)
        ]
        with self._faults(self.path, "make it writable, or choose another run.dir"):
            self._drop_results()
        self.write_text(self._metrics, "".join(json.dumps(row) + "\n" for row in rows))
        missing = {}
        for seed, done in epochs_done.items():
            epochs = {row["epoch"] for row in rows if row["seed"] == seed}
            # Do not list the missing epochs: a forged number of epochs must not use memory.
            if len(epochs) < done:
                first = next(epoch for epoch in itertools.count() if epoch not in epochs)
                last = next(epoch for epoch in range(done - 1, -1, -1) if epoch not in epochs)
                missing[seed] = (done - len(epochs), first, last)
        return missing

    def past(self, config: Config) -> Past:
        """Return the earlier run; imports no modules of a user but those that `config` names."""
        ended = self._summary.is_file()
        goes_on = any(self.checkpoints.glob("seed*-epoch*/state.json"))
        if not self._config.is_file() or not (ended or goes_on):
            return Past()
        named = [getattr(getattr(config, section), key) for section, key in OWN_CODE]
        before = load_config(self._config, trusted=named)
        past = Past(before if goes_on else None)
        lacks_predictions = config.run.save_predictions and not self.predictions.is_file()
        if not ended or lacks_predictions or any(True for _ in _changes(before, config)):
            return past
        remedy = "remove that file to have it written again"
        return Past(past.config, self._read_json(self._summary, remedy))

    def begin_session(self, session: dict[str, Any]) -> None:
        """Append the description of this session to those of earlier ones."""
        self._write_sessions([*self.read_sessions(), session])

    def end_session(self, session: dict[str, Any]) -> None:
        """Replace the description that `begin_session` wrote by the final one."""
        self._write_sessions([*self.read_sessions()[:-1], session])

    def read_sessions(self) -> list[dict[str, Any]]:
        """Return the sessions of the run, oldest first; a killed one has no ``wall_s``."""
        if not self._sessions.is_file():
            return []
        return self._read_json(self._sessions, "repair it or remove it")

    def _write_sessions(self, sessions: list[dict[str, Any]]) -> None:
        self.write_text(self._sessions, json.dumps(sessions, indent=1) + "\n")

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append the line of an epoch."""
        with (
            self._faults(self._metrics, "free space, then start the same command again to resume"),
            self._metrics.open("a", encoding="utf-8") as file,
        ):
            file.write(json.dumps(row) + "\n")

    def sync_metrics(self) -> None:
        """Wait until the lines are on disk: a checkpoint must not be newer than its metrics."""
        with self._faults(self._metrics, "free space, then start the same command again to resume"):
            descriptor = os.open(self._metrics, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the lines written so far, without a last line cut short by a crash."""
        if not self._metrics.is_file():
            return []
        with self._faults(self._metrics, "repair that line or remove it"):
            whole, _, _ = self._metrics.read_text(encoding="utf-8").rpartition("\n")
            return [_metrics_row(*numbered) for numbered in enumerate(whole.splitlines(), start=1)]

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json, which marks the run as finished."""
        self.write_text(self._summary, json.dumps(summary, indent=1) + "\n")

    def _read_json(self, path: Path, remedy: str) -> Any:
        with self._faults(path, remedy):
            return json.loads(path.read_text(encoding="utf-8"))

    def _drop_results(self) -> None:
        """Remove the results of a finished run, and partial files of a killed one."""
        for file in (self._summary, self.predictions, self.model):
            file.unlink(missing_ok=True)
        for pattern in _LEFTOVERS:
            for path in self.path.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def write_text(self, path: Path, text: str) -> None:
        """Write a file of the directory, whole or not at all."""
        write_whole(path, text.encode())

    @contextlib.contextmanager
    def _faults(self, path: str | Path, remedy: str) -> Iterator[None]:
        """Turn system errors and bad file contents into errors naming the path and the remedy."""
        try:
            yield
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; {remedy}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{path}: cannot be read ({error}); {remedy}") from error


def _metrics_row(number: int, line: str) -> dict[str, Any]:
    try:
        row: dict[str, Any] = json.loads(line)
        if not {"seed", "epoch"} <= row.keys():
            raise ValueError("no seed or no epoch")
        if type(row["seed"]) is not int or type(row["epoch"]) is not int:
            raise ValueError("seed or epoch is not an integer")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"line {number}: {error}") from error
    return row


@contextlib.contextmanager
def held_by_run(grid: ProcessGrid, directory: RunDirectory) -> Iterator[None]:
    """Lock a run directory against other runs, and log to it on rank 0."""
    with contextlib.ExitStack() as stack:
        with agree(grid.world):
            if grid.rank == 0:
                stack.enter_context(directory.reserve())
                stack.enter_context(logged_to(directory.log))
        yield


@collective
def find_past(
    grid: ProcessGrid, config: Config, directory: RunDirectory, kind: type[OpenStore]
) -> Past:
    """Return the earlier run in the directory; if it has finished, nothing is left to do.

    `kind` is the type of the store, from which rank 0 reads only the fingerprint.

    Raises `CollectiveInputError` if the store, or a file of the directory, cannot be read.
    """
    past = Past()
    with agree(grid.world):
        if grid.rank == 0 and config.run.resume != "never":
            past = directory.past(config)
            if past.summary is not None:
                with kind.open(config.graph.store) as store:
                    fingerprint = fingerprint_of(config, store)
                # The store has changed: continue, to the error that says so.
                if past.summary["fingerprint"] != fingerprint:
                    past = Past(past.config)
    return bcast(grid.world, past)


@collective
def find_checkpoint(
    grid: ProcessGrid, config: Config, facts: Facts, directory: RunDirectory, before: Config | None
) -> Checkpoint | None:
    """Prepare the run directory; return the checkpoint to resume from, or None for a fresh start.

    Call it after the graph is read: a fresh start removes the results of an earlier run, whose
    configuration is `before`.

    Raises `CollectiveInputError` if the newest checkpoint is damaged or belongs to another run, or
    if there is none and ``run.resume=must``.
    """
    path: Path | None = None
    with agree(grid.world):
        if grid.rank == 0:
            newest = newest_checkpoint(config, directory.checkpoints)
            path = newest[2] if newest and config.run.resume != "never" else None
            if path is None and config.run.resume == "must":
                raise InputError(
                    f"run.resume=must, but {directory.checkpoints} has no checkpoint; "
                    "start with run.resume=auto"
                )
    path = bcast(grid.world, path)
    checkpoint = None
    with agree(grid.world):
        if path is not None:
            checkpoint = read_checkpoint(path)
            check_state(path, checkpoint.state)
            _check_fits(path, checkpoint.state, config, facts)
    # Results of the earlier run stay if any rank cannot resume.
    with agree(grid.world):
        if grid.rank == 0:
            _prepare(checkpoint, directory, before, config)
            directory.write_config(config)
    return checkpoint


def newest_checkpoint(config: Config, folder: Path) -> tuple[int, int, Path] | None:
    """Return the newest checkpoint of a folder as (position of its seed, epochs done, path)."""
    order = {seed: position for position, seed in enumerate(config.train.seeds)}
    paths = checkpoint_paths(folder)
    return max(((order.get(seed, -1), epoch, path) for seed, epoch, path in paths), default=None)


def _check_fits(path: Path, state: dict[str, Any], config: Config, facts: Facts) -> None:
    store, targets = config.graph.store, config.graph.targets
    another = f"or graph.targets than {store} and {targets}" if targets else f"than {store}"
    for what, differs in (
        (
            f"has seed {state['seed']}, which is not in train.seeds; use",
            state["seed"] not in config.train.seeds,
        ),
        (
            f"was trained on another store {another}; use that one,",
            state["graph"]["fingerprint"] != facts.fingerprint,
        ),
        (
            "took the higher id of an undirected edge as its target, as earlier versions did; use",
            state["graph"].get("directions", "") != getattr(facts, "directions", ""),
        ),
    ):
        if differs:
            raise InputError(f"checkpoint {path} {what} {_START_OVER}")


def _prepare(
    checkpoint: Checkpoint | None, directory: RunDirectory, before: Config | None, config: Config
) -> None:
    if checkpoint is None:
        directory.start()
        return
    state = checkpoint.state
    done = {result["seed"]: result["epochs"] for result in state["finished_seeds"]}
    missing = directory.resume(before, config, {**done, state["seed"]: state["epoch"]})
    for seed, (count, first, last) in missing.items():
        warn(
            f"metrics.jsonl lacks {count} epochs of seed {seed} that its checkpoint covers, "
            f"{first} to {last}: its curve and the summary leave them out"
        )
