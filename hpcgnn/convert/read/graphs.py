"""Many graphs as one: nodes and edges side by side, what is known of each graph at its nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpcgnn.convert.nodes import labelled
from hpcgnn.convert.read.arrays import Edges, array_source, matrix_features
from hpcgnn.convert.source import GraphSource, Nodes
from hpcgnn.errors import InputError
from hpcgnn.typing import Array, GlobalIndices


@dataclass(frozen=True, eq=False)
class ManyGraphs:
    """Graphs side by side.

    Parameters
    ----------
    graph
        (n,) int64 the number of each node's graph.
    edges
        Of all graphs, between nodes of the whole.
    features
        (n, f), or None.
    values
        (g,) or (g, w): classes, 0 and 1 of several labels, or numbers to predict; or None.
    """

    graph: GlobalIndices
    edges: Edges
    features: Array | None
    values: Array | None

    def source(
        self, path: Path, *, inputs: tuple[Path, ...] = (), ignored: tuple[str, ...] = ()
    ) -> GraphSource:
        """Return them as one graph; raises `InputError` for faulty values.

        Whole numbers become classes, and others are numbers to predict, which stand in a file
        beside the store.
        """
        nodes, targets = Nodes(graph=self.graph), None
        if self.features is not None:
            nodes = replace(nodes, features=matrix_features(self.features, str(path)))
        if self.values is not None and _are_classes(self.values):
            labels = labelled(self.values, f"{path}: labels of graphs")
            nodes = replace(nodes, labels=replace(labels, values=labels.values[self.graph]))
        elif self.values is not None:
            targets = np.asarray(self.values, np.float64).reshape(len(self.values), -1)
        found = array_source(
            path, {"": self.edges}, len(self.graph), nodes, inputs=inputs, ignored=ignored
        )
        return replace(found, targets=targets)


def _are_classes(values: Array) -> bool:
    if values.dtype.kind != "f":
        return True
    known = values[~np.isnan(values)]
    whole = bool((known == np.floor(known)).all() and (known >= -1).all())
    # Several columns are several labels, or several numbers.
    return whole and (
        values.ndim == 1 or values.shape[1] == 1 or bool(np.isin(known, (0, 1)).all())
    )


def side_by_side(parts: Sequence[Edges], sizes: Sequence[int], where: str) -> Edges:
    """Return the edges of graphs of so many nodes, one graph after the other."""
    starts = np.cumsum([0, *sizes])
    for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        ends = np.concatenate([part.src, part.dst])
        if len(ends) and not 0 <= ends.min() <= ends.max() < size:
            raise InputError(f"{where}[{number}]: has {size} nodes, but an edge to another number")
    weights = [part.weights for part in parts if part.weights is not None]
    features = [part.features for part in parts if part.features is not None]
    for what, found in (("weights", weights), ("features", features)):
        if found and len(found) < len(parts):
            raise InputError(f"{where}: edges of some graphs have {what}, others not; give all")
    return Edges(
        np.concatenate([part.src + start for part, start in zip(parts, starts, strict=False)]),
        np.concatenate([part.dst + start for part, start in zip(parts, starts, strict=False)]),
        np.concatenate(weights) if weights else None,
        np.concatenate(features) if features else None,
    )
