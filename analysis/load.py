"""Read the records of a training run: metrics, summary and traces.

A killed run may leave a torn line at the end of a file, which is skipped. Any other damage is an
error, because a figure made from the rest would look complete. A resumed run goes back to its
checkpoint, so what earlier sessions recorded after it is skipped as well.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcgnn.analysis.forms import EPOCH, LARGEST, SESSION, SUMMARY, check_form
from hpcgnn.errors import InputError
from hpcgnn.storage import read_whole, require_file

Json = dict[str, Any]

TRACE_SCHEMA = 1

PHASES = (
    "exchange",
    "wait",
    "reduce",
    "interior",
    "boundary",
    "dense",
    "optimiser",
    "evaluate",
    "checkpoint",
    "read",
    "plan",
)
"""All phases of the schema, in the order in which tables and figures show them."""


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One span of one rank; times in nanoseconds since the start of its session."""

    name: str
    start_ns: int
    duration_ns: int
    self_ns: int
    seed: int | None
    epoch: int | None
    rows: int
    bytes: int
    peers: list[list[int]] | None
    session: int
    step: int = 0
    ghost_bytes: int | None = None
    resident_bytes: int | None = None
    offset_ns: int | None = None
    bound_ns: int | None = None
    awaited_bytes: int | None = None
    arrived_bytes: int | None = None
    moving_ns: int | None = None
    waited_ns: int | None = None
    joined_messages: int | None = None

    @property
    def phase(self) -> str:
        """The part of the name before the first dot."""
        return self.name.partition(".")[0]

    @property
    def detail(self) -> str:
        """The part of the name after the first dot, or an empty string."""
        return self.name.partition(".")[2]

    @property
    def stop_ns(self) -> int:
        """When the span ended."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True)
class Run:
    """A run directory; `name` is the last part of its path, or more to tell runs apart."""

    path: Path
    summary: Json
    name: str

    @property
    def has_traces(self) -> bool:
        """Whether any rank left a trace."""
        return any((self.path / "trace").glob("rank*.jsonl"))

    @property
    def has_metrics(self) -> bool:
        """Whether an epoch has ended."""
        path = self.path / "metrics.jsonl"
        return path.is_file() and path.stat().st_size > 0

    def sessions(self) -> list[Json]:
        """Return the starts of the run from ``sessions.json``; empty for older runs."""
        sessions: list[Json] = _read_json(self.path / "sessions.json", [], [SESSION])
        return sessions

    def metrics(self) -> list[Json]:
        """Return one object an epoch, by seed in order of appearance, then by epoch.

        Raises `InputError` if there is no readable ``metrics.jsonl``, or a line of it is damaged.
        """
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            raise InputError(f"{self.path}: has no metrics.jsonl; is it a run directory?")
        seeds: dict[object, dict[int, Json]] = {}
        for where, record in _json_lines(path, starts_anew=lambda _: False):
            check_form(record, EPOCH, where)
            for name, value in record.items():
                _require_number(value, f"{where}: {name}")
            epoch = record["epoch"]
            epochs = seeds.setdefault(record.get("seed"), {})
            for repeated in [known for known in epochs if known >= epoch]:
                del epochs[repeated]
            epochs[epoch] = record
        return [record for epochs in seeds.values() for record in epochs.values()]

    def traces(self) -> list["RankTrace"]:
        """Return the existing traces, by rank; files without a complete header are skipped.

        Raises `InputError` if there are none, or one is damaged or of another schema.
        """
        paths = (self.path / "trace").glob("rank*.jsonl")
        numbered = [(path.stem.removeprefix("rank"), path) for path in paths]
        traces = [RankTrace(path, int(digits)) for digits, path in numbered if digits.isdecimal()]
        if not any(trace.headers for trace in traces):
            raise InputError(
                f"{self.path}: has no trace/rank*.jsonl; is it a run directory with a trace?"
            )
        return sorted((trace for trace in traces if trace.headers), key=lambda trace: trace.rank)


def _require_number(value: Any, where: str) -> None:
    """Raise `InputError` for a value that is neither null nor a number; nan is allowed."""
    allowed = value is None or type(value) is float
    if not (allowed or (type(value) is int and -LARGEST <= value < LARGEST)):
        raise InputError(f"{where} is not a number; restore the file or remove it")


class RankTrace:
    """The records of one rank's trace file."""

    def __init__(self, path: Path, rank: int) -> None:
        self._path = path
        self.rank = rank
        self.headers = self._read_headers()

    def spans(self) -> Iterator[SpanRecord]:
        """Yield every span in the order in which they ended, session by session."""
        session = -1
        for where, record in _json_lines(self._path, starts_anew=_is_header):
            if _is_header(record):
                session += 1
            else:
                yield _span(record, session, where)

    def _read_headers(self) -> list[Json]:
        headers: list[Json] = []
        for where, record in _json_lines(self._path, starts_anew=_is_header):
            if _is_header(record):
                headers.append(_checked_header(record, self.rank, where))
            elif not headers:
                raise InputError(f"{where}: a trace begins with a header; restore the file")
        return headers


