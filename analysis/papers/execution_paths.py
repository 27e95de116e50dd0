"""Execution path preparing for faster GCN training, again, on processors.

    python -m analysis.papers.execution_paths [table-4 ...] [--quick | --docs docs]

A GCN with 128 features, 16 hidden columns and a tenth of the nodes for training, one rank, one
thread. Execution paths are `exchange.active_sets = true`; without norms ours cut the forward pass
to the same rows, which the paper's do not. What needs a card (Figures 5, 8, 9, Table II) is in
docs/gpu.md.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from benchmarks.active_edges import active_edge_share
from benchmarks.pass_totals import pass_totals
from hpcgnn.analysis.load import Run
from hpcgnn.analysis.papers.page import Exhibit, Workshop, main, row_of_panels
from hpcgnn.plan import Network

PAPER = "Accelerating Backward Aggregation in GCN Training with Execution Path Preparing on GPUs"
MIB = 2.0**20
# By mean degree: sparse and local as Youtube's periphery, with hubs as Google, dense as Twitter.
STORES = {
    "grid3d": ("grid3d", "--shape", "40,40,40", "--features", 128, "--classes", 16),
    "planted": ("planted", "--nodes", 50_000, "--features", 128, "--classes", 16),
    "debian": ("debian-packages",),
    "rmat": ("rmat", "--scale", 14, "--undirected", "--features", 128, "--classes", 16),
}
SMALL = {
    "grid3d": ("grid3d", "--shape", "8,8,8"),
    "debian": ("planted", "--nodes", 400),
}
GCN = ("model.name=gcn", "model.hidden=16", "exchange.keep_products=never", "model.dropout=0.5")
PATHS = {"whole graph": "false", "paths": "true"}


@cache
def _store(shop: Workshop, graph: str, share: float = 0.1) -> Path:
    """Return a graph with a share of its nodes for training."""
    whole = shop.store(graph, "generate", *shop.size(STORES, SMALL)[graph])
    path = shop.folder / f"{graph}-{share:g}.h5"
    if not path.exists():
        shop.python("benchmarks.training_share", whole, "--share", share, "-o", path)
    return path


def _words(shop: Workshop, graph: str, share: float, layers: int, active: str) -> tuple[str, ...]:
    store = f"graph.store={_store(shop, graph, share)}"
    depth = (f"model.num_layers={layers}", f"exchange.active_sets={active}")
    return (store, "graph.undirected=true", *GCN, *depth)


def _run(shop: Workshop, graph: str, active: str, layers: int = 2) -> Run:
    epochs = shop.size(15, 3)
    often = (f"train.epochs={epochs}", f"train.evaluate_every={epochs}", "trace.enabled=true")
    name = f"{graph}-{layers}-{active}"
    return shop.train(name, 1, *_words(shop, graph, 0.1, layers, active), *often)


def _seconds(run: Run) -> dict[str, float]:
    """Return the median seconds of each pass of an epoch, and of its aggregations."""
    spans = [each for each in run.traces()[0].spans() if each.epoch]
    found = {}
    for name, totals in pass_totals(run).items():
        whole = [each.duration_ns * 1e-9 for each in spans if each.name == f"dense.{name}"]
        found[name] = median(whole)
        found[f"{name} aggregation"] = totals.aggregation_s
    return found


def _memory(shop: Workshop, graph: str, share: float, layers: int) -> dict[str, int]:
    """Return the bytes above an idle process that one rank needs, by a plan's rehearsal."""
    found = {}
    for name, active in PATHS.items():
        words = _words(shop, graph, share, layers, active)
        (plan,) = shop.plan(words, (1,), "aware", network=Network())
        found[name] = plan.peak_bytes - plan.idle_bytes
    return found


def figure_1(shop: Workshop) -> Exhibit:
    """Where the time of an epoch goes, without execution paths.

    Seconds of one epoch by the trace (the paper's first breakdown, on a P100). Backward passes are
    half of an epoch as there; aggregation is a smaller part of them, since features need no
    gradient and ours leaves out the backward aggregation of the first layer, which a processor
    would spend most on.
    """
    rows = []
    for graph in shop.size(STORES, SMALL):
        seconds = _seconds(_run(shop, graph, "false"))
        both = seconds["forward"] + seconds["backward"]
        share, inside = seconds["backward"] / both, seconds["backward aggregation"]
        rows.append(
            (
                graph,
                "50 to 56 %; 51 to 78 % of it",
                f"{1e3 * both:.0f}",
                f"{100 * share:.0f} %",
                f"{100 * inside / seconds['backward']:.0f} %",
            )
        )
    heads = ("ms of both passes", "backward", "aggregation in it")
    return Exhibit(("graph", "paper: backward of an epoch; aggregation in it", *heads), rows)


def figure_6(shop: Workshop) -> Exhibit:
    """Memory with execution paths over memory without, by share of training nodes.

    Bytes above an idle process at the peak of a rehearsal (`hpcgnn plan --ranks 1`). The paper adds
    up to 17 % for the paths' matrices. Ours need less than without: the forward pass runs on the
    same rows, so that activations shrink by more than the matrices add, the more the fewer nodes
    train. Beside it the share of edges that the backward pass still reads, counted.
    """
    rows = []
    for graph in shop.size(("grid3d", "debian"), ("debian",)):
        for share in shop.size((0.1, 0.4, 0.8), (0.1,)):
            sizes = _memory(shop, graph, share, 2)
            ratio = sizes["paths"] / sizes["whole graph"]
            edges = active_edge_share(_store(shop, graph, share), (), (1.0,), undirected=True)
            cells = (f"{sizes['whole graph'] / MIB:.0f}", f"{ratio:.2f}", f"{100 * edges:.0f} %")
            rows.append((f"{graph}, {share:.0%} train", "1.00 to 1.17, flat", *cells))
    heads = ("MiB without", "with paths over it", "edges of the backward pass")
    return Exhibit(("graph", "paper", *heads), rows)


