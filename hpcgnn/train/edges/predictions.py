"""What a trained model says of all edges, in files: source, target, relation, and what it is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpcgnn.comm import ProcessGrid
from hpcgnn.comm.collect_rows import in_order
from hpcgnn.spmd import collective
from hpcgnn.storage import CsvEdges, H5Predictions
from hpcgnn.train.full.predictions import NodeRows, write_rows
from hpcgnn.train.links.edges import LinkEdges
from hpcgnn.typing import Array, GlobalIndices


@dataclass(frozen=True, eq=False)
class EdgeRows:
    """Edges of a rank, by the original `ids` (E, 2) of their ends, with what is said of them.

    The ids of `rows` are not those of nodes, but the numbers of relations.
    """

    ids: GlobalIndices
    rows: NodeRows

    @classmethod
    @collective
    def in_order(
        cls, grid: ProcessGrid, edges: LinkEdges, ids: GlobalIndices, rows: NodeRows
    ) -> "EdgeRows":
        """Return them sorted over the ranks of a layer by source, target and relation."""
        columns = edges.relations, ids, *rows.columns[1:]
        relations, ids, *rest = in_order(grid.layer, ids[:, 0], *columns)
        # All edges of a source are on one rank.
        order = np.lexsort((relations, ids[:, 1], ids[:, 0]))
        return cls(ids[order], NodeRows(relations[order], *(each[order] for each in rest)))

    @property
    def columns(self) -> tuple[Array, ...]:
        """What `write_edges` takes."""
        return self.ids, *self.rows.columns


@collective
def write_edges(
    grid: ProcessGrid,
    columns: tuple[Array, ...],
    file: CsvEdges | H5Predictions,
    relations: Sequence[str],
) -> None:
    """Write edges to a file, rank after rank, by rank 0.

    `columns` are original ids (E, 2), numbers of relations (E,) int64, and what the file takes.
    Raises `CollectiveInputError` when the file cannot be written.
    """
    write_rows(grid, columns, partial(_write, file, relations))


def _write(
    file: CsvEdges | H5Predictions, relations: Sequence[str], pieces: Iterable[tuple[Array, ...]]
) -> None:
    with file:
        for ids, numbers, *said in pieces:
            sources, targets = np.ascontiguousarray(ids.T)
            if isinstance(file, CsvEdges):
                names = [relations[number] for number in numbers.tolist()]
                file.append(sources, targets, names, *said)
                continue
            file.append(sources, *said)
            file.append_column("target", targets)
            file.append_column("relation", numbers)
        if isinstance(file, H5Predictions):
            file.append_column("relations", np.array([name.encode() for name in relations]))
