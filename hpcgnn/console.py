"""What every command does alike on the terminal: errors, progress, tables, JSON.

Standard output carries results only; progress and messages go to standard error.
"""

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hpcgnn import log
from hpcgnn.errors import USAGE_ERROR, InputError, exit_on_sigterm, one_line, printable


def run_command(name: str, main: Callable[[], object]) -> None:
    """Run a serial command; turn a fault of the user's input into one line and exit status 2.

    A failed command exits with `SystemExit`, and so does one that SIGTERM ends; any other exception
    passes through with its traceback.
    """
    try:
        with exit_on_sigterm():
            main()
    except InputError as error:
        sys.stderr.write(f"hpcgnn {name}: error: {one_line(error)}\n")
        raise SystemExit(USAGE_ERROR) from None
    except BrokenPipeError:
        # The reader of a pipe has gone (`| head`); its end is not our failure.
        sys.stderr.close()
        raise SystemExit(0) from None


def comma_separated(text: str) -> tuple[str, ...]:
    """Return the words of an argument such as ``A,B``, for argparse."""
    return tuple(text.split(","))


def write_file(path: Path, content: bytes) -> None:
    """Write a small file that a command was asked for beside its main output, whole or not at all.

    What may import `storage` calls its `write_whole`. Devices and pipes, such as /dev/stdout, take
    the content as it comes.
    """
    target = path.resolve()
    temporary = target.with_name(f".{target.name[:40]}.{os.getpid()}.tmp")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        temporary.write_bytes(content)
        temporary.replace(target)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def report(text: str, stream: TextIO | None = None) -> None:
    """Say one line of what goes on, see `log.report`; or write a result to `stream`."""
    if stream is None:
        log.report(text)
        return
    stream.write(printable(text) + "\n")
    stream.flush()


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write `value` as one line of JSON to standard output."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def metric_text(metric: str, value: float | None) -> str:
    """Return how a metric is shown: R² as a number, all others in per cent; None as nothing."""
    if value is None:
        return ""
    return f"{value:.3f}" if metric == "r2" else f"{100 * value:.2f} %"


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, prose: bool = False
) -> None:
    """Write a table to standard output.

    The first column is aligned left, the others right. A table of `prose` is all left and as wide
    as the terminal, or as COLUMNS says in a pipe; its cells take several lines where they must.
    """
    # No styles: under an MPI launcher standard output looks like a terminal and ends in a log.
    table = Table(
        title=escape(printable(title)), title_justify="left", title_style="", header_style=""
    )
    for position, column in enumerate(columns):
        table.add_column(escape(column), justify="left" if prose or position == 0 else "right")
    for row in rows:
        table.add_row(*(escape(printable(str(cell))) for cell in row))
    if prose:
        console = Console(width=shutil.get_terminal_size((100, 24)).columns)
    else:
        # A pipe or a log has no width of its own: never wrap figures there.
        console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table, highlight=False)


class Progress:
    """Show how far a long loop is, as a bar on a terminal and as a few plain lines elsewhere.

    Use as a context manager; call `advance(count)` in the loop. `total` is in `unit`.
    """

    def __init__(self, text: str, total: int, unit: str = "", *, quiet: bool = False) -> None:
        self._text, self._total, self._unit = text, max(int(total), 1), unit
        self._quiet = quiet or not log.shows(logging.INFO)
        self._done = 0
        self._next_report = 0.25
        self._bar: Any = None

    def __enter__(self) -> "Progress":
        if not self._quiet and sys.stderr.isatty():
            # Only here: its import takes longer than many commands.
            progress = import_module("rich.progress")
            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn(self._unit),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self._text, total=self._total)
        return self

    def advance(self, count: int = 1) -> None:
        """Count `count` more units as done."""
        self._done += count
        if self._bar is not None:
            self._bar.advance(self._task, count)
        elif not self._quiet and self._done >= self._next_report * self._total:
            # Quarters only: a log file wants signs of life, not a film.
            share = min(self._done / self._total, 1.0)
            report(f"{self._text}: {100 * share:.0f} % ({self._done} {self._unit})".rstrip())
            self._next_report = (int(share * 4) + 1) / 4

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
