"""Sparsity-Aware Communication for Distributed Graph Neural Network Training, reproduced.

    python -m benchmarks.papers.sparsity_aware [table-2 ...] [--quick | --docs benchmarks/results]

Rows, messages and bytes are counted as in `hpcgnn.plan`, and their time follows from a model of the
network; one rank is rehearsed for the time of computing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.exchange_graphs import cut_whole, make_pattern
from benchmarks.papers.page import Exhibit, Workshop, main, over_powers, row_of_panels
from hpcgnn.analysis.figures import new_figure
from hpcgnn.comm import Network, ProcessGrid
from hpcgnn.config.exchange import ExchangeConfig
from hpcgnn.config.file import load_config
from hpcgnn.partition import (
    CSRGraph,
    Partition,
    measure,
    metis,
    random,
    read_pattern,
    volume_balanced,
)
from hpcgnn.plan.ghost_rows import StoredSurvey
from hpcgnn.plan.rehearsal import in_fresh_process
from hpcgnn.plan.traffic import ALL, MOVEMENTS, Movement, Moves, Ranks, sent_by_rank
from hpcgnn.plan.whole_graph import WholeGraph
from hpcgnn.storage import GraphStore

PAPER = "Sparsity-Aware Communication for Distributed Graph Neural Network Training"
SEED = 20261121
FEATURES = 300
# Irregular with hubs and sparse like Amazon, regular like Protein, small and dense like Reddit.
STANDS_FOR = {"debian": "Amazon", "grid3d": "Protein", "rmat": "Reddit"}
STORES = {
    "debian": ("debian-packages",),
    "grid3d": ("grid3d", "--shape", "32,32,32", "--features", FEATURES, "--classes", 24),
    "rmat": ("rmat", "--scale", 13, "--edge-factor", 64, "--undirected", "--features", 602),
    "papers": ("rmat", "--scale", 16, "--edge-factor", 15, "--undirected", "--features", 128),
}
SMALL = {
    "debian": ("planted", "--nodes", 500),
    "grid3d": ("grid3d", "--shape", "6,6,6"),
    "rmat": ("rmat", "--scale", 8, "--undirected"),
    "papers": ("rmat", "--scale", 9, "--undirected"),
}
# As in the paper: three layers, 16 columns.
GCN = ("model.name=gcn", "model.num_layers=3", "model.hidden=16", "graph.undirected=true")
GCN += ("exchange.keep_products=never", "exchange.active_sets=false", "exchange.method=joint")
NETWORK = Network(bandwidth=1e9, latency_s=5e-6)
COLOURS = {"CAGNET": "#777777", "SA": "#56b4e9", "SA+GVB": "#0072b2", "joint": "#d55e00"}
SCHEMES = {
    "CAGNET": ("oblivious", "random"),
    "SA": ("aware", "random"),
    "SA+METIS": ("aware", "metis"),
    "SA+GVB": ("aware", "volume"),
    "joint": ("joint", "metis"),
}
DRAWN = tuple(COLOURS)


@cache
def _graph(shop: Workshop, name: str) -> tuple[Path, CSRGraph]:
    """Return a store, and the symmetric pattern of its graph."""
    store = shop.store(name, "generate", *shop.size(STORES, SMALL)[name])
    with GraphStore.open(store) as opened:
        return store, read_pattern(opened, undirected=True)


@cache
def _partition(shop: Workshop, name: str, method: str, parts: int) -> Partition:
    graph = _graph(shop, name)[1]
    if method == "volume":
        options = {"objective": "max_send", "preset": shop.size("default", "fast")}
        return volume_balanced(seed=SEED, **options)(graph, parts)
    return {"metis": metis, "random": random}[method](SEED)(graph, parts)


def table_2(shop: Workshop) -> Exhibit:
    """MB that a process sends in a product of 300 columns: mean / largest / imbalance.

    debian-packages has 1/225 of Amazon's nodes, hence the smaller sizes. At 16 parts the imbalance
    under METIS is as high as the paper's, but it does not keep rising: with 248 nodes per part, the
    few hubs have parts of their own. Balancing the sent rows removes it.
    """
    printed = {16: (199.6, 333.5, 67), 32: (132.9, 241.6, 82), 64: (83.9, 164.0, 95)}
    printed |= {128: (52.5, 117.3, 123), 256: (32.6, 86.4, 165)}
    graph = _graph(shop, "debian")[1]
    rows = []
    for parts in shop.size(tuple(printed), (16, 32)):
        ours = []
        for method in ("metis", "volume"):
            volume = measure(graph, _partition(shop, "debian", method, parts).part, parts)
            mean, most = volume.total_rows / parts, volume.max_send_rows
            sizes = (4 * FEATURES * rows_sent / 1e6 for rows_sent in (mean, most))
            ours.append("{:.2f} / {:.2f} / {:.0f} %".format(*sizes, 100 * (most / mean - 1)))
        average, largest, imbalance = printed[parts]
        rows.append((parts, f"{average} / {largest} / {imbalance} %", *ours))
    heads = ("METIS on debian-packages", "volume, `max_send`")
    return Exhibit(("P", "paper: METIS on Amazon", *heads), rows)


@dataclass(frozen=True)
class Epoch:
    """The cost of an epoch on a number of ranks."""

    ranks: int
    compute_s: float
    exchange_s: float
    rows_max_send: int
    bytes_epoch: int

    @property
    def epoch_s(self) -> float:
        """Seconds of computing and messages."""
        return self.compute_s + self.exchange_s


@cache
def _rehearsed(shop: Workshop, name: str) -> tuple[Moves, float]:
    """Return the movements of an epoch of the GCN, and its seconds of computing per non-zero."""
    store = shop.parts(_graph(shop, name)[0], "random", 4)
    config = load_config(None, [f"graph.store={store}", *GCN, "run.dir=none", "run.threads=1"])
    with ProcessGrid.of_this_process() as grid, GraphStore.open(store) as opened:
        whole = WholeGraph(grid, config, opened)
        ranks = Ranks(whole.row_starts(4), config.exchange)
        surveys = whole.surveys(ranks)
        rehearsal = in_fresh_process(whole.share(config, ranks, surveys, 0), epochs=5)
    return rehearsal.epoch[0], rehearsal.epoch_s / int(surveys[ALL].entries[0])


@cache
def _epochs(shop: Workshop, name: str, scheme: str, tried: tuple[int, ...]) -> list[Epoch]:
    """Return an epoch on each number of ranks."""
    moves, seconds = _rehearsed(shop, name)
    exchange, method = SCHEMES[scheme]
    epochs = []
    for ranks in tried:
        whole, starts = cut_whole(_graph(shop, name)[1], _partition(shop, name, method, ranks))
        planned = Ranks(starts, ExchangeConfig(method=exchange))
        traffic = {ALL: StoredSurvey.of(whole, planned).traffic(planned)}
        sent = sent_by_rank(moves, traffic, 1)
        computing = seconds * int(traffic[ALL].entries.max())
        most, size = int(sent.rows.max()), int(sent.bytes_out.sum())
        # Every rank has its own host.
        messages = NETWORK.seconds(sent, sent, np.arange(ranks, dtype=np.int32))
        epochs.append(Epoch(ranks, computing, messages, most, size))
    return epochs


def _all_epochs(shop: Workshop) -> dict[str, dict[str, list[Epoch]]]:
    graphs = shop.size(tuple(STANDS_FOR), ("debian", "grid3d"))
    ranks = shop.size((4, 16, 64), (4, 8))
    return {
        name: {scheme: _epochs(shop, name, scheme, ranks) for scheme in SCHEMES} for name in graphs
    }


def figure_3(shop: Workshop) -> Exhibit:
    """Epochs of a GCN with 3 layers and 16 columns, by number of ranks P.

    Rows, messages and bytes are counted; a message takes 5 µs, and each rank sends 1 GB/s. The time
    of computing is that of a rank rehearsed at P = 4, scaled by the non-zeros of the busiest part.
    CAGNET is `oblivious`, SA is `aware` on random parts, SA+GVB is `aware` on parts of our
    partitioner; joint, on METIS parts, is our own scheme. The order is the paper's. Here computing
    falls with P and hides that oblivious gets slower, which its messages alone show (Figure 4). SA
    is not slower than oblivious at small P, because a broadcast is counted as a message to each
    rank, while NCCL's tree is cheaper.
    """
    says = {
        "debian": "oblivious slower with P; SA helps at larger P; SA+GVB fastest",
        "grid3d": "SA slower than oblivious at small P; SA+GVB far below both",
        "rmat": "latency-bound, below a second everywhere; SA+GVB fastest",
    }
    rows = []
    for graph, plans in _all_epochs(shop).items():
        for scheme, points in plans.items():
            seconds = " / ".join(f"{1e3 * epoch.epoch_s:.0f}" for epoch in points)
            megabytes = " / ".join(f"{epoch.bytes_epoch / 1e6:.1f}" for epoch in points)
            paper = f"{STANDS_FOR[graph]}: {says[graph]}" if scheme == "CAGNET" else ""
            rows.append((f"{graph}, {scheme}", paper, seconds, megabytes))
    ranks = " / ".join(str(epoch.ranks) for epoch in points)
    return Exhibit(
        ("graph, scheme", "paper", f"ms at P = {ranks}", "MB of all ranks"),
        rows,
        lambda: _draw_lines(_all_epochs(shop), DRAWN),
    )


def _draw_lines(epochs: dict[str, Any], schemes: Sequence[str]) -> Figure:
    figure, panels = row_of_panels(epochs)
    for panel, graph, plans in panels:
        for scheme in schemes:
            ranks, seconds = zip(
                *((epoch.ranks, epoch.epoch_s) for epoch in plans[scheme]), strict=True
            )
            panel.plot(ranks, seconds, "o-", markersize=3, color=COLOURS[scheme], label=scheme)
        panel.set(title=f"{graph} ({STANDS_FOR[graph]})", ylabel="s an epoch", ylim=(0, None))
        over_powers(panel, ranks, "ranks P")
    panel.legend(fontsize=7)
    return figure


def figure_4(shop: Workshop) -> Exhibit:
    """The epochs of Figure 3 by phase.

    CAGNET's messages do not fall with P, and take longer than computing from 16 ranks on; in the
    paper they are nearly all of an epoch, since its GPUs compute two orders of magnitude faster.
    With partitioning, messages fall with P. Computing hardly grows with our parts, which balance
    non-zeros within 5 %; the paper's constraint was loose.
    """
    rows = []
    for graph, plans in _all_epochs(shop).items():
        for scheme in DRAWN:
            shares = [
                f"{1e3 * epoch.compute_s:.0f} + {1e3 * epoch.exchange_s:.0f}"
                for epoch in plans[scheme]
            ]
            paper = "nearly all is communication" if scheme == "CAGNET" else ""
            if scheme == "SA+GVB":
                paper = "communication largely gone; local computing may grow"
            rows.append((f"{graph}, {scheme}", paper, " / ".join(shares)))
    return Exhibit(
        ("graph, scheme", "paper", "ms computing + messages, P as above"),
        rows,
        lambda: _draw_stacks(_all_epochs(shop), DRAWN),
    )


def _draw_stacks(epochs: dict[str, Any], schemes: Sequence[str]) -> Figure:
    figure, panels = row_of_panels(epochs)
    for panel, graph, plans in panels:
        count = len(plans[schemes[0]])
        for index, scheme in enumerate(schemes):
            across = np.arange(count) + (index - 1.5) * 0.2
            compute, exchange = (
                [getattr(epoch, key) for epoch in plans[scheme]]
                for key in ("compute_s", "exchange_s")
            )
            colour = COLOURS[scheme]
            panel.bar(across, compute, 0.18, color=colour, label=scheme)
            panel.bar(across, exchange, 0.18, compute, color="white", edgecolor=colour, hatch="///")
        panel.set(title=f"{graph} ({STANDS_FOR[graph]})", xlabel="ranks P", ylabel="s an epoch")
        panel.set_xticks(range(count), [str(epoch.ranks) for epoch in plans[scheme]])
    panel.legend(fontsize=7, title="hatched: messages", title_fontsize=7)
    return figure


def figure_5(shop: Workshop) -> Exhibit:
    """The largest graph on 16 ranks.

    R-MAT of scale 16 stands for Papers (1/1695 of its nodes, with as many features and edges per
    node). Partitioning gains less than in the paper: unlike a citation graph, R-MAT has no
    communities.
    """
    rows = []
    for scheme in DRAWN:
        (epoch,) = _epochs(shop, "papers", scheme, (16,))
        shown = f"{epoch.epoch_s:.3f} = {epoch.compute_s:.3f} + {epoch.exchange_s:.3f}"
        paper = {"SA+GVB": "fastest, since its all-to-all is"}.get(scheme, "")
        rows.append((scheme, paper, shown, f"{epoch.bytes_epoch / 1e6:,.1f}"))
    heads = ("s an epoch = computing + messages", "MB")
    return Exhibit(("scheme", "paper: Papers, P = 16", *heads), rows)


FIGURES_6 = ("exchange_s", "epoch_s", "rows_max_send")
SAYS_6 = {"debian": "Amazon: GVB faster, most at many GPUs", "grid3d": "Protein: alike"}


def figure_6(shop: Workshop) -> Exhibit:
    """Ratios of METIS parts to volume-balanced parts.

    Above 1, our partitioner is better: its busiest sender sends fewer rows, by a factor of up to
    1.7. Seconds improve less. On debian-packages the largest hub makes one rank receive the most
    rows with any parts; the joint exchange avoids that (Figures 3 and 4).
    """
    rows = []
    for graph, plans in _all_epochs(shop).items():
        for balanced, cut in zip(plans["SA+GVB"], plans["SA+METIS"], strict=True):
            ratios = (getattr(cut, key) / getattr(balanced, key) for key in FIGURES_6)
            cells = (f"{ratio:.2f}" for ratio in ratios)
            rows.append((f"{graph}, P = {balanced.ranks}", SAYS_6.get(graph, ""), *cells))
    return Exhibit(
        ("graph", "paper", "messages' s", "epoch's s", "rows of the busiest sender, both passes"),
        rows,
    )


EXCHANGES = ("oblivious", "aware", "joint")
PATTERNS = {"debian": "debian", "rmat": "rmat:14:16", "grid3d": "grid3d:24"}
SMALL_PATTERNS = {"debian": "grid3d:6", "rmat": "rmat:8:8", "grid3d": "grid3d:6"}
CUTS = ("debian:metis", "debian:random", "rmat:random", "grid3d:metis")


def figure_7(shop: Workshop) -> Exhibit:
    """Rows of a layer in 1.5D by P and c, including sums over replicas.

    A product and its adjoint; the share of sums over replicas (the paper's all-reduce) is in
    brackets. As in the paper, only oblivious always gains: sums cost more than the rows that
    replicas save. On graphs that cannot be partitioned well (R-MAT), aware gains up to c = 4.
    """
    ranks, copies = shop.size((4, 8, 16, 32, 64), (4, 8)), shop.size((1, 2, 4, 8), (1, 2))
    counts = [count for cut in CUTS for count in _replicated(shop, cut, ranks, copies)]
    rows = []
    for cut in CUTS:
        for exchange in EXCHANGES:
            chosen = [n for n in counts if (n["cut"], n["exchange"]) == (cut, exchange)]
            cells = []
            for number in (ranks[0], ranks[-1]):
                points = {n["copies"]: n for n in chosen if n["ranks"] == number}
                shown = [f"{points[1]['rows']:,}"]
                for c in copies[1:]:
                    if c in points:
                        ratio = points[c]["rows"] / max(points[1]["rows"], 1)
                        summed = points[c]["summed"] / max(points[c]["rows"], 1)
                        shown.append(f"{ratio:.2f} ({100 * summed:.0f} %)")
                cells.append("; ".join(shown))
            paper = "faster with c" if exchange == "oblivious" else ""
            if exchange == "aware":
                paper = "with GVB a minimum over P, then slower" if "metis" in cut else "no gain"
            rows.append((f"{cut}, {exchange}", paper, *cells))
    heads = [f"P = {number}: rows at c = 1; at c = {copies[1:]} over it (share summed)" for number
             in (ranks[0], ranks[-1])]  # fmt: skip
    return Exhibit(
        ("graph:parts, exchange", "paper", *heads),
        rows,
        lambda: _draw_replicated(counts),
    )


def _replicated(
    shop: Workshop, cut: str, ranks: Sequence[int], copies: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield the rows that a layer moves, for every exchange and numbers of ranks and copies."""
    name, _, method = cut.partition(":")
    graph = make_pattern(shop.size(PATTERNS, SMALL_PATTERNS)[name])
    partitioner = {"metis": metis, "random": random}[method](SEED)
    for blocks in sorted({p // c for p in ranks for c in copies if p % c == 0}):
        whole, starts = cut_whole(graph, partitioner(graph, blocks))
        for c in copies:
            if blocks * c not in ranks:
                continue
            for exchange in EXCHANGES:
                config = ExchangeConfig(method=exchange, replication=c)
                planned = Ranks(starts, config)
                traffic = {ALL: StoredSurvey.of(whole, planned).traffic(planned)}
                both = (False, True)
                moves = [Movement(ALL, kind, reverse, 1) for kind in MOVEMENTS for reverse in both]
                sent = sent_by_rank(moves, traffic, c)
                yield {
                    "cut": cut, "exchange": exchange, "ranks": blocks * c, "copies": c,
                    "rows": int(sent.rows.sum()), "summed": int(traffic[ALL].sums.sum()),
                }  # fmt: skip


def _draw_replicated(counts: Sequence[dict[str, Any]]) -> Figure:
    figure = new_figure(2.6 * len(EXCHANGES), 1.7 * len(CUTS))
    axes = figure.subplots(len(CUTS), len(EXCHANGES), sharex=True, sharey="row", squeeze=False)
    tried = sorted({count["ranks"] for count in counts})
    for cut, line in zip(CUTS, axes, strict=True):
        for panel, exchange in zip(line, EXCHANGES, strict=True):
            panel.set_title(f"{cut}, {exchange}")
            chosen = [n for n in counts if (n["cut"], n["exchange"]) == (cut, exchange)]
            for c in sorted({n["copies"] for n in chosen}):
                points = sorted(
                    (n["ranks"], n["rows"], n["summed"]) for n in chosen if n["copies"] == c
                )
                across, rows, summed = zip(*points, strict=True)
                (drawn,) = panel.plot(across, rows, "o-", markersize=3, label=f"c = {c}")
                if c > 1:
                    panel.plot(across, summed, ":", color=drawn.get_color(), linewidth=1)
            panel.set_yscale("log")
            over_powers(panel, tried, "ranks P" if cut == CUTS[-1] else "")
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        line[0].set_ylabel("rows in a layer")
    axes[0][0].legend(fontsize=7, title="dotted: sums", title_fontsize=7)
    return figure


if __name__ == "__main__":
    main(PAPER, table_2, figure_3, figure_4, figure_5, figure_6, figure_7)
