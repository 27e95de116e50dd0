"""Print results in aligned columns of any width, since launchers report 80-column terminals."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = [
    "BESIDE_PYG",
    "Columns",
    "count",
    "megabytes",
    "print_columns",
    "ratio",
    "seconds",
    "text",
]

Columns = Mapping[str, tuple[str, Callable[[Any], str]]]
"""Heading to the key of a result and the function that formats its value."""

BESIDE_PYG: Columns = {
    "ours least": ("least", "{:.3f}".format),
    "mean": ("mean", "{:.3f}".format),
    "most": ("most", "{:.3f}".format),
    "PyG least": ("peer_least", "{:.3f}".format),
    "mean of PyG": ("peer_mean", "{:.3f}".format),
    "most of PyG": ("peer_most", "{:.3f}".format),
}
"""Scores over seeds of hpcgnn and of torch-geometric."""


def print_columns(columns: Columns, results: Sequence[Mapping[str, Any]]) -> None:
    """Print a line of headings and a line for each result; the first column is left-aligned."""
    lines = [list(columns)]
    lines += [[shown(each.get(key), form) for key, form in columns.values()] for each in results]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]), flush=True)


def shown(value: Any, form: Callable[[Any], str]) -> str:
    return "-" if value is None else form(value)


def text(value: Any) -> str:
    return str(value)


def count(value: int) -> str:
    return f"{value:,}"


def megabytes(value: int) -> str:
    return f"{value / 1e6:.1f}"


def seconds(value: float) -> str:
    return f"{value:.3f}"


def ratio(value: float) -> str:
    return f"{value:.2f}"
