"""The types and shapes of datasets, and checks of their values, used in writing and reading.

Each function returns None for valid data, and otherwise part of a message that names the invalid
element; the caller adds file, dataset and remedy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hpcgnn.storage.format import first_true, fits
from hpcgnn.storage.graph import schema
from hpcgnn.storage.graph.schema import MAX_NODES, Split
from hpcgnn.typing import Array

PIECE_VALUES = 1 << 20
"""Features to check at a time, so that no mask as large as the slab is allocated."""


def fault_in_offsets(indptr: Array, first_row: int = 0) -> str | None:
    """Check that offsets (m + 1,) never decrease."""
    row = first_true(indptr[1:] < indptr[:-1])
    if row is None:
        return None
    return f"row {first_row + row} ends at {indptr[row + 1]} before it starts at {indptr[row]}"


def fault_in_columns(indices: Array, num_nodes: int) -> str | None:
    """Check that column indices lie in 0..num_nodes - 1."""
    if not indices.size or (indices.min() >= 0 and indices.max() < num_nodes):
        return None
    position = first_true((indices < 0) | (indices >= num_nodes))
    return f"column {indices[position]} is outside 0..{num_nodes - 1}"


def fault_in_order(indptr: Array, indices: Array, first_row: int = 0) -> str | None:
    """Check that columns increase strictly inside every row; `indptr` (m + 1,) starts at 0."""
    if len(indices) < 2:
        return None
    unordered = indices[1:] <= indices[:-1]
    # The first column of a row may be smaller than the last one of the row before.
    starts = indptr[1:-1]
    starts = starts[(starts > 0) & (starts < len(indices))]
    unordered[starts - 1] = False
    position = first_true(unordered)
    if position is None:
        return None
    row = int(np.searchsorted(indptr, position, side="right")) - 1
    return f"the columns of row {first_row + row} are not sorted and unique"


def fault_in_graphs(numbers: Array, start: int = 0) -> str | None:
    """Check graph numbers (m,) of nodes; `start` is the first node's number."""
    position = first_true((numbers < 0) | (numbers >= MAX_NODES))
    if position is None:
        return None
    return f"node {start + position} is of graph {numbers[position]}; graphs are numbered from 0"


def fault_in_weights(weights: Array) -> str | None:
    """Check that weights are finite."""
    position = first_true(~np.isfinite(weights))
    return None if position is None else f"weight {weights[position]} is not a finite number"


