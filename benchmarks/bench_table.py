"""The usual table of papers on fast training: epochs and memory of five models on ten graphs.

    python -m benchmarks.bench_table ROWS.jsonl [--graphs cora,debian] [--models gcn,gat]
    python -m benchmarks.bench_table ROWS.jsonl --show

A cell is a model on a graph, trained by every method in turn in one process: forward pass, loss of
all nodes, backward pass and a step of Adam, without dropout. ROWS gets a JSON object per cell; a
cell that is already in the file is not run again. ``ours`` is the default of `hpcgnn train`, and
``ours_fresh`` the same with ``exchange.keep_products=never``: peers compute the first layer's
product with the features in every epoch. Peers are the installed ones of `benchmarks.peer_models`,
with our weights; the losses of the first epoch must agree. torch-geometric as installed (``pyg``)
uses torch's own library for dense products and plain Adam; the other methods use the faster of two
libraries (named by ``dense``) and the fused step. ``floor`` is the dense products of our epoch
alone, which every method with the same order of products needs.

``cpu_s`` and ``epoch_s`` are the median processor seconds and elapsed seconds of an epoch. Memory
is measured in one process per method: ``peak_bytes`` is the peak resident set in two epochs above
the resident set after an epoch on a tiny graph, so it includes graph, features, weights and kept
products; ``step_bytes`` is the peak that the second epoch adds. ``input_bytes`` of a cell are those
of its graph, features and labels, which every epoch reads.
"""

import argparse
import ctypes
import gc
import importlib
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from benchmarks.epoch_memory import LARGE, M_MMAP_THRESHOLD, status
from benchmarks.harness import interleave, surroundings
from benchmarks.peer_models import (
    PACKAGES,
    PEERS,
    Network,
    SparseMatrix,
    inspector_products,
    torch_products,
)
from benchmarks.spmm_peers import import_dgl
from benchmarks.table_graphs import RELATIONS, TableGraph, make_graph, names, open_graph
from hpcgnn import kernels
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json, report

MODELS: Mapping[str, Mapping[str, int]] = {
    "gcn": {"hidden": 16, "num_layers": 2},
    "sage": {"hidden": 256, "num_layers": 3},
    "gat": {"hidden": 64, "num_layers": 2, "heads": 4},
    "gin": {"hidden": 64, "num_layers": 2},
    "rgcn": {"hidden": 16, "num_layers": 2},
}
OURS = {"ours": "auto", "ours_fresh": "never"}
"""The setting `exchange.keep_products` of each of our methods."""
METHODS = (*OURS, "pyg", "pyg_csr", "dgl", "mkl", "inspector")
SPARSE_FEATURES: Mapping[str, Callable[[Any, int], SparseMatrix]] = {
    "mkl": lambda matrix, _: torch_products(matrix),
    "inspector": inspector_products,
}
"""How peers that multiply sparse features prepare them, given the number of threads."""
FLOOR = "floor"
TOLERANCE = 1e-4
RATE = 0.01
_SHORT_S, _ROUNDS = 1.0, 5
_SMALL = "tiny"
"""The graph of a first epoch that loads the libraries of a process."""


def main() -> None:
    options = parse_arguments()
    rows = read_rows(options.rows)
    if options.show:
        show(rows)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    done = {key_of(row) for row in rows}
    for graph in options.graphs:
        for model in options.models:
            wanted = {"graph": graph, "model": model, "threads": options.threads}
            if key_of(wanted) not in done:
                report(f"{graph}, {model}, {options.threads} threads")
                row = wanted | run_cell(graph, model, options)
                with options.rows.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                if options.json:
                    print_json(row)


