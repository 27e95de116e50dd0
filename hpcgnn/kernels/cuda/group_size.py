"""How many non-zeros a neighbour group may have: rules of three papers, and refitting.

A small group balances the load, a large one needs fewer additions across groups; the best size
depends on the card and on the structure of the graph (execution-path paper, section 5).
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.typing import LocalIndices, Offsets

# What Tigr chooses for all graphs.
TIGR_SIZE = 10
# Multiply-adds that GNNAdvisor gives to one thread.
_THREAD_WORK = 1024
_WARP = 32


class GroupRule(Protocol):
    """Chooses the size of the neighbour groups of a pattern."""

    def choose(self, indptr: Offsets, indices: LocalIndices, num_columns: int, width: int) -> int:
        """Return the size, at least 1, for products of a pattern with `width` dense columns."""
        ...


@dataclass(frozen=True)
class FixedSize:
    """The same size for every pattern."""

    size: int

    def choose(self, indptr: Offsets, indices: LocalIndices, num_columns: int, width: int) -> int:
        """Return the size."""
        return self.size


@dataclass(frozen=True)
class GroupSizeRule:
    """Group size by linear regression on the graph's structure (equation 3).

    Parameters
    ----------
    intercept
        Constant term.
    per_node, per_edge, per_degree
        Factors of the number of nodes, of edges, and of edges over nodes.
    """

    intercept: float
    per_node: float
    per_edge: float
    per_degree: float

    def size(self, num_nodes: int, num_edges: int) -> int:
        """Return the size for a graph, at least 1.

        For an execution path these are the nodes with edges in it and its edges.
        """
        if num_nodes == 0:
            return 1
        value = (
            self.intercept
            + self.per_node * num_nodes
            + self.per_edge * num_edges
            + self.per_degree * num_edges / num_nodes
        )
        return max(1, math.floor(value + 0.5))

    def choose(self, indptr: Offsets, indices: LocalIndices, num_columns: int, width: int) -> int:
        """Return the size for the stored rows and entries of a pattern."""
        return self.size(len(indptr) - 1, len(indices))

    def save(self, path: Path, **facts: object) -> None:
        """Write the coefficients as JSON, with `facts` about where they come from beside them."""
        path.write_text(json.dumps(asdict(self) | facts, indent=2) + "\n")

    @staticmethod
    def load(path: Path) -> "GroupSizeRule":
        """Read coefficients that `save` wrote.

        Raises
        ------
        InputError
            The file cannot be read or misses a coefficient.
        """
        try:
            found = json.loads(path.read_text())
            names = GroupSizeRule.__dataclass_fields__
            values = {name: float(found[name]) for name in names}
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: not a file of group-size coefficients ({error})") from error
        except KeyError as error:
            raise InputError(f"{path}: the coefficient {error} is missing") from error
        if not all(math.isfinite(value) for value in values.values()):
            raise InputError(f"{path}: a coefficient is not a finite number")
        return GroupSizeRule(**values)


# Fitted by the authors on an NVIDIA P100 (section 5).
PAPER_RULE = GroupSizeRule(
    intercept=0.65538, per_node=1.67431e-5, per_edge=-2.24342e-6, per_degree=0.63641
)


def dimension_rule(width: int) -> int:
    """Return GNNAdvisor's size, which looks at the width alone and not at the graph.

    A thread gets about 1024 multiply-adds; a group has a warp of threads side by side for widths
    from 32 on, else half a warp.

    Parameters
    ----------
    width
        Columns of the dense operand, at least 1.
    """
    threads = _WARP if width >= _WARP else _WARP // 2
    return max(1, _THREAD_WORK * threads // width)


def fit_rule(samples: Iterable[tuple[int, int, int]]) -> GroupSizeRule:
    """Fit the coefficients by least squares.

    Parameters
    ----------
    samples
        (nodes, edges, best size) of each graph; at least four that differ in structure.

    Raises
    ------
    InputError
        Too few graphs, or too alike to tell the four coefficients apart.
    """
    table = np.array(list(samples), dtype=np.float64).reshape(-1, 3)
    nodes, edges, best = table.T
    columns = np.stack([np.ones_like(nodes), nodes, edges, edges / nodes], axis=1)
    # Nodes count in the millions, degrees in tens: equal norms keep the least squares well posed.
    norms = np.sqrt((columns**2).sum(axis=0))
    if len(table) < 4 or np.linalg.matrix_rank(columns / norms) < 4:
        raise InputError(
            f"{len(table)} graphs do not determine four coefficients: give more, of other sizes "
            "and degrees"
        )
    solution = np.linalg.lstsq(columns / norms, best, rcond=None)[0] / norms
    return GroupSizeRule(*(float(value) for value in solution))
