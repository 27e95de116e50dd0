"""``python -m tests.matrix``: write docs/matrix.md, what works with what."""

from collections.abc import Iterable
from pathlib import Path

from hpcgnn.pyg.unsupported_layers import REFUSED
from tests.support.pyg_convs import CONVS, NORMS, WHEN_CALLED
from tests.support.works import MODE, TABLES, Axis, Cell, cells, mode_pairs

Reasons = dict[str, dict[str, None]]
"""Reason -> the features that it applies to."""

PAGE = Path(__file__).parents[1] / "docs" / "matrix.md"

HEAD = """# What works with what

Written by `python -m tests.matrix` from what each feature says of itself: `needs` and `lacks` in
the code, [contributing.md](contributing.md). Tests hold it true: `tests/test_matrix.py`.

- ✓: works.
- A number: refused before anything is read, for the [reason](#reasons) of that number.
- Empty: there is nothing to ask, as where a model has no such option.

All else is at its default. Three features that do not work together, such as a mode, an exchange
and a command, are refused alike, and so is what only the graph tells, such as edge weights under
attention, as soon as its header is read. Cells of GPUs and of program graphs are tested elsewhere.
"""


def write() -> str:
    """Return the page."""
    reasons: Reasons = {}
    parts = [HEAD]
    for title, (rows, columns) in TABLES.items():
        parts.append(f"## {title}\n\n{_table(rows, columns, cells(rows, columns), reasons)}")
    names = list(MODE)
    rows, columns = ({name: MODE[name] for name in each} for each in (names[:-1], names[1:]))
    parts.append(f"## Two modes\n\n{_table(rows, columns, mode_pairs(), reasons)}")
    parts.append(_layers())
    lines = "\n".join(f"1. {', '.join(of)}: {reason}" for reason, of in reasons.items())
    parts.append(f"## Reasons\n\n{lines}\n")
    return "\n".join(parts)


def _layers() -> str:
    """Return how torch_geometric's layers run, see tests/pyg, and why others do not."""
    names = {name.split()[0] for name in (*CONVS, *NORMS) if name[0].isupper()}
    runs = ", ".join(f"`{each}`" for each in sorted(names))
    refused: dict[str, list[str]] = {}
    for name, reason in {**REFUSED, **WHEN_CALLED}.items():
        refused.setdefault(reason, []).append(f"`{name}`")
    lines = "\n".join(f"- {', '.join(names)}: {reason}" for reason, names in refused.items())
    return f"## Layers of torch-geometric\n\nOver ranks: {runs}.\n\nRefused:\n\n{lines}\n"


def _table(rows: Axis, columns: Axis, made: Iterable[Cell], reasons: Reasons) -> str:
    found = {(each.row, each.column): each for each in made}
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        marks = [_mark(found.get((row, column)), reasons) for column in columns]
        lines.append(f"| {row} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def _mark(each: Cell | None, reasons: Reasons) -> str:
    if each is None:
        return ""
    if each.conflict is None:
        return "✓"
    lacking = each.conflict.lacking.name
    key = lacking.partition(" = ")[0]
    named = lacking if key in ("model.name", "train.task", "exchange.method") else key
    reasons.setdefault(each.conflict.reason, {})[named] = None
    return str(list(reasons).index(each.conflict.reason) + 1)


if __name__ == "__main__":
    PAGE.write_text(write(), encoding="utf-8")
