"""Console output: lines on standard error and in the log of a run, tables, JSON, progress.

Lines go through one logger of the standard library, named ``hpcgnn``, so that a calling program can
add its own handlers. Standard output has results only.
"""

import contextlib
import functools
import json
import logging
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hpcgnn.errors import InputError, one_line, printable

_GIT_LIMIT_S = 10

LOGGER = logging.getLogger("hpcgnn")
"""Levels: DEBUG with ``-v``, INFO by default, WARNING with ``-q``."""


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which notebooks and tests replace."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class _RunLog(logging.FileHandler):
    """Writes all lines with their time in UTC, also those that standard error does not show."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self._path = path
        form = logging.Formatter("%(asctime)s.%(msecs)03dZ %(message)s", "%Y-%m-%dT%H:%M:%S")
        form.converter = time.gmtime
        self.setFormatter(form)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Continue without the log; a full disk is an error only for checkpoints."""
        LOGGER.removeHandler(self)
        warn(f"{self._path}: cannot be written ({sys.exception()}); the run continues without it")


_ON_SCREEN = _StandardError()


def _set_up() -> None:
    LOGGER.setLevel(logging.DEBUG)
    LOGGER.propagate = False
    _ON_SCREEN.setLevel(logging.INFO)
    LOGGER.addHandler(_ON_SCREEN)


_set_up()


def show_from(level: int) -> None:
    """Show lines of `level` (of `logging`) and above on standard error from now on."""
    _ON_SCREEN.setLevel(level)


def shows(level: int) -> bool:
    """Return whether standard error shows lines of a level."""
    return level >= _ON_SCREEN.level


def detail(text: str) -> None:
    """Write a line that only ``-v`` shows, and that a run's log always has."""
    LOGGER.debug("%s", printable(text))


def warn(text: str) -> None:
    """Write a warning, which ``-q`` shows too: something is not as requested."""
    LOGGER.warning("%s", printable(text))


@contextlib.contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Append all lines to a file, and the exception that ends the block, if there is one.

    Raises `InputError` if the file cannot be opened.
    """
    try:
        handler = _RunLog(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; choose another run.dir") from error
    LOGGER.addHandler(handler)
    try:
        yield
    except BaseException as error:
        screen, _ON_SCREEN.level = _ON_SCREEN.level, logging.CRITICAL + 1
        # Only for the log: the handler of the exception writes it to standard error.
        LOGGER.error("%s", f"ended by {type(error).__name__}: {one_line(error)}")
        _ON_SCREEN.level = screen
        raise
    finally:
        LOGGER.removeHandler(handler)
        # A full disk has already been reported.
        with contextlib.suppress(OSError):
            handler.close()


def report(text: str, stream: TextIO | None = None) -> None:
    """Write a line about progress or results, which ``-q`` hides, to the log or to `stream`."""
    if stream is None:
        LOGGER.info("%s", printable(text))
    elif shows(logging.INFO):
        stream.write(printable(text) + "\n")
        stream.flush()


def report_next(*words: str | Path) -> None:
    """Report ``hpcgnn WORDS`` as the next command, quoted for a shell."""
    report(f"next: hpcgnn {shlex.join(map(str, words))}")


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write `value` as one line of JSON to standard output."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


_NUMBERS = ("r2", "loss", "rmse", "mae", "rel")


def metric_number(metric: str) -> str:
    """Return the word r2, loss, rmse, mae or rel in a metric's name, "" if it is a share."""
    return next((word for word in metric.split("_") if word in _NUMBERS), "")


def is_error(metric: str) -> bool:
    """Tell whether smaller values of a metric are better."""
    return metric_number(metric) not in ("", "r2")


def metric_factor(metric: str) -> int:
    """Return what a metric is told in: 100 for shares, in per cent, 1 for numbers."""
    return 1 if metric_number(metric) else 100


def metric_text(metric: str, value: float | None) -> str:
    """Return a metric as text: shares in per cent, others as numbers, "" for None."""
    if value is None:
        return ""
    number = metric_number(metric)
    if number:
        return f"{value:.3f}" if number == "r2" else f"{value:.4g}"
    return f"{100 * value:.2f} %"


