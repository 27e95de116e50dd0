"""Where replication pays: rows that travel in a layer by ranks P and copies c, counted.

    python -m benchmarks.count_replication --figure benchmarks/results

The figure over P and c of "Sparsity-Aware Communication for Distributed Graph Neural Network
Training" (its section 7.2), in rows and not in seconds. P ranks with c copies cut a graph into
P / c block rows; what would travel is counted as `hpcgnn.plan` counts it: rows between block rows,
and sums over replicas. A layer of training is one product forward and one back.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.columns import Columns, count, print_columns, ratio, text
from benchmarks.exchange_graphs import SEED, make_pattern
from benchmarks.report import circumstances
from hpcgnn.analysis.figures import new_figure, save_figure
from hpcgnn.comm import RowMap
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.partition import CSRGraph, metis, random
from hpcgnn.plan import MOVEMENTS, Movement, Ranks, count_traffic, sent_by_rank
from hpcgnn.plan.traffic import ALL
from hpcgnn.sparse import DistCSR

EXCHANGES = ("oblivious", "aware", "joint")
CUTS = ("debian:metis", "debian:random", "rmat:14:16:random", "grid3d:24:metis")
COLUMNS: Columns = {
    "graph, parts": ("graph", text),
    "exchange": ("exchange", text),
    "P": ("ranks", text),
    "c": ("replication", text),
    "rows": ("rows", count),
    "of them summed": ("rows_summed", count),
    "busiest sends": ("rows_max_send", count),
    "to c = 1": ("ratio", ratio),
    "busiest to c = 1": ("ratio_max_send", ratio),
}


def main() -> None:
    """Print a line for each way, and draw them."""
    cli = argparse.ArgumentParser(description=__doc__)
    text = "GRAPH:METHOD, a graph of bench_exchange in metis or random parts"
    cli.add_argument("--cuts", nargs="+", default=CUTS, metavar="CUT", help=text)
    cli.add_argument("--ranks", nargs="+", type=int, default=(4, 8, 16, 32, 64), metavar="P")
    cli.add_argument("--copies", nargs="+", type=int, default=(1, 2, 4, 8), metavar="C")
    cli.add_argument("--figure", type=Path, metavar="DIR", help="where replication.svg and .png go")
    cli.add_argument("--json", action="store_true", help="print one JSON object a way")
    options = cli.parse_args()
    found = [row for cut in options.cuts for row in counted(cut, options.ranks, options.copies)]
    if options.json:
        for row in found:
            print(json.dumps(row | circumstances()))
    else:
        print_columns(COLUMNS, found)
    if options.figure is not None:
        save_figure(lambda: draw(found), options.figure, "replication")


def counted(cut: str, ranks: Sequence[int], copies: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield what a layer moves, for every exchange, number of ranks and number of copies."""
    name, _, method = cut.rpartition(":")
    pattern = make_pattern(name)
    cuts = {}
    for exchange in EXCHANGES:
        for number in ranks:
            single: dict[str, Any] = {}
            for each in copies:
                if number % each:
                    continue
                blocks = number // each
                if blocks not in cuts:
                    cuts[blocks] = cut_whole(pattern, method, blocks)
                whole, starts = cuts[blocks]
                config = ExchangeConfig(method=exchange, replication=each)
                row = rows_of_layer(whole, Ranks(starts, config))
                single = single or row
                yield {
                    "graph": cut,
                    "exchange": exchange,
                    "ranks": number,
                    "replication": each,
                    **row,
                    "ratio": row["rows"] / max(single["rows"], 1),
                    "ratio_max_send": row["rows_max_send"] / max(single["rows_max_send"], 1),
                }


def cut_whole(pattern: CSRGraph, method: str, blocks: int) -> tuple[DistCSR, Any]:
    """Return the graph in the order of its parts as one block, and where the parts start."""
    partitioner = {"metis": metis(SEED), "random": random(SEED)}[method]
    partition = partitioner(pattern, blocks)
    order = partition.permutation()
    permuted = pattern.to_scipy()[order][:, order].tocsr()
    permuted.sort_indices()
    whole = RowMap(np.array([0, permuted.shape[0]], np.int64), 0)
    indptr, indices = permuted.indptr.astype(np.int64), permuted.indices.astype(np.int64)
    return DistCSR.from_rows(whole, indptr, indices), partition.row_starts()


def rows_of_layer(whole: DistCSR, ranks: Ranks) -> dict[str, int]:
    """Return the rows of a product and its adjoint, in all and of the busiest rank."""
    traffic = {ALL: count_traffic(whole, ranks)}
    moves = [
        Movement(ALL, what, reverse, row_bytes=1) for what in MOVEMENTS for reverse in (False, True)
    ]
    sent = sent_by_rank(moves, traffic, ranks.exchange.replication)
    return {
        "rows": int(sent.rows.sum()),
        "rows_summed": int(traffic[ALL].sums.sum()),
        "rows_max_send": int(sent.rows.max()),
    }


def draw(found: Sequence[dict[str, Any]]) -> Figure:
    """Return the figure: a panel for each graph and exchange, a line for each number of copies."""
    graphs = list(dict.fromkeys(row["graph"] for row in found))
    figure = new_figure(3.1 * len(EXCHANGES), 2.3 * len(graphs))
    axes = figure.subplots(len(graphs), len(EXCHANGES), sharex=True, sharey="row", squeeze=False)
    copies = sorted({row["replication"] for row in found})
    tried = sorted({row["ranks"] for row in found})
    for line, graph in zip(axes, graphs, strict=True):
        for panel, exchange in zip(line, EXCHANGES, strict=True):
            panel.set_title(f"{graph}, {exchange}")
            for each in copies:
                rows = [
                    row
                    for row in found
                    if (row["graph"], row["exchange"], row["replication"])
                    == (graph, exchange, each)
                ]
                ranks, sums = ([row[key] for row in rows] for key in ("ranks", "rows"))
                panel.plot(ranks, sums, marker="o", markersize=3, label=f"c = {each}")
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            # Powers would be written as formulas, which text in figures is not.
            panel.set_xticks(tried, [str(each) for each in tried])
            panel.minorticks_off()
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            panel.grid(visible=True)
        line[0].set_ylabel("rows in a layer")
    for panel in axes[-1]:
        panel.set_xlabel("ranks P")
    axes[0][0].legend()
    return figure


if __name__ == "__main__":
    main()