def open_run(directory: str | Path) -> Run:
    """Open a run directory.

    Raises `InputError` if `directory` is missing, is not a run directory, or has a damaged
    ``summary.json``.
    """
    path = Path(directory)
    if not path.is_dir():
        raise InputError(f"{path}: is not a directory; name the run.dir of a training run")
    known = ("metrics.jsonl", "summary.json", "trace")
    if not any((path / name).exists() for name in known):
        raise InputError(f"{path}: is not a run directory (it has none of {', '.join(known)})")
    path = path.resolve()
    return Run(path, _read_json(path / "summary.json", {}, SUMMARY), path.name)


def open_runs(directories: Sequence[str | Path]) -> list[Run]:
    """Open run directories; see `open_run` and `distinct_names`."""
    runs = [open_run(directory) for directory in directories]
    names = distinct_names([run.path for run in runs])
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the last parts of each path, as few as make all of them distinct.

    >>> distinct_names([Path("/a/one/run"), Path("/a/two/run")])
    ['one/run', 'two/run']
    """
    depth, most = 1, max((len(path.parts) for path in paths), default=1)
    # A directory given twice keeps the same name.
    while depth < most and len({path.parts[-depth:] for path in paths}) < len(set(paths)):
        depth += 1
    return ["/".join(path.parts[-depth:]) for path in paths]


def read_checked(
    path: Path, form: Any, remedy: str, parse: Callable[[bytes], Any] = json.loads
) -> Any:
    """Return the content of a JSON file, or of one that `parse` reads, checked by `check_form`.

    Raises `InputError` if it cannot be read, or does not have this form.
    """
    content = read_whole(path, remedy)
    try:
        value = parse(content)
    except (ValueError, RecursionError) as error:
        kind = path.suffix[1:].upper()
        raise InputError(f"{path}: is not valid {kind} ({error}); {remedy}") from error
    check_form(value, form, str(path))
    return value


def _read_json(path: Path, missing: Any, form: Any) -> Any:
    """Return the content of a JSON file, see `read_checked`; `missing` if there is no file."""
    return read_checked(path, form, "restore or remove it") if path.exists() else missing


def _is_header(record: Json) -> bool:
    return "schema" in record


def _checked_header(record: Json, rank: int, where: str) -> Json:
    if record["schema"] != TRACE_SCHEMA:
        raise InputError(
            f"{where}: trace schema {record['schema']!r}, this program reads {TRACE_SCHEMA}; "
            "use the version of hpcgnn that wrote it"
        )
    if _integer(record, "rank", where) != rank:
        raise InputError(f"{where}: belongs to rank {record['rank']}; restore the file's name")
    for key in ("ranks", "start_unix_ns"):
        _integer(record, key, where)
    return record


def _span(record: Json, session: int, where: str) -> SpanRecord:
    name, peers = record.get("name"), record.get("peers")
    if not isinstance(name, str):
        raise InputError(f"{where}: field 'name' is not a string; restore the file")
    if name.partition(".")[0] not in PHASES:
        raise InputError(f"{where}: unknown phase in {name!r}; use the hpcgnn that wrote it")
    if peers is not None and not _is_integer_table(peers):
        raise InputError(f"{where}: field 'peers' is not a list of [peer, rows, bytes]")
    return SpanRecord(
        name=name,
        start_ns=_integer(record, "t_ns", where),
        duration_ns=_integer(record, "dur_ns", where),
        self_ns=_integer(record, "self_ns", where),
        seed=None if record.get("seed") is None else _integer(record, "seed", where),
        epoch=None if record.get("epoch") is None else _integer(record, "epoch", where),
        rows=_integer(record, "rows", where),
        bytes=_integer(record, "bytes", where),
        peers=peers,
        session=session,
        step=_integer(record, "step", where) if record.get("step") else 0,
        **{key: _integer(record, key, where) for key in _OPTIONAL if key in record},
    )


_OPTIONAL = (
    *("ghost_bytes", "resident_bytes", "offset_ns", "bound_ns"),
    *("awaited_bytes", "arrived_bytes", "moving_ns", "waited_ns", "joined_messages"),
)


def _is_integer_table(peers: object) -> bool:
    return isinstance(peers, list) and all(
        isinstance(entry, list)
        and len(entry) == len(("peer", "rows", "bytes"))
        and all(isinstance(value, int) and 0 <= value < LARGEST for value in entry)
        for entry in peers
    )


def _json_lines(path: Path, starts_anew: Callable[[Json], bool]) -> Iterator[tuple[str, Json]]:
    """Yield ``(file:line, object)``; a torn line may occur only before a restart or at the end.

    `starts_anew` tells whether an object is the first one of a resumed run.
    """
    torn = ""
    try:
        with require_file(path, "restore it or remove it").open("rb") as file:
            for number, line in enumerate(file, start=1):
                record = _object(line)
                where = f"{path}:{number}"
                if torn and not (record is not None and starts_anew(record)):
                    raise InputError(f"{torn}: is not a JSON object; restore the file")
                if record is None:
                    torn = where
                else:
                    torn = ""
                    yield where, record
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _object(line: bytes) -> Json | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _integer(record: Json, key: str, where: str) -> int:
    """Return the integer `key` of a record, or raise an `InputError` that names it."""
    value = record.get(key)
    if type(value) is not int or not -LARGEST <= value < LARGEST:
        raise InputError(f"{where}: field {key!r} is not a 64-bit integer; restore the file")
    return value
