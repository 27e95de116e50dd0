"""Count the traffic between hosts for each exchange, and find the choice of `auto`.

    python -m benchmarks.count_hosts --json

A product with rows of width 256 on several hosts with several ranks each, counted as in
`hpcgnn.plan`: rows and messages in total and between hosts, and the model's seconds of messages
over given links. `exchange.method=auto` should choose an exchange within 5 % of the cheapest.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.columns import Columns, count, print_columns, ratio, text
from benchmarks.exchange_graphs import SEED, cut_whole, make_pattern
from benchmarks.report import circumstances
from hpcgnn.comm import Network
from hpcgnn.config.config import Config, GraphConfig, RunConfig
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.config.model import ModelConfig
from hpcgnn.graph.choose_exchange import ExchangeChoice, candidates, row_bytes
from hpcgnn.partition import metis, random
from hpcgnn.plan.estimates import product_moves, product_seconds
from hpcgnn.plan.ghost_rows import StoredSurvey
from hpcgnn.plan.traffic import ALL, Ranks, between_hosts, sent_by_rank
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm import EXCHANGES

CUTS = ("debian:metis", "debian:random", "rmat:14:16:random", "grid3d:24:metis")
PLACES = ((4, 1), (4, 4), (16, 4))
LINKS = {
    "200 Mbit/s": Network(25e6, 100e-6, None, 2e9, 5e-6),
    "1 Gbit/s": Network(125e6, 50e-6, None, 2e9, 5e-6),
    "100 Gbit/s": Network(12.5e9, 2e-6, None, 10e9, 1e-6),
}
COLUMNS: Columns = {
    "graph, parts": ("graph", text),
    "hosts": ("hosts", text),
    "ranks each": ("per_host", text),
    "exchange": ("exchange", text),
    "rows": ("rows", count),
    "messages": ("messages", count),
    "rows between hosts": ("rows_between", count),
    "messages between hosts": ("messages_between", count),
    **{name: (name, ratio) for name in LINKS},
}


def main() -> None:
    """Print a line for each exchange and case, with seconds as multiples of the minimum."""
    cli = argparse.ArgumentParser(description=__doc__)
    text = "GRAPH:METHOD, a graph of bench_exchange, and metis or random parts"
    cli.add_argument("--cuts", nargs="+", default=CUTS, metavar="CUT", help=text)
    cli.add_argument("--json", action="store_true", help="print one JSON object per way")
    options = cli.parse_args()
    found = [row for cut in options.cuts for row in counted(cut)]
    if options.json:
        for row in found:
            print(json.dumps(row | circumstances()))
    else:
        print_columns(COLUMNS, found)


def counted(cut: str) -> Iterator[dict[str, Any]]:
    """Yield the traffic of each exchange on each set of hosts, and the chosen exchange."""
    name, _, method = cut.rpartition(":")
    pattern = make_pattern(name)
    partitioner = {"metis": metis, "random": random}[method](SEED)
    for hosts, per_host in PLACES:
        whole, starts = cut_whole(pattern, partitioner(pattern, hosts * per_host))
        rows = [of_exchange(whole, starts, per_host, each) for each in EXCHANGES]
        chosen = auto(rows, Ranks(starts, ExchangeConfig(), per_host))
        for link in LINKS:
            least = min(row[link] for row in rows)
            for row in (*rows, chosen):
                row[link] /= least
        for row in (*rows, chosen):
            yield {"graph": cut, "hosts": hosts, "per_host": per_host, **row}


def of_exchange(whole: DistCSR, starts: Any, per_host: int, name: str) -> dict[str, Any]:
    """Return the counts of one exchange, and its seconds for each kind of link."""
    size = row_bytes(CONFIG)
    ranks = Ranks(starts, ExchangeConfig(method=name), per_host)
    traffic = {ALL: StoredSurvey.of(whole, ranks).traffic(ranks)}
    every, away = (
        sent_by_rank(product_moves(size, joined=True), each, 1)
        for each in (traffic, between_hosts(traffic, ranks))
    )
    return {
        "exchange": name,
        "rows": int(every.rows.sum()),
        "messages": int(every.messages.sum()),
        "rows_between": int(away.rows.sum()),
        "messages_between": int(away.messages.sum()),
        **{
            # The ranks of a host share its link.
            link: product_seconds(
                traffic[ALL],
                ranks,
                replace(each, bandwidth=each.bandwidth / per_host),
                size,
                joined=True,
            )
            for link, each in LINKS.items()
        },
    }


def auto(rows: Sequence[dict[str, Any]], ranks: Ranks) -> dict[str, Any]:
    """Return a line with the seconds of the exchange chosen for each kind of link."""
    names = candidates(CONFIG, ranks.hosts_of_grid)
    known = {row["exchange"]: row for row in rows}
    chosen = {}
    for link, network in LINKS.items():
        costs = {name: known[name][link] for name in names}
        chosen[link] = ExchangeChoice.of(costs, network).method
    by_link = ", ".join(dict.fromkeys(chosen.values()))
    empty = dict.fromkeys(("rows", "messages", "rows_between", "messages_between"), 0)
    costs = {link: known[name][link] for link, name in chosen.items()}
    return {"exchange": f"auto: {by_link}", **empty, **costs}


CONFIG = Config(
    graph=GraphConfig(store="none"), model=ModelConfig(hidden=256), run=RunConfig(dir="none")
)


if __name__ == "__main__":
    main()
