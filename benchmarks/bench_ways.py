"""Epochs with different exchanges of rows: seconds, and communication hidden by computation.

    mpiexec -n 4 python -m benchmarks.bench_ways STORE.h5 [--ways aware,joint,joint+int8]

A way is an exchange, followed after plus signs by its wire format and schedule if they are not the
defaults (``aware+sequential``). Each round trains an epoch by every way in turn, so that changes of
the machine's load affect all alike. Seconds are those of the slowest rank, between two barriers,
medians over the rounds. Hidden, coverable and arrived come from the spans of those epochs, see
docs/trace.md, summed over ranks. The last line is for ``exchange.method = "auto"``: the way that it
chooses among those with the native wire, and its seconds over those of the fastest of them.
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.columns import Columns, count, megabytes, print_columns, ratio, seconds, text
from benchmarks.report import circumstances
from hpcgnn.analysis.breakdown import measure_rank
from hpcgnn.analysis.load import open_run
from hpcgnn.analysis.sessions import Trace
from hpcgnn.analysis.trace import first_sent, in_order, read_sessions
from hpcgnn.comm import Communicator, ProcessGrid
from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.launch import run_mpi_command
from hpcgnn.config.config import Config
from hpcgnn.config.file import load_config
from hpcgnn.console import print_json
from hpcgnn.graph.choose_exchange import with_chosen_exchange
from hpcgnn.graph.context import Context, computing_as
from hpcgnn.kernels import reused_memory
from hpcgnn.spmm import SCHEDULES
from hpcgnn.trace import TraceRecorder, trace_file
from hpcgnn.train.process import prepare_process
from hpcgnn.train.seed_run import SeedRun
from hpcgnn.train.tasks import load_task

WAYS = "oblivious,aware,push,joint,joint+int8"
COLUMNS: Columns = {
    "way": ("way", text),
    "epoch s": ("epoch_s", seconds),
    "MB": ("bytes", megabytes),
    "messages": ("messages", count),
    "waited s": ("waited_s", seconds),
    "hidden s": ("hidden_s", seconds),
    "coverable s": ("coverable_s", seconds),
    "hidden share": ("hidden_share", ratio),
    "arrived share": ("arrived_share", ratio),
    "over the fastest": ("over_fastest", ratio),
}


def main(comm: Communicator) -> int:
    cli = CommandParser(
        prog="python -m benchmarks.bench_ways", description=(__doc__ or "").split("\n")[0]
    )
    cli.add_argument("store")
    cli.add_argument("settings", nargs="*", metavar="section.key=value", help="as for hpcgnn train")
    cli.add_argument("--ways", default=WAYS, help=f"(default: {WAYS})")
    cli.add_argument("--rounds", type=int, default=5, help="epochs of each way (default: 5)")
    cli.add_argument("--json", action="store_true", help="print one JSON object per way")
    options = cli.parse_args()
    words = ["model.name=sage", "model.num_layers=3", "model.hidden=256", *options.settings]
    with process_like_training(comm) as grid, tempfile.TemporaryDirectory() as folder:
        ways = [
            Way.opened(grid, options.store, words, name, Path(folder))
            for name in options.ways.split(",")
        ]
        for number in range(options.rounds + 1):
            for way in ways:
                way.train(grid, counts=number > 0)
        results = [way.told(grid) for way in ways]
        results.append(auto(grid, ways[0].config, results))
    if comm.rank == 0 and not options.json:
        print(f"{options.store}, {comm.size} ranks: {circumstances()}")
        print_columns(COLUMNS, results)
    elif comm.rank == 0:
        for each in results:
            about = {"store": options.store, "settings": options.settings, "ranks": comm.size}
            print_json({**about, **each, **circumstances()})
    return 0


@contextlib.contextmanager
def process_like_training(comm: Communicator, threads: int = 1) -> Iterator[ProcessGrid]:
    """Yield a grid with the dense library and memory reuse of training; collective."""
    with ProcessGrid(comm) as grid, reused_memory():
        prepare_process(grid, threads)
        yield grid


@dataclass
class Way:
    """A run that continues with one way.

    Parameters
    ----------
    name, config
        The way.
    run, trace, folder
        The training, its trace, and the run directory of its spans.
    """

    name: str
    config: Config
    run: SeedRun
    trace: TraceRecorder
    folder: Path
    epoch_s: list[float] = field(default_factory=list)

    @classmethod
    def opened(
        cls, grid: ProcessGrid, store: str, words: list[str], name: str, folder: Path
    ) -> "Way":
        """Load the graph; collective."""
        method, *others = name.split("+")
        keys = [f"graph.store={store}", "run.dir=none", "run.threads=1", *words]
        keys.append(f"exchange.method={method}")
        keys += [
            f"exchange.{'schedule' if other in SCHEDULES else 'wire'}={other}" for other in others
        ]
        config = load_config(None, [*keys, "train.evaluate_every=100000"])
        path = folder / name
        about = {"ranks": grid.size}
        trace = TraceRecorder.open(trace_file(path, grid.rank), grid.rank, about)
        context = replace(Context.open(grid, config, trace), takes_sparse=True)
        task = load_task(context)
        return cls(name, config, SeedRun(task, config, 1, trace), trace, path)

    def train(self, grid: ProcessGrid, *, counts: bool) -> None:
        """Train an epoch; collective. The first builds transposes and buffers."""
        grid.world.Barrier()
        began = time.perf_counter()
        self.epoch()
        took = max(grid.world.allgather(time.perf_counter() - began))
        if counts:
            self.epoch_s.append(took)

    def epoch(self) -> None:
        """Train an epoch; collective."""
        with computing_as(self.run.task.objective.grid, self.config):
            self.run.begin_epoch()
            for step in self.run.task.steps(self.run.seed, self.run.epoch):
                self.run.step(step)
            self.run.end_epoch(stop=False)

    def told(self, grid: ProcessGrid) -> dict[str, Any]:
        """Return the results of the epochs, the same on all ranks; collective."""
        self.trace.flush()
        # Hidden time depends on when other ranks sent, but each rank has its own folder of spans.
        written = trace_file(self.folder, grid.rank).read_bytes()
        for rank, records in enumerate(grid.world.allgather(written)):
            trace_file(self.folder, rank).write_bytes(records)
        trace = Trace(open_run(self.folder))
        sent = first_sent(in_order(read_sessions(trace)))
        spans = [span for span in trace.spans(grid.rank) if span.epoch]
        times, rounds = measure_rank(grid.rank, spans, sent[grid.rank]), len(self.epoch_s)
        found, exchanges = times.hidden, [span for span in spans if span.phase == "exchange"]
        mine = [
            sum(each.bytes for name, each in times.names.items() if name.startswith("exchange")),
            sum(len(span.peers or ()) - (span.joined_messages or 0) for span in exchanges),
            sum(span.waited_ns or 0 for span in spans) * 1e-9,
            *(found.hidden_s, found.coverable_s, found.arrived_bytes, found.awaited_bytes),
        ]
        total = np.sum(grid.world.allgather(mine), axis=0)
        size, messages, waited, hidden, coverable, arrived, awaited = (total / rounds).tolist()
        return {
            "way": self.name,
            "epoch_s": statistics.median(self.epoch_s),
            "epochs_s": self.epoch_s,
            "bytes": round(size),
            "messages": round(messages),
            "waited_s": waited,
            "hidden_s": hidden,
            "coverable_s": coverable,
            "hidden_share": hidden / coverable if coverable else None,
            "arrived_share": arrived / awaited if awaited else None,
        }


def auto(grid: ProcessGrid, config: Config, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the result line of the exchange that "auto" chooses; collective."""
    chosen, _ = with_chosen_exchange(grid, config)
    native = {each["way"]: each["epoch_s"] for each in results if "+" not in each["way"]}
    took = native.get(chosen.method)
    return {
        "way": f"auto: {chosen.method}",
        "epoch_s": took,
        "over_fastest": None if took is None else took / min(native.values()),
        "modelled_s": dict(chosen.seconds),
    }


if __name__ == "__main__":
    run_mpi_command("bench_ways", main)
