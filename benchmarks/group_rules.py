"""Other rules for the size of neighbour groups, for comparison, and the fit of the regression."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.kernels.cuda.groups import GroupSizeRule

TIGR_SIZE = 10
"""Tigr's size for all graphs."""
_THREAD_WORK = 1024
"""Multiply-adds per thread in GNNAdvisor."""
_WARP = 32


def dimension_rule(width: int) -> int:
    """Return GNNAdvisor's size, which depends only on the width, not on the graph.

    A thread gets about 1024 multiply-adds; a group has a warp of threads for widths of 32 or more,
    else half a warp.

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
        (nodes, edges, best size) of each graph; at least four graphs of different structure.

    Raises
    ------
    InputError
        Too few graphs, or too alike to tell the four coefficients apart.
    """
    table = np.array(list(samples), dtype=np.float64).reshape(-1, 3)
    nodes, edges, best = table.T
    columns = np.stack([np.ones_like(nodes), nodes, edges, edges / nodes], axis=1)
    # Nodes are millions, degrees tens: columns of equal norm keep the fit well conditioned.
    norms = np.sqrt((columns**2).sum(axis=0))
    if len(table) < 4 or np.linalg.matrix_rank(columns / norms) < 4:
        raise InputError(
            f"{len(table)} graphs do not determine four coefficients: give more, of other sizes "
            "and degrees"
        )
    solution = np.linalg.lstsq(columns / norms, best, rcond=None)[0] / norms
    return GroupSizeRule(*(float(value) for value in solution))


def save_rule(rule: GroupSizeRule, path: Path, **facts: object) -> None:
    """Write the coefficients as JSON, with `facts` about their origin."""
    known = {name: value for name, value in asdict(rule).items() if value != math.inf}
    path.write_text(json.dumps(known | facts, indent=2) + "\n")