def parse_arguments() -> argparse.Namespace:
    cli = argparse.ArgumentParser(prog="python -m benchmarks.bench_table", description=__doc__)
    add = cli.add_argument
    add("rows", type=Path, metavar="ROWS.jsonl")
    add("--graphs", type=words, default=names(), help=f"(default: {','.join(names())})")
    add("--models", type=words, default=list(MODELS), help=f"(default: {','.join(MODELS)})")
    add("--methods", type=words, default=list(METHODS), help="pyg_compiled is left out by default")
    add("--threads", type=int, default=1, help="also set OMP_NUM_THREADS (default: 1)")
    add("--seconds", type=float, default=4.0, help="counted epochs of a method (default: 4)")
    add("--most-gib", type=float, default=8.0, help="limit for per-edge features (default: 8)")
    add("--folder", type=Path, default=Path(tempfile.gettempdir()) / "table_graphs")
    add("--show", action="store_true", help="print the table and its means, as Markdown")
    add("--json", action="store_true", help="print the cells that run")
    return cli.parse_args()


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def read_rows(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["graph"], row["model"], row["threads"]


def run_cell(graph: str, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the results of a cell's methods, measured in processes of its own."""
    for name in (graph, _SMALL):
        in_process(partial(make_graph, name, options.folder))
    cell = in_process(partial(time_cell, graph, model, options))
    for method, found in cell["methods"].items():
        if method != FLOOR:
            found |= in_process(partial(measure_memory, graph, model, method, options))
    libraries = ("torch", "torch-geometric", "dgl", "mkl")
    return cell | {**surroundings("numpy", *libraries)}


def in_process(function: Callable[[], Any]) -> Any:
    """Call a function in a forked process and return its result.

    This process must not have started MPI or OpenMP threads.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(function, theirs))
    child.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        found = None
    child.join()
    if child.exitcode:
        raise RuntimeError(f"{function}: status {child.exitcode}")
    return found


def _answer(function: Callable[[], Any], pipe: Any) -> None:
    pipe.send(function())
    pipe.close()


@dataclass(frozen=True)
class Method:
    """A training: `epoch` returns the loss before its step, `weights` the current weights."""

    epoch: Callable[[], float]
    weights: Mapping[str, Tensor]


def ours(graph: TableGraph, model: str, grid: Any, keep: str) -> Method:
    """Train as `hpcgnn train` does."""
    from benchmarks.bench_ways import Way  # noqa: PLC0415  (starts MPI)

    keys = {f"model.{key}": value for key, value in MODELS[model].items()}
    keys |= {"model.name": model, "model.dropout": 0, "exchange.keep_products": keep}
    keys |= {"train.learning_rate": RATE, "run.threads": torch.get_num_threads()}
    folder = Path(tempfile.mkdtemp())
    given = [f"{key}={value}" for key, value in keys.items()]
    way = Way.opened(grid, str(graph.store), given, "aware", folder)

    def epoch() -> float:
        way.epoch()
        return float(way.run._losses[0])

    return Method(epoch, way.run.model.state_dict())


def peer(
    graph: TableGraph, model: str, name: str, weights: Mapping[str, Tensor], threads: int
) -> Method:
    """Train with another library, starting from our weights."""
    shape = MODELS[model]
    several = graph.labels.ndim == 2
    hidden = [shape["hidden"]] * (shape["num_layers"] - 1)
    relations = (graph.relations, RELATIONS) if model == "rgcn" else None
    widths = (graph.features.shape[1], *hidden, graph.num_classes)
    network = Network(
        model=model,
        widths=widths,
        heads=shape.get("heads", 1),
        matrix=graph.matrix,
        relations=relations,
        weights=weights,
        threads=threads,
    )
    x: Any = graph.features
    if sparse.issparse(x) and name in SPARSE_FEATURES:
        x = SPARSE_FEATURES[name](x, threads)
    else:
        x = torch.from_numpy(graph.dense)
    labels = torch.from_numpy(graph.labels.astype(np.float32 if several else np.int64))
    loss_of = functional.binary_cross_entropy_with_logits if several else functional.cross_entropy
    module = PEERS[name](network)
    fused = {} if name == "pyg" else {"fused": True}
    optimizer = torch.optim.Adam(module.parameters(), lr=RATE, **fused)

    def epoch() -> float:
        optimizer.zero_grad()
        loss = loss_of(module(x), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    return Method(epoch, module.state_dict())


def is_installed(name: str) -> bool:
    """Return whether a peer can be imported."""
    package = PACKAGES[name.partition("_")[0]]
    return next(distributions(name=package), None) is not None


class Dense:
    """The library of dense float32 products: torch's own, or the one chosen by training."""

    def __init__(self) -> None:
        self._settings: Any = torch.backends.mkldnn.matmul
        self.own: str = self._settings.fp32_precision

    def prepared(self) -> None:
        """Remember the library chosen by training; call before any peer runs."""
        self.fastest: str = self._settings.fp32_precision

    def by(self, library: str, function: Callable[[], Any]) -> Callable[[], Any]:
        """Return the function, run with that library."""
        precision = self.own if library == "torch" else self.fastest

        def call() -> Any:
            self._settings.fp32_precision = precision
            try:
                return function()
            finally:
                self._settings.fp32_precision = self.fastest

        return call


class Products(TorchDispatchMode):
    """Records the dense products that run under it, to repeat them on other numbers."""

    KINDS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_, torch.ops.aten.bmm)
    OURS = ("dense_product", "dense_contraction")

    def __init__(self) -> None:
        super().__init__()
        self._operands: dict[Any, Tensor] = {}
        self._calls: list[Callable[[], Any]] = []
        self._kernels = {name: getattr(kernels, name) for name in self.OURS}

    @override
    def __enter__(self) -> Self:
        for name, kernel in self._kernels.items():
            setattr(kernels, name, partial(self._run, kernel))
        super().__enter__()
        return self

    @override
    def __exit__(self, *fault: Any) -> None:
        super().__exit__(*fault)
        for name, kernel in self._kernels.items():
            setattr(kernels, name, kernel)

    def _run(self, kernel: Callable[..., None], *arrays: Any, **options: Any) -> None:
        # The result, the last one, is not one of the operands.
        like = [
            self._like(torch.from_numpy(array), number == len(arrays) - 1).numpy()
            for number, array in enumerate(arrays)
        ]
        self._calls.append(partial(kernel, *like, **options))
        kernel(*arrays, **options)

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in self.KINDS:
            like = [self._like(each) for each in args]
            named = {key: self._like(each) for key, each in kwargs.items()}
            self._calls.append(partial(func, *like, **named))
        return func(*args, **kwargs)

    def _like(self, value: Any, is_result: bool = False) -> Any:
        if not isinstance(value, Tensor):
            return value
        key = value.shape, value.stride(), value.dtype, is_result
        if key not in self._operands:
            # Elements of expanded operands share memory.
            last = sum((n - 1) * stride for n, stride in zip(*key[:2], strict=True))
            # The kernels' rows of 16 bits are bfloat16.
            kind = torch.bfloat16 if value.dtype == torch.uint16 else value.dtype
            drawn = torch.randn(max(last + 1, 0), dtype=kind).view(value.dtype)
            self._operands[key] = drawn.as_strided(*key[:2])
        return self._operands[key]

    def again(self) -> None:
        """Run all of them."""
        for call in self._calls:
            call()


def fits(graph: TableGraph, model: str, method: str, most_gib: float) -> bool:
    """Return whether a method can run, and its tensors with a row for each edge fit."""
    if method in SPARSE_FEATURES:
        return model != "gat"
    if method not in ("pyg", "pyg_compiled"):
        return True
    hidden = MODELS[model]["hidden"]
    gathered = {"sage": graph.features.shape[1], "gin": graph.features.shape[1]}.get(model, 0)
    width = max(gathered, hidden, graph.num_classes * MODELS[model].get("heads", 1))
    return bool(graph.matrix.indices.size * width * 4 <= most_gib * 2**30)


def methods_of(
    graph: TableGraph, model: str, options: argparse.Namespace, grid: Any
) -> Iterator[tuple[str, Method]]:
    """Yield the methods of a cell; ours come first, because the others start from our weights."""
    weights: dict[str, Tensor] = {}
    for name in options.methods:
        if name in OURS:
            method = ours(graph, model, grid, OURS[name])
            weights = {key: value.clone() for key, value in method.weights.items()}
            yield name, method
        elif is_installed(name) and fits(graph, model, name, options.most_gib):
            yield name, peer(graph, model, name, weights, options.threads)


def time_cell(graph_name: str, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of all methods of a cell."""
    from mpi4py import MPI  # noqa: PLC0415  (starts MPI)

    from benchmarks.bench_ways import process_like_training  # noqa: PLC0415  (starts MPI)

    warnings.simplefilter("ignore")
    graph, dense = open_graph(graph_name, options.folder), Dense()
    with process_like_training(MPI.COMM_SELF, options.threads) as grid:
        dense.prepared()
        epochs: dict[str, Callable[[], Any]] = {}
        found: dict[str, dict[str, Any]] = {}
        for name, method in methods_of(graph, model, options, grid):
            library = "torch" if name == "pyg" else "oneDNN"
            epochs[name] = dense.by(library, method.epoch)
            found[name] = {"loss": epochs[name](), "dense": library}
            if name not in OURS and name != "pyg":
                other = dense.by("torch", method.epoch)
                timings = {}
                for each, function in (("oneDNN", epochs[name]), ("torch", other)):
                    timing = interleave({each: function}, warmup=0, repeat=1)[each]
                    timings[each] = timing.median_cpu_s
                    if timing.median_s > _SHORT_S:
                        break
                if timings.get("torch", math.inf) < timings["oneDNN"]:
                    epochs[name], found[name]["dense"] = other, "torch"
        _check_losses(found, f"{graph_name}, {model}")
        if "ours" in epochs:
            with Products() as products:
                epochs["ours"]()
            epochs[FLOOR] = dense.by(found["ours"]["dense"], products.again)
            found[FLOOR] = {"dense": found["ours"]["dense"]}
        how = {"least_s": options.seconds * len(epochs) / 2, "most_s": options.seconds}
        timings = interleave(epochs, warmup=1, repeat=_ROUNDS, **how)
    for name, timing in timings.items():
        found[name] |= {
            "epoch_s": timing.median_s,
            "cpu_s": timing.median_cpu_s,
            "epoch_j": timing.median_j,
            "spread": round(timing.spread, 3),
            "rounds": len(timing.seconds),
        }
    return {
        "nodes": graph.matrix.num_nodes,
        "entries": int(graph.matrix.indices.size),
        "features": graph.features.shape[1],
        "classes": graph.num_classes,
        "input_bytes": graph.input_bytes,
        "methods": found,
    }


def _check_losses(found: Mapping[str, Mapping[str, Any]], where: str) -> None:
    losses = {name: each["loss"] for name, each in found.items()}
    first = next(iter(losses.values()))
    for name, loss in losses.items():
        if not abs(loss - first) <= TOLERANCE * abs(first):
            raise RuntimeError(f"{where}: the loss of {name} is {loss}, not {first}: {losses}")


def measure_memory(
    graph_name: str, model: str, name: str, options: argparse.Namespace
) -> dict[str, int]:
    """Return the bytes of one method of a cell."""
    from mpi4py import MPI  # noqa: PLC0415  (starts MPI)

    from benchmarks.bench_ways import process_like_training  # noqa: PLC0415  (starts MPI)

    warnings.simplefilter("ignore")
    with process_like_training(MPI.COMM_SELF, options.threads) as grid:

        def trained(which: str) -> Method:
            # Otherwise arrays in holes of the heap would not count, and the graph, which training
            # reads from its store, would count as memory of training. Training sets this itself.
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)
            graph, weights = open_graph(which, options.folder), {}
            if name in OURS:
                return ours(graph, model, grid, OURS[name])
            if name in SPARSE_FEATURES:
                weights = ours(graph, model, grid, "never").weights
            return peer(graph, model, name, weights, options.threads)

        small = trained(_SMALL)
        small.epoch()
        del small
        gc.collect()
        _reset_peak()
        idle = status("VmRSS")
        method = trained(graph_name)
        gc.collect()
        _reset_peak()
        method.epoch()
        first = status("VmHWM")
        gc.collect()
        _reset_peak()
        before = status("VmRSS")
        method.epoch()
        second = status("VmHWM")
    return {"peak_bytes": max(first, second) - idle, "step_bytes": second - before}


def _reset_peak() -> None:
    """Reset the high-water mark of this process to its resident set."""
    Path("/proc/self/clear_refs").write_text("5")


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table for each number of threads, and the means."""
    for threads in sorted({row["threads"] for row in rows}):
        chosen = [row for row in rows if row["threads"] == threads]
        print(f"\n## {threads} thread{'s' * (threads > 1)}\n")
        _show_cells(chosen)
        _show_means(chosen)


def _show_cells(rows: list[dict[str, Any]]) -> None:
    methods = list(dict.fromkeys(name for row in rows for name in row["methods"]))
    heads = ["graph", "model", *(f"{name} ms" for name in methods)]
    heads += ["pyg / ours", "fastest peer", "MB ours", "MB pyg", "pyg / ours MB"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for row in rows:
        found = row["methods"]
        cells = [row["graph"], row["model"]]
        cells += [f"{1e3 * found[each]['cpu_s']:.4g}" if each in found else "-" for each in methods]
        by, ratio = fastest(row)
        default = over(row, "cpu_s", "pyg")
        cells += ["-" if default is None else f"{default:.2f}", f"{ratio:.2f} ({by})"]
        for name in ("ours", "pyg"):
            each = found.get(name)
            cells.append(f"{each['peak_bytes'] / 1e6:.0f}" if each else "-")
        memory = over(row, "peak_bytes", "pyg")
        cells.append("-" if memory is None else f"{memory:.2f}")
        print("| " + " | ".join(cells) + " |")


def over(row: Mapping[str, Any], key: str, name: str, ours: str = "ours") -> float | None:
    """Return a method's value over ours."""
    found = row["methods"]
    return found[name][key] / found[ours][key] if name in found else None


def _over_inputs(row: Mapping[str, Any], name: str) -> float | None:
    """Return a method's peak over the bytes of the inputs."""
    found = row["methods"]
    return found[name]["peak_bytes"] / row["input_bytes"] if name in found else None


def fastest(row: Mapping[str, Any], ours: str = "ours") -> tuple[str, float]:
    """Return the fastest peer and its seconds over ours."""
    found = row["methods"]
    peers = found.keys() - {*OURS, FLOOR}
    name = min(sorted(peers), key=lambda each: float(found[each]["cpu_s"]))
    return name, found[name]["cpu_s"] / found[ours]["cpu_s"]


def _above_floor(row: Mapping[str, Any], ours: str) -> float | None:
    """Return the fastest peer's seconds over those of only the dense products."""
    share = over(row, "cpu_s", FLOOR, ours)
    return fastest(row, ours)[1] / share if share else None


def _show_means(rows: list[dict[str, Any]]) -> None:
    print("\n| geometric mean | " + " | ".join(MODELS) + " | all |\n" + "|---" * 7 + "|")
    for ours in OURS:
        having = [row for row in rows if ours in row["methods"]]
        for label, value in {
            f"pyg / {ours}, seconds": partial(over, key="cpu_s", name="pyg", ours=ours),
            f"fastest peer / {ours}, seconds": lambda row, ours=ours: fastest(row, ours)[1],
            f"floor / {ours}": partial(over, key="cpu_s", name=FLOOR, ours=ours),
            f"fastest peer / floor of {ours}": partial(_above_floor, ours=ours),
            f"pyg / {ours}, peak": partial(over, key="peak_bytes", name="pyg", ours=ours),
            "pyg / inputs, peak": partial(_over_inputs, name="pyg"),
            f"{ours} / inputs, peak": partial(_over_inputs, name=ours),
        }.items():
            cells = [label]
            for models in (*([model] for model in MODELS), list(MODELS)):
                values = [value(row) for row in having if row["model"] in models]
                known = [each for each in values if each is not None and each > 0]
                cells.append(f"{statistics.geometric_mean(known):.2f}" if known else "-")
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Forked processes inherit them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if is_installed("pyg"):
            importlib.import_module("torch_geometric.nn")
        if is_installed("dgl"):
            import_dgl()
    run_command("bench_table", main)
