"""Draw random splits, by share or with a fixed number of nodes for each class."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpcgnn.errors import InputError
from hpcgnn.storage import Split
from hpcgnn.typing import Array, GlobalIndices

_PARTS = (Split.TRAIN, Split.VALID, Split.TEST)

_ROUNDING = 1e-9
"""How far above 100 three decimal percentages may sum because of rounding."""


def parse_shares(text: str) -> tuple[float, ...]:
    """Parse the percentages of --random-split; raises `InputError`."""
    try:
        shares = tuple(float(word) for word in text.split(","))
    except ValueError:
        raise InputError(
            f"--random-split {text}: give three percentages such as 60,20,20"
        ) from None
    check_shares(shares)
    return shares


def check_shares(shares: Sequence[float]) -> None:
    """Raise `InputError` unless these are three percentages that sum to at most 100."""
    text = ",".join(f"{share:g}" for share in shares)
    if len(shares) != 3 or not all(0 <= share <= 100 for share in shares):
        raise InputError(f"--random-split {text}: give three percentages such as 60,20,20")
    if abs(sum(shares) - 1) <= _ROUNDING:
        whole = ",".join(f"{100 * share:g}" for share in shares)
        raise InputError(f"--random-split {text}: give percentages; for all nodes, {whole}")
    if not 0 < sum(shares) <= 100 + _ROUNDING:
        raise InputError(
            f"--random-split {text}: the percentages sum to {sum(shares):g}; give at most 100"
        )


def random_split(
    labels: Array | None,
    num_nodes: int,
    shares: Sequence[float],
    *,
    seed: int = 0,
    per_class: int | None = None,
) -> NDArray[np.uint8]:
    """Return a split uint8[num_nodes] drawn with `seed` from the nodes that have labels.

    `labels` are int[n] with -1 for none, [n, classes] of 0 and 1, or None for an unlabelled graph.
    `shares` are the percentages of these nodes for training, validation and test; cumulative shares
    are rounded, and the remaining nodes are in no set. With `per_class`, that many nodes of each
    class train, and the first share is ignored. Raises `InputError` for a class with too few nodes
    or if nothing is left to train on.
    """
    check_shares(shares)
    split = np.zeros(num_nodes, np.uint8)
    nodes = np.arange(num_nodes)
    if labels is not None:
        nodes = np.flatnonzero(labels >= 0 if labels.ndim == 1 else labels.any(axis=1))
    order = np.random.default_rng(seed).permutation(nodes)
    ends = np.rint(np.cumsum(shares) * len(nodes) / 100).astype(np.int64)
    sizes = np.diff(ends, prepend=0)
    if per_class is not None:
        training = _of_each_class(labels, order, per_class)
        split[training] = Split.TRAIN
        order = order[split[order] == Split.NONE]
        ends = np.cumsum([0, sizes[1], sizes[2]])
        if ends[-1] > len(order):
            raise InputError(
                f"--per-class {per_class}: leaves {len(order)} nodes, and validation and test "
                f"need {ends[-1]}; lower their shares or --per-class"
            )
    elif sizes[0] == 0:
        raise InputError(
            f"--random-split: {len(nodes)} nodes with labels leave none for training; raise the "
            "first percentage"
        )
    starts = np.concatenate([[0], ends[:-1]])
    for part, start, end in zip(_PARTS, starts, ends, strict=True):
        split[order[start:end]] = part
    return split


def labels_of_graphs(
    graph: GlobalIndices, labels: Array | None
) -> tuple[GlobalIndices, GlobalIndices, Array | None]:
    """Return the distinct graph numbers (G,), each node's index into them, and graph labels (G,).

    `graph` (n,) is each node's graph number, `labels` (n, ...) the node labels. A graph takes the
    label of its first labelled node.
    """
    numbers, first, index = np.unique(graph, return_index=True, return_inverse=True)
    if labels is None:
        return numbers, index, None
    known = np.flatnonzero(labels >= 0 if labels.ndim == 1 else labels.any(axis=1))
    labelled, first_known = np.unique(index[known], return_index=True)
    first[labelled] = known[first_known]
    return numbers, index, labels[first]


def split_of_nodes(split: Array, index: GlobalIndices, labels: Array | None) -> NDArray[np.uint8]:
    """Return the split of nodes from that of their graphs; unlabelled nodes are in no set.

    `index` is that of `labels_of_graphs`; `labels` are the node labels given to it.
    """
    of_nodes = split[index]
    if labels is not None and labels.ndim == 1:
        of_nodes[labels < 0] = Split.NONE
    return of_nodes


def _of_each_class(labels: Array | None, order: Array, per_class: int) -> Array:
    """Return the first `per_class` nodes of each class in `order`."""
    if labels is None or labels.ndim != 1:
        raise InputError("--per-class: needs one label a node; leave out the option")
    if per_class < 1:
        raise InputError(f"--per-class {per_class}: give at least 1")
    by_class = order[np.argsort(labels[order], kind="stable")]
    classes, first, counts = np.unique(labels[by_class], return_index=True, return_counts=True)
    if (counts < per_class).any():
        least = int(np.argmin(counts))
        raise InputError(
            f"--per-class {per_class}: class {classes[least]} has {counts[least]} nodes with "
            "labels; give at most as many"
        )
    return by_class[(first[:, None] + np.arange(per_class)).ravel()]
