"""The text files of OGB folders: edges, features, labels, and the choice of a split."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcgnn.convert.nodes import SPLIT_NAMES, split_from_indices
from hpcgnn.convert.source import ConvertOptions, EdgeChunk, EdgeStream, Features, FeatureStream
from hpcgnn.convert.text_reader import first_fields, read_column, read_tables
from hpcgnn.errors import InputError
from hpcgnn.typing import Array

__all__ = [
    "split_folder",
    "split_in",
    "split_of",
    "text_edges",
    "text_features",
    "text_labels",
]


def text_edges(path: Path, relation: str = "") -> EdgeStream:
    """Yield the edges of a file of two columns, source and target."""
    for table in read_tables(path, 2):
        ends = table.integers([0, 1])
        yield EdgeChunk(ends[:, 0], ends[:, 1], table.locate, relation=relation)


def text_features(path: Path) -> Features:
    """Return the rows of a file as features."""
    columns = len(first_fields(path)[0])

    def blocks() -> FeatureStream:
        for table in read_tables(path, columns):
            yield table.floats(range(columns))

    return Features(columns, np.dtype(np.float32), blocks, lambda row: f"{path}: line {row + 1}")


def text_labels(path: Path) -> Array:
    """Return the numbers of a file, a row for each node."""
    parts = [table.floats(range(table.starts.shape[1]), np.float64) for table in read_tables(path)]
    return np.concatenate(parts) if parts else np.zeros((0, 1))


def split_of(path: Path, num_nodes: int, options: ConvertOptions) -> NDArray[np.uint8] | None:
    """Return the split of the graph in the folder `path`, None without any."""
    folder = split_folder(path, options)
    return None if folder is None else split_in(folder, num_nodes)


def split_folder(path: Path, options: ConvertOptions) -> Path | None:
    """Return the folder of the one split of a graph, or of that which is asked for."""
    parent = path / "split"
    if not parent.is_dir():
        return None
    names = sorted(child.name for child in parent.iterdir() if child.is_dir())
    if not names:
        raise InputError(f"{parent}: holds no split; add one, or remove the folder")
    name = options.split if options.split is not None else names[0]
    if name not in names or (options.split is None and len(names) > 1):
        raise InputError(f"{parent}: holds the splits {', '.join(names)}; choose one with --split")
    folder = parent / name
    if (folder / "split_dict.pt").exists():
        raise InputError(
            f"{folder / 'split_dict.pt'}: is a pickle of torch, which is not read, since it could "
            "execute code; save its arrays as train.csv.gz, valid.csv.gz and test.csv.gz there"
        )
    return folder


def split_in(folder: Path, num_nodes: int) -> NDArray[np.uint8]:
    """Return the split whose ids the files train, valid and test of a folder name."""
    files = {part: folder / f"{part}.csv.gz" for part in SPLIT_NAMES}
    ids = {part: read_column(file) for part, file in files.items()}
    return split_from_indices(ids, num_nodes, {part: str(file) for part, file in files.items()})