def table_4(shop: Workshop) -> Exhibit:
    """Seconds of backward aggregation before and after.

    One backward aggregation remains in two layers (see Figure 1), on the edges of the training
    nodes. The gain is largest where a tenth of the nodes touches a small part of the edges, as in
    the paper; a processor gains more than the paper's DGL, since fewer edges are fewer gathers
    there, without launches to pay.
    """
    rows = []
    for graph in shop.size(STORES, SMALL):
        before, after = (
            _seconds(_run(shop, graph, active))["backward aggregation"] for active in PATHS.values()
        )
        edges = active_edge_share(_store(shop, graph), (), (1.0,), undirected=True)
        cells = (f"{1e3 * before:.2f}", f"{1e3 * after:.2f}", f"{before / after:.2f}")
        rows.append((graph, SAYS_4.get(graph, ""), *cells, f"{100 * edges:.0f} %"))
    heads = ("ms before", "after", "speedup", "edges left")
    return Exhibit(("graph", "paper: speedup in DGL, GNNAdvisor", *heads), rows)


SAYS_4 = {
    "grid3d": "Youtube 2.78, 6.37",
    "planted": "Amazon 1.91, 3.98",
    "debian": "Google 2.17, 4.91",
    "rmat": "Twitter 1.12, 3.25",
}


def table_5(shop: Workshop) -> Exhibit:
    """Preparing, training, accuracy.

    Preparing is the trace's `plan.active_sets`; training that of 100 epochs at the median's rate.
    Ours prepares in a fraction of an epoch to a few, where the paper's time goes to a network that
    infers group sizes. Losses are equal up to rounding, hence no difference in accuracy.
    """
    rows = []
    for graph in shop.size(STORES, SMALL):
        runs = {name: _run(shop, graph, active) for name, active in PATHS.items()}
        spans = runs["paths"].traces()[0].spans()
        prepared = sum(s.duration_ns for s in spans if s.name == "plan.active_sets") * 1e-9
        before, after = (100 * each.summary["epoch_s"]["median"] for each in runs.values())
        scores = [100 * each.summary["mean"]["test"] for each in runs.values()]
        cells = (f"{prepared:.3f}", f"{after:.2f}", f"{before:.2f}", f"{before / after:.2f}")
        rows.append((graph, SAYS_5.get(graph, ""), *cells, f"{scores[1] - scores[0]:+.2f}"))
    heads = ("prepare s", "training s", "without", "speedup", "points of accuracy")
    return Exhibit(("graph", "paper: prepare, train, without, speedup", *heads), rows)


SAYS_5 = {
    "grid3d": "Youtube 29.7, 4.93, 6.01, 1.22",
    "planted": "Amazon 7.18, 1.82, 2.30, 1.26",
    "debian": "Google 22.2, 3.56, 4.52, 1.27",
    "rmat": "Twitter 0.75, 0.63, 0.87, 1.37",
}


def figure_11(shop: Workshop) -> Exhibit:
    """Two to six layers, memory and speed of backward aggregation.

    As in the paper each layer brings its path closer to the whole graph, on graphs with hubs after
    two, and the gain fades; the mesh, where six steps still reach few nodes, keeps it longest.
    Memory rises to that without paths and not 5 % a layer above it, for the reason of Figure 6.
    """
    found = {
        graph: list(_depths(shop, graph)) for graph in shop.size(("grid3d", "debian"), ("debian",))
    }
    rows = []
    for graph, depths in found.items():
        for each in depths:
            paper = "memory + 5 % a layer; speedup falls" if each["layers"] == 2 else ""
            shown = (
                f"{each['speedup']:.2f}",
                f"{each['memory']:.2f}",
                f"{100 * each['edges']:.0f} %",
            )
            rows.append((f"{graph}, {each['layers']} layers", paper, *shown))
    heads = ("backward aggregation, speedup", "memory over that without", "edges left over all")
    return Exhibit(("graph", "paper", *heads), rows, lambda: _draw_depths(found))


def _depths(shop: Workshop, graph: str) -> Iterator[dict[str, Any]]:
    for layers in shop.size((2, 4, 6), (2,)):
        before, after = (
            _seconds(_run(shop, graph, active, layers))["backward aggregation"]
            for active in PATHS.values()
        )
        sizes = _memory(shop, graph, 0.1, layers)
        # The first layer's backward pass has no aggregation.
        widths = (1.0,) * (layers - 1)
        yield {
            "layers": layers,
            "speedup": before / after,
            "memory": sizes["paths"] / sizes["whole graph"],
            "edges": active_edge_share(_store(shop, graph), (), widths, undirected=True),
        }


def _draw_depths(found: dict[str, list[dict[str, Any]]]) -> Figure:
    figure, panels = row_of_panels(found)
    for panel, graph, depths in panels:
        layers = [each["layers"] for each in depths]
        for key, label in (("speedup", "speedup of backward aggregation"), ("memory", "memory")):
            panel.plot(layers, [each[key] for each in depths], "o-", markersize=3, label=label)
        panel.set(title=graph, xlabel="layers", ylim=(0, None))
        panel.grid(visible=True)
    panel.legend(fontsize=7)
    return figure


if __name__ == "__main__":
    main(PAPER, figure_1, figure_6, table_4, table_5, figure_11)
