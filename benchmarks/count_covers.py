"""Count rows to move for messages if some are pushed as partial sums, by the cost of a push.

    python -m benchmarks.count_covers [--graphs grid3d:40 debian rmat:16:16] [--parts 8] --json

A fetched row costs 1. A pushed partial sum costs 1 if the message needs only source and edge, 2 if
the target's row is sent first, and 3 if the sum is also twice as wide (gatedgcn). The least weight
of a cover is the size of a maximum matching of the cut edges in which a sum may be matched as often
as it costs (König and Egerváry).
"""

import argparse
import json
from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_matrix, vstack
from scipy.sparse.csgraph import maximum_bipartite_matching

from benchmarks.exchange_graphs import SEED, make_pattern
from benchmarks.report import circumstances
from hpcgnn.partition import CSRGraph, metis

COSTS = 1, 2, 3


def main() -> None:
    """Print a line for each graph."""
    cli = argparse.ArgumentParser(description=__doc__)
    graphs = "grid3d:40", "debian", "rmat:16:16"
    cli.add_argument("--graphs", nargs="+", default=graphs, help="as for bench_exchange")
    cli.add_argument("--parts", type=int, default=8, help="of METIS")
    cli.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = cli.parse_args()
    for name in options.graphs:
        pattern = make_pattern(name)
        parts = metis(SEED)(pattern, options.parts)
        row = {"graph": name, "parts": options.parts, **counted(pattern, np.asarray(parts.part))}
        print(json.dumps(row | circumstances()) if options.json else row)


def counted(pattern: CSRGraph, part: np.ndarray) -> dict[str, float]:
    """Return the rows of `aware`, and the weight of the least cover by the cost of a push."""
    targets = np.repeat(np.arange(pattern.num_nodes), np.diff(pattern.indptr))
    sources = pattern.indices
    cut = part[targets] != part[sources]
    targets, sources = targets[cut], sources[cut]
    # The blocks of all pairs of parts side by side: none shares a row or a column.
    width = int(part.max()) + 1
    sums, rows = _numbered(targets * width + part[sources])
    ghosts, columns = _numbered(sources * width + part[targets])
    block = csr_matrix((np.ones(len(rows), np.int8), (rows, columns)), (sums, ghosts))
    found = dict(_weights(block))
    return {"aware": ghosts, "sums": sums, **found}


def _numbered(keys: np.ndarray) -> tuple[int, np.ndarray]:
    every, numbers = np.unique(keys, return_inverse=True)
    return len(every), numbers


def _weights(block: csr_matrix) -> Iterator[tuple[str, float]]:
    for cost in COSTS:
        matched = maximum_bipartite_matching(vstack([block] * cost, "csr"), perm_type="row")
        moved = int((matched >= 0).sum())
        yield f"cost_{cost}", moved
        yield f"cost_{cost}_over_aware", round(moved / max(block.shape[1], 1), 4)


if __name__ == "__main__":
    main()
