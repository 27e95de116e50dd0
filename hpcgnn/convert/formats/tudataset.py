"""TUDataset folders (Morris et al., 2020): many graphs in text files with a common prefix.

Graph labels become classes, graph attributes numbers to predict. The features of nodes and of edges
are their attributes, followed by a one-hot column for each of their labels.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.convert.read.arrays import RelationEdges, many_graphs
from hpcgnn.convert.source import ConvertOptions, GraphSource
from hpcgnn.errors import InputError, one_line
from hpcgnn.storage import first_true
from hpcgnn.typing import Array

_END = "_graph_indicator.txt"


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the folder `path`; raises `InputError`."""
    files = sorted(path.glob(f"*{_END}"))
    if len(files) != 1:
        raise InputError(f"{path}: has {len(files)} files *{_END}; a data set has one")
    name, dtype = files[0].name.removesuffix(_END), np.dtype(options.dtype or "float32")
    return _Folder(path, name, np.promote_types(dtype, np.float32)).read()


class _Folder:
    def __init__(self, path: Path, name: str, dtype: DTypeLike) -> None:
        self._path, self._name, self._dtype = path, name, dtype
        self._read: list[Path] = []

    def read(self) -> GraphSource:
        graph = self._counted("graph_indicator", 1)[:, 0]
        ends = self._counted("A", 2)
        num_graphs = int(graph.max(initial=-1)) + 1
        if (wrong := first_true(ends.max(axis=1, initial=0) >= len(graph))) is not None:
            raise InputError(
                f"{self._file('A')}, line {wrong + 1}: node {ends[wrong].max() + 1} of {len(graph)}"
            )
        labels = self._table("graph_labels", num_graphs)
        targets = self._table("graph_attributes", num_graphs)
        classes, names, ignored = None, tuple[str, ...](), []
        if labels is not None:
            # Number the classes from 0; they are often -1 and 1, which become names.
            found, classes = np.unique(labels[:, 0], return_inverse=True)
            if not np.array_equal(found, np.arange(len(found))):
                names = tuple(f"{value:.16g}" for value in found)
            ignored += ["graph_labels behind the first column"] * (labels.shape[1] > 1)
            ignored += ["graph_attributes"] * (targets is not None)
        features = self._features("node", len(graph))
        edges = RelationEdges(ends[:, 0], ends[:, 1], None, self._features("edge", len(ends)))
        inputs = tuple(self._read)
        source = many_graphs(
            self._path, graph, edges, features, classes, inputs=inputs, ignored=tuple(ignored)
        )
        if source.nodes.labels is None:
            return replace(source, targets=targets)
        named = replace(source.nodes.labels, class_names=names)
        return replace(source, nodes=replace(source.nodes, labels=named))

    def _features(self, owner: str, count: int) -> Array | None:
        """Return the attributes and one-hot labels of nodes or edges as columns."""
        attributes = self._table(f"{owner}_attributes", count)
        labels = self._table(f"{owner}_labels", count)
        parts = [] if attributes is None else [attributes]
        for column in () if labels is None else labels.T:
            kinds, codes = np.unique(column, return_inverse=True)
            parts.append(np.eye(len(kinds))[codes])
        return np.concatenate(parts, axis=1).astype(self._dtype) if parts else None

    def _file(self, content: str) -> Path:
        return self._path / f"{self._name}_{content}.txt"

    def _counted(self, content: str, columns: int) -> Array:
        """Return the table (rows, columns) of numbers that count from 1, minus 1."""
        table = self._table(content, None)
        if table is None or table.shape[1] != columns or (table < 1).any() or (table % 1).any():
            raise InputError(
                f"{self._file(content)}: needs {columns} whole numbers from 1 up in each line"
            )
        return table.astype(np.int64) - 1

    def _table(self, content: str, rows: int | None) -> Array | None:
        """Return the numbers of a file, (rows, columns) float64, or None if there is no file."""
        file = self._file(content)
        if not file.exists():
            return None
        self._read.append(file)
        try:
            numbers: Array = np.loadtxt(file, np.float64, delimiter=",", ndmin=2)
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: cannot be read ({one_line(error)}); correct it") from None
        if rows is not None and len(numbers) != rows:
            raise InputError(
                f"{file}: has {len(numbers)} lines where {rows} are expected; correct it"
            )
        return numbers