def fault_in_features(
    features: Array, start: int = 0, *, unit: str = "node", missing: bool = False
) -> str | None:
    """Check that features (m, f) are finite; `start` is the number of the first `unit`.

    With `missing` they may be NaN.
    """
    step = max(1, PIECE_VALUES // max(1, features.shape[1]))
    for low in range(0, len(features), step):
        piece = features[low : low + step]
        wrong = np.isinf(piece) if missing else ~np.isfinite(piece)
        if wrong.any():
            row, column = (int(i) for i in np.unravel_index(wrong.argmax(), wrong.shape))
            value = piece[row, column]
            return f"{unit} {start + low + row} has the value {value} in column {column}"
    return None


def fault_in_field(values: Array, start: int, *, of_edges: bool) -> str | None:
    """Check that the values (m, f) of a field are finite or NaN, which stands for missing."""
    unit = "edge" if of_edges else "node"
    return fault_in_features(values, start, unit=unit, missing=True)


def fault_in_times(times: Array, starts: Array) -> str | None:
    """Check that times (T,) increase in each trajectory, whose rows begin at `starts` (R + 1,)."""
    if times.ndim != 1 or starts.ndim != 1 or len(starts) < 2 or not len(times):
        return f"times {times.shape} and trajectory_starts {starts.shape} are not (T,) and (R + 1,)"
    if starts[0] != 0 or starts[-1] != len(times) or (np.diff(starts) < 1).any():
        return f"trajectory_starts must increase from 0 to the number of steps, {len(times)}"
    if (step := first_true(~np.isfinite(times))) is not None:
        return f"step {step} is at the time {times[step]}"
    falls = np.diff(times) <= 0
    falls[starts[1:-1] - 1] = False
    if (step := first_true(falls)) is None:
        return None
    return (
        f"step {step + 1} is at {times[step + 1]:g}, and step {step} before it at {times[step]:g}"
    )


def fault_in_node_weights(weights: Array, start: int = 0) -> str | None:
    """Check that the weights (m,) of nodes are finite and at least 0."""
    row = first_true(~(np.isfinite(weights) & (weights >= 0)))
    return None if row is None else f"node {start + row} has the weight {weights[row]}"


def fault_in_labels(num_classes: int, labels: Array, start: int = 0) -> str | None:
    """Check labels (m,) in -1..num_classes - 1, or multi-label (m, num_classes) in 0..1."""
    if labels.ndim == 2:
        row = first_true(np.any(labels > 1, axis=1))
        return None if row is None else f"node {start + row} has a value other than 0 and 1"
    row = first_true((labels < -1) | (labels >= num_classes))
    if row is None:
        return None
    classes = f"0..{num_classes - 1} (-1 means unlabelled)"
    return f"node {start + row} has label {labels[row]}, outside {classes}"


def fault_in_edge_labels(num_labels: int, labels: Array, start: int = 0) -> str | None:
    """Check labels of edges, as in `EdgeData`; NaN stands for a missing number."""
    is_class = labels.dtype == schema.LABEL_DTYPE
    width = 1 if is_class else num_labels
    if labels.shape[1] != width:
        return f"labels have {labels.shape[1]} columns, not the {width} of their names"
    if labels.dtype == schema.NUMBER_DTYPE:
        row = first_true(np.any(np.isinf(labels), axis=1))
        return None if row is None else f"node {start + row} has an infinite number"
    return fault_in_labels(num_labels, labels[:, 0] if is_class else labels, start)


def fault_in_range(what: str, last: int, values: Array, start: int = 0) -> str | None:
    """Check that values (m,) are numbers in 0..last."""
    row = first_true((values < 0) | (values > last))
    if row is None:
        return None
    return f"node {start + row} has the {what} {values[row]}, outside 0..{last}"


def fault_in_type_rows(
    type_rows: Array, order: Array, bounds: Array, counts: Array, start: int = 0
) -> str | None:
    """Check that the nodes of each type are consecutive rows of the `counts[t]` of type t.

    `order` and `bounds` are those of `blocks.group_by_type`.
    """
    grouped = type_rows[order]
    lengths = np.diff(bounds)
    present = np.flatnonzero(lengths)
    first = grouped[bounds[present]]
    outside = first_true((first < 0) | (first > counts[present] - lengths[present]))
    if outside is not None:
        node = start + int(order[bounds[present[outside]]])
        return f"node {node} has row {first[outside]}, which its type does not have"
    steps = np.arange(len(grouped)) - np.repeat(bounds[present], lengths[present])
    position = first_true(grouped != np.repeat(first, lengths[present]) + steps)
    if position is None:
        return None
    return f"node {start + int(order[position])} is not in the row after its type's previous node"


def fault_in_row_starts(row_starts: Array, num_nodes: int) -> str | None:
    """Check that part boundaries (K + 1,), K >= 1, run from 0 to num_nodes and never decrease."""
    if len(row_starts) < 2 or row_starts[0] != 0 or row_starts[-1] != num_nodes:
        return f"row_starts must run from 0 to {num_nodes}"
    part = first_true(row_starts[1:] < row_starts[:-1])
    return None if part is None else f"part {part} ends before it starts"


@dataclass(frozen=True)
class Kind:
    """Type and row shape of a dataset: one of `dtypes`, and `row`, in which None is any length.

    `find_fault` checks rows and takes the number of the first. NumPy arrays whose kind is in
    `given` are cast to the only one of `dtypes`; if it is empty, arrays must have one of `dtypes`.
    `expected` describes valid arrays in messages.
    """

    dtypes: tuple[np.dtype[Any], ...]
    row: tuple[int | None, ...] = ()
    find_fault: Callable[[Array, int], str | None] = lambda *_: None
    given: str = "iu"
    expected: str = "integers of shape ('n',)"

    def stored(
        self, num_rows: int | None
    ) -> tuple[tuple[np.dtype[Any], ...], tuple[int | None, ...]]:
        """Return types and shape of a dataset of `num_rows` rows."""
        return self.dtypes, (num_rows, *self.row)

    def dtype_of(self, array: Array) -> np.dtype[Any] | None:
        """Return the type in which an array is stored, None if it does not fit."""
        if array.ndim == 0 or not fits(self.row, array.shape[1:]) or 0 in array.shape[1:]:
            return None
        if self.given:
            return self.dtypes[0] if array.dtype.kind in self.given else None
        dtype = array.dtype.newbyteorder("<")
        return dtype if dtype in self.dtypes else None


FEATURES = Kind(
    schema.FEATURE_DTYPES,
    (None,),
    fault_in_features,
    "",
    "a matrix of float16, float32 or float64 with at least one column",
)
ROLES = Kind((schema.SPLIT_DTYPE,), (), partial(fault_in_range, "split value", int(max(Split))))
IDS = Kind((schema.ID_DTYPE,))
WEIGHTS = Kind(
    (schema.WEIGHTS_DTYPE,), (), lambda rows, _: fault_in_weights(rows), "iuf", "numbers (m,)"
)


def edge_kinds(num_labels: int) -> dict[str, Kind]:
    """Return the kinds of edge data, with `num_labels` classes or numbers as labels."""
    dtypes = (schema.LABEL_DTYPE, schema.MULTI_LABEL_DTYPE, schema.NUMBER_DTYPE)
    expected = f"int32 (m, 1), uint8 (m, {num_labels}) or float32 (m, {num_labels})"
    fault = partial(fault_in_edge_labels, num_labels)
    labels = Kind(dtypes, (None,), fault, "", expected)
    return {"weights": WEIGHTS, "features": FEATURES, "split": ROLES, "labels": labels}


def node_kinds(num_classes: int, *, multi_label: bool, num_types: int) -> dict[str, Kind]:
    """Return the kinds of the datasets below /nodes by name, or by the name of their group."""
    row = (num_classes,) if multi_label else ()
    dtype = schema.MULTI_LABEL_DTYPE if multi_label else schema.LABEL_DTYPE
    expected = f"integers of shape {('n', *row)} (num_classes={num_classes})"
    in_labels = partial(fault_in_labels, num_classes)
    return {
        "labels": Kind((dtype,), row, in_labels, "iub", expected),
        "split": ROLES,
        "splits": ROLES,
        "original_id": IDS,
        "graph": Kind((schema.ID_DTYPE,), (), fault_in_graphs),
        "features": FEATURES,
        "type": Kind((schema.TYPE_DTYPE,), (), partial(fault_in_range, "type", num_types - 1)),
        "type_row": IDS,
        "positions": Kind(
            (schema.COORDINATE_DTYPE,), (None,), fault_in_features, "iuf", "numbers (n, D)"
        ),
        "weights": Kind(
            (schema.COORDINATE_DTYPE,), (), fault_in_node_weights, "biuf", "numbers (n,)"
        ),
    }
