"""Count the messages saved by joining short messages of a product's two exchanges.

    python -m benchmarks.count_joined [--cuts GRAPH:METHOD ...] [--ranks 16 64 256] --json

One product of the joint exchange with float32 rows and one rank per host, counted as in `hpcgnn
plan`: messages with and without joining, and the ratio of the model's seconds of messages without
and with it, over the links of `benchmarks.count_hosts`.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.columns import Columns, count, print_columns, ratio, text
from benchmarks.count_hosts import LINKS
from benchmarks.exchange_graphs import SEED, cut_whole, make_pattern
from benchmarks.report import circumstances
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.partition import metis, random
from hpcgnn.plan.estimates import product_moves, product_seconds
from hpcgnn.plan.ghost_rows import StoredSurvey
from hpcgnn.plan.traffic import ALL, Ranks, sent_by_rank

CUTS = ("debian:metis", "rmat:14:16:random", "grid3d:24:metis")
WIDTHS = (16, 64, 256)
COLUMNS: Columns = {
    "graph, parts": ("graph", text),
    "ranks": ("ranks", count),
    "width": ("width", count),
    "messages": ("messages", count),
    "without joining": ("messages_alone", count),
    **{name: (name, ratio) for name in LINKS},
}


def main() -> None:
    """Print a line for each graph, number of ranks and width."""
    cli = argparse.ArgumentParser(description=__doc__)
    help_of = "GRAPH:METHOD, a graph of bench_exchange, and metis or random parts"
    cli.add_argument("--cuts", nargs="+", default=CUTS, metavar="CUT", help=help_of)
    cli.add_argument("--ranks", nargs="+", type=int, default=(16, 64, 256), metavar="P")
    cli.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = cli.parse_args()
    rows = [row for cut in options.cuts for row in counted(cut, options.ranks)]
    if options.json:
        for row in rows:
            print(json.dumps(row | circumstances()))
    else:
        print_columns(COLUMNS, rows)


def counted(cut: str, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the messages of a product, and its seconds without joining over those with it."""
    name, _, method = cut.rpartition(":")
    pattern = make_pattern(name)
    partitioner = {"metis": metis, "random": random}[method](SEED)
    for size in sizes:
        whole, starts = cut_whole(pattern, partitioner(pattern, size))
        ranks = Ranks(starts, ExchangeConfig(method="joint"), 1)
        traffic = {ALL: StoredSurvey.of(whole, ranks).traffic(ranks)}
        for width in WIDTHS:
            joined, alone = (
                sent_by_rank(product_moves(4 * width, joined=each), traffic, 1)
                for each in (True, False)
            )
            ratios = {}
            for link, network in LINKS.items():
                seconds = [
                    product_seconds(traffic[ALL], ranks, network, 4 * width, joined=each)
                    for each in (True, False)
                ]
                ratios[link] = seconds[1] / seconds[0]
            messages = int(joined.messages.sum()), int(alone.messages.sum())
            sent = dict(zip(("messages", "messages_alone"), messages, strict=True))
            yield {"graph": cut, "ranks": size, "width": width, **sent, **ratios}


if __name__ == "__main__":
    main()
