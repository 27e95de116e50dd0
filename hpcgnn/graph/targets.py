"""Read regression targets of nodes or graphs from a separate file.

``graph.targets`` names a table with a row for each node: ``.npy``, whose row i belongs to the node
with original id i, or ``.csv`` with a header, whose first column has original ids, or names if
nodes have names. If graphs are predicted as a whole, there is a row for each graph, by graph
number. Missing values (NaN, an empty field, a node without a row) are ignored in training and
metrics.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hpcgnn.autograd import arithmetic
from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.comm.row_map import found_among
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.inputs import ROUNDING
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, OpenStore, Split, read_csv
from hpcgnn.typing import Array, FloatArray, GlobalIndices


@dataclass(frozen=True, eq=False)
class Targets:
    """The targets of some nodes: values (n, T) float64, NaN for missing, and T names."""

    names: tuple[str, ...]
    values: FloatArray


def read_targets(
    config: Config, store: GraphStore, ids: GlobalIndices, graphs: GlobalIndices | None = None
) -> Targets:
    """Return the targets of nodes by original ids (n,) int64, or of graphs by their numbers.

    `graphs` (G,) int64 are the numbers of all graphs in the store, which may have gaps, if targets
    are those of graphs.

    Raises `InputError` if the file cannot be read or does not fit the graph.
    """
    path = Path(config.graph.targets)
    if path.suffix == ".npy":
        count = store.num_nodes if graphs is None else int(graphs.max(initial=-1)) + 1
        return _from_array(path, count, ids)
    if path.suffix == ".csv":
        return _from_table(path, store, graphs, ids)
    raise InputError(f"graph.targets: {path}: is neither .npy nor .csv; give one of these")


def fingerprint_of(config: Config, store: OpenStore) -> str:
    """Return the fingerprint of a store, followed by that of the file of targets if there is one.

    Raises `InputError` if the file cannot be read.
    """
    path = Path(config.graph.targets)
    if not config.graph.targets:
        return store.fingerprint
    try:
        with path.open("rb") as file:
            return f"{store.fingerprint}-{hashlib.file_digest(file, 'sha256').hexdigest()[:32]}"
    except OSError as error:
        raise InputError(f"graph.targets: {path}: {error.strerror}; check the path") from None


def _from_array(path: Path, num_nodes: int, ids: GlobalIndices) -> Targets:
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"graph.targets: {path}: {reason}; write it with numpy.save") from None
    if table.ndim not in (1, 2) or table.dtype.kind not in "fiu" or 0 in table.shape:
        raise InputError(
            f"graph.targets: {path} has shape {table.shape} of {table.dtype}; give numbers, "
            "a row for each node or graph and a column for each target"
        )
    if len(table) != num_nodes or (len(ids) and not 0 <= ids.min() <= ids.max() < len(table)):
        raise InputError(
            f"graph.targets: {path} has {len(table)} rows, not one for each of the ids 0 to "
            f"{num_nodes - 1}; give a row for each node or graph, or .csv with ids"
        )
    # A rank may have no rows.
    width = 1 if table.ndim == 1 else table.shape[1]
    values = np.asarray(table[ids], np.float64).reshape(len(ids), width)
    names = tuple(f"target{number}" for number in range(values.shape[1]))
    return Targets(names if len(names) > 1 else ("target",), _finite(path, values))


def _from_table(
    path: Path, store: GraphStore, graphs: GlobalIndices | None, ids: GlobalIndices
) -> Targets:
    header, rows = read_csv(path, f"graph.targets: {path}", "give a .npy or .csv file")
    # pandas names columns 0, 1, 2; other numbers are the values of a first node.
    counted = header[1:] == [str(number) for number in range(len(header) - 1)]
    is_data = all(map(_is_number, header if counted else header[1:]))
    if len(header) < 2 or len(set(header)) < len(header) or is_data:
        raise InputError(
            f"graph.targets: {path} needs a header with different names for the column of nodes "
            "and each target"
        )
    nodes = [row[0] for row in rows.values()]
    numbers = _nodes_of(path, store, graphs, nodes)
    cells = [_number(path, line, cell) for line, row in rows.items() for cell in row[1:]]
    values = np.array(cells).reshape(len(rows), len(header) - 1)
    order = np.argsort(numbers)
    if np.any(np.diff(numbers[order]) == 0):
        repeated = int(np.flatnonzero(np.diff(numbers[order]) == 0)[0])
        raise InputError(f"graph.targets: {path} has node {nodes[order[repeated]]!r} twice")
    # Nodes may have no row, and rows may belong to nodes of other ranks.
    positions, has_row = found_among(numbers[order], ids)
    values_of_ids = np.full((len(ids), len(header) - 1), np.nan)
    values_of_ids[has_row] = values[order][positions[has_row]]
    return Targets(tuple(header[1:]), _finite(path, values_of_ids))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _nodes_of(
    path: Path, store: GraphStore, graphs: GlobalIndices | None, texts: Sequence[str]
) -> GlobalIndices:
    if store.has_names and graphs is None:
        numbers = store.find_names(texts)
    else:
        try:
            numbers = np.array([int(text) for text in texts], np.int64)
        except (ValueError, OverflowError):
            raise InputError(
                f"graph.targets: the first column of {path} must hold integers: original ids of "
                "nodes without names, or numbers of graphs"
            ) from None
    # Unknown names are -1.
    existing = np.arange(store.num_nodes) if graphs is None else graphs
    if graphs is None and not store.has_names:
        # `store` counts the rows that ranks read, each its own share.
        with GraphStore.open(store.path) as whole:
            existing = whole.read_original_id(0, store.num_nodes)
    unknown = np.flatnonzero(~np.isin(numbers, existing))
    if len(unknown):
        kind = "node" if graphs is None else "graph"
        missing = texts[int(unknown[0])]
        raise InputError(f"graph.targets: {path}: {store.path} has no {kind} {missing!r}")
    return numbers


def _number(path: Path, line: int, text: str) -> float:
    try:
        return float(text) if text.strip() else np.nan
    except ValueError:
        raise InputError(f"graph.targets: {path}, line {line}: {text!r} is not a number") from None


def _finite(path: Path, values: FloatArray) -> FloatArray:
    if np.isinf(values).any():
        raise InputError(f"graph.targets: {path} has infinite values; leave them out as NaN")
    return values


@collective
def target_scale(
    grid: ProcessGrid, where: str, targets: Targets, split: FloatArray
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the deviation of each target over the training rows of all ranks.

    They are rounded, to be the same on any number of ranks. The deviation of a constant target is
    1. `where` names their source in messages.

    Raises `CollectiveInputError` if a target has no known value in the training split, or values
    whose squares float64 does not hold.
    """
    values = targets.values[split == int(Split.TRAIN)]
    known = ~np.isnan(values)
    columns = np.concatenate([known.astype(np.float64), np.where(known, values, 0)], axis=1)
    sums = _sums(grid, columns).reshape(2, -1)
    with agree(grid.world):
        for name, count in zip(targets.names, sums[0].tolist(), strict=True):
            if count == 0:
                raise InputError(
                    f"{where} has no value of {name!r} in the training split; leave the column "
                    "out, or give some"
                )
    means: FloatArray = sums[1] / sums[0]
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.where(known, values - means, 0) ** 2
    deviations = np.sqrt(_sums(grid, squares) / sums[0])
    with agree(grid.world):
        if len(large := np.flatnonzero(~np.isfinite(deviations))):
            name = targets.names[int(large[0])]
            raise InputError(f"{where}: values of {name!r} are too large; give them in other units")
    # The deviation of a constant target is only rounding of its mean.
    deviations[deviations <= ROUNDING * np.finfo(np.float64).eps * np.abs(means)] = 1
    # A mean far from 0 keeps more digits, so that its error is below 10^-5 deviations.
    far = np.log10(np.maximum(np.abs(means) / deviations, 1)).astype(int)
    return _rounded(means, far), _rounded(deviations, np.zeros_like(far))


@collective
def _sums(grid: ProcessGrid, rows: FloatArray) -> FloatArray:
    sums: FloatArray = arithmetic().sums_and_count(torch.from_numpy(rows), grid.sum_over_blocks)
    return sums[:-1]


def _rounded(values: FloatArray, more: Array) -> tuple[float, ...]:
    pairs = zip(values.tolist(), more.tolist(), strict=True)
    return tuple(float(f"{value:.{5 + digits}e}") for value, digits in pairs)
