"""Typed edge lists: a line an edge, `src dst relation` or `src dst relation weight`.

The relation is a name or a number. Relations are stored in alphabetical order, or by number when
all are numbers. Other orders of the columns, such as the `head relation tail` of knowledge graphs,
are named with `columns` ("src,relation,dst").
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcgnn.convert.coordinates import by_relation
from hpcgnn.convert.edge_list import EdgeText
from hpcgnn.convert.npy import decode_texts
from hpcgnn.convert.relabel import IdMerger, compact
from hpcgnn.convert.source import ConvertOptions, EdgeStream, GraphSource, Nodes
from hpcgnn.errors import InputError
from hpcgnn.typing import GlobalIndices

__all__ = ["read"]

_USUAL = {3: ("src", "dst", "relation"), 4: ("src", "dst", "relation", "weight")}


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read a typed edge list in two passes, the first for its relations; raises `InputError`."""
    text = EdgeText.open(path, options, _USUAL)
    if "relation" not in text.roles:
        raise InputError("--columns: a typed edge list needs a column called relation")
    column = text.roles.index("relation")
    names, ids = _survey(text, column, relabel=options.relabel)
    relations, numbers = _in_order(names, path)

    def stream() -> EdgeStream:
        for table in text.tables():
            chunk = compact(text.edges(table), ids)
            positions = np.searchsorted(names, table.texts(column))
            yield from by_relation(chunk, numbers[positions], relations)

    return GraphSource(
        path=path,
        edges=stream,
        inputs=(path,),
        relations=relations,
        num_nodes=options.num_nodes if ids is None else len(ids),
        weighted=text.weighted,
        nodes=Nodes(original_id=ids),
        ignored=text.ignored,
    )


def _survey(
    text: EdgeText, column: int, *, relabel: bool
) -> tuple[NDArray[np.bytes_], GlobalIndices | None]:
    """Return the distinct relations of a file, sorted as bytes, and its distinct ids if asked."""
    names: NDArray[np.bytes_] = np.zeros(0, "S1")
    merger = IdMerger()
    for table in text.tables():
        names = np.unique(np.concatenate([names, np.unique(table.texts(column))]))
        if relabel:
            merger.add(text.edges(table))
    if not len(names):
        raise InputError(f"{text.path}: the graph has no edges; check the input")
    return names, merger.ids() if relabel else None


def _in_order(names: NDArray[np.bytes_], path: Path) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the relations in stored order, and the place of each of the sorted `names` in it."""
    texts = decode_texts(names, f"{path}: the relation column")
    if all(text.isdecimal() for text in texts):
        order = sorted(range(len(texts)), key=lambda i: (int(texts[i]), texts[i]))
    else:
        order = list(range(len(texts)))
    return tuple(texts[i] for i in order), np.argsort(order)