def number(count: int, thing: str) -> str:
    """Return a count with its noun: ``1 rank``, ``2,000 nodes``."""
    return f"{count:,} {thing}" + "s" * (count != 1)


def start_of(ranks: int) -> str:
    """Return the command that starts training on a number of ranks."""
    return f"mpiexec -n {ranks} hpcgnn train" if ranks > 1 else "hpcgnn train"


def cell_text(value: object) -> str:
    """Return a value as text for a table, with short numbers and thousands separators."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.4g}"
        case Mapping():
            return ", ".join(f"{key} {cell_text(item)}" for key, item in value.items())
        case list() | tuple():
            return ", ".join(map(cell_text, value))
        case _:
            return printable(str(value))


def print_values(title: str, values: Mapping[str, object], *, made: bool = False) -> None:
    """Write names and values as a table; ``num_nodes`` is shown as nodes."""
    rows = [(key.removeprefix("num_").replace("_", " "), item) for key, item in values.items()]
    print_table(title, ("", "value"), rows, made=made)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    prose: bool = False,
    made: bool = False,
) -> None:
    """Write a table to standard output.

    ``-q`` hides tables about files that were `made`, but not results. The first column is aligned
    left, the others right. In a table of `prose` all columns are aligned left and wrapped to the
    width of the terminal, or to COLUMNS in a pipe.
    """
    if made and not shows(logging.INFO):
        return
    # No styles: under an MPI launcher standard output looks like a terminal, but goes to a log.
    table = Table(
        title=escape(printable(title)), title_justify="left", title_style="", header_style=""
    )
    for position, column in enumerate(columns):
        table.add_column(escape(column), justify="left" if prose or position == 0 else "right")
    for row in rows:
        table.add_row(*(escape(cell_text(cell)) for cell in row))
    if prose:
        console = Console(width=shutil.get_terminal_size((100, 24)).columns)
    else:
        # A pipe or a log has no width, so do not wrap figures there.
        console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table, highlight=False)


def start_bar(figures: str) -> Any:
    """Return a progress bar of rich on standard error; `figures` follow the count."""
    # Imported here, since it takes longer than many commands.
    progress = import_module("rich.progress")
    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn(figures),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    bar.start()
    return bar


class Progress:
    """Show the progress of a long loop, as a bar on a terminal and as a few plain lines elsewhere.

    Use as a context manager; call `advance(count)` in the loop. `total` is in `unit`.
    """

    def __init__(self, text: str, total: int, unit: str = "", *, quiet: bool = False) -> None:
        self._text, self._total, self._unit = text, max(int(total), 1), unit
        self._quiet = quiet or not shows(logging.INFO)
        self._done = 0
        self._next_report = 0.25
        self._bar: Any = None

    def __enter__(self) -> "Progress":
        if not self._quiet and sys.stderr.isatty():
            self._bar = start_bar(self._unit)
            self._task = self._bar.add_task(self._text, total=self._total)
        return self

    def advance(self, count: int = 1) -> None:
        """Count `count` more units as done."""
        self._done += count
        if self._bar is not None:
            self._bar.advance(self._task, count)
        elif not self._quiet and self._done >= self._next_report * self._total:
            # Only at each quarter, to keep log files short.
            share = min(self._done / self._total, 1.0)
            report(f"{self._text}: {100 * share:.0f} % ({self._done:,} {self._unit})".rstrip())
            self._next_report = (int(share * 4) + 1) / 4

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def commit_of(root: Path) -> str | None:
    """Return the commit of a checkout, followed by ``-dirty`` if tracked files were changed.

    None if `root` itself is not a checkout, for example a package installed inside one.
    """
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    words = [git, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        process = subprocess.run(
            words, capture_output=True, check=True, text=True, timeout=_GIT_LIMIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip() or None


_installed_version = functools.cache(version)
"""Cached, since metadata are long files and every run reads the same ones."""


def version_of(package: str) -> str:
    """Return the version of an installed package, or "unknown"."""
    try:
        return _installed_version(package)
    except PackageNotFoundError:
        # A site's own source tree has no metadata.
        return str(getattr(sys.modules.get(package), "__version__", "unknown"))
