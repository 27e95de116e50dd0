"""``python -m hpcgnn.predict``: what a trained model says of nodes, or of the holes of programs.

Start it on every rank. Any number of ranks up to the parts of the store writes the same rows, in
the order of the original graph; of programs, in the order of the store.
"""

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.comm import (
    Communicator,
    ProcessGrid,
    RankArgumentParser,
    agree,
    run_mpi_command,
)
from hpcgnn.console import print_json, report
from hpcgnn.errors import InputError
from hpcgnn.storage import (
    CsvPredictions,
    H5Predictions,
    NpyPredictions,
    PredictionFile,
    check_output,
)
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.device import require_device
from hpcgnn.train.inference import infer, order_as_asked, order_by_id, write_rows
from hpcgnn.train.programs_predictions import predict_programs
from hpcgnn.train.saved_model import SavedModel, load_saved_graph, open_saved_model
from hpcgnn.train.threads import set_threads
from hpcgnn.typing import Array, GlobalIndices

__all__ = ["main", "predict"]

FORMATS = ("h5", "csv", "npy")

DESCRIPTION = """Write what a trained model says about nodes, in the order of the original graph or
in the order in which nodes are asked for; or about the candidates of the holes of program graphs,
and how often it is right on each split. Start it on every rank:
  srun python -m hpcgnn.predict RUN_DIR -o OUT.h5
It uses the model that was kept for the best seed by validation."""

EPILOG = """formats:
  h5   datasets node_id, probabilities or embeddings, prediction, classes; attributes tell the run
  csv  header node_id,p_CLASS,... (or node_id,e0,...), a line for each node
  npy  the array alone; where its rows are not nodes 0, 1, 2, ... their ids stand beside it:
       OUT.ids.npy for OUT.npy
Values are float32. Program graphs are written as h5: graph_id, probabilities (of candidates),
prediction, label (the right candidate), split, file, line, files.
exit status: 0 written; 2 a fault of the input, one line tells which."""


def main(comm: Communicator) -> int:
    """Run the command with the arguments of the process; return its exit status.

    Collective.
    """
    options = _parser().parse_args()
    with ProcessGrid(comm, options.replication) as grid:
        found = predict(grid, options)
    if comm.rank == 0:
        if options.json:
            print_json(found)
        else:
            report("wrote {output}: {what} of {rows} {of}, seed {seed}".format(**found))
            for name, split in found.get("splits", {}).items():
                line = "{graphs} graphs, accuracy {accuracy:.1%}, chance {chance:.1%}"
                report(f"{name}: " + line.format(**split))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = RankArgumentParser(
        prog="hpcgnn predict",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN_DIR", help="run directory of hpcgnn.train")
    add("-o", "--output", type=Path, required=True, metavar="OUT")
    add("--store", metavar="OTHER.h5", help="another graph with the same features (default: its)")
    add("--seed", type=int, help="seed whose model is used (default: the best by validation)")
    add(
        "--what",
        choices=("probabilities", "embeddings"),
        default="probabilities",
        help="embeddings are the input of the last layer (default: probabilities)",
    )
    add(
        "--nodes",
        metavar="IDS",
        help="original ids: 1,5,9, or a file, .npy or text with an id a "
        "line; --nodes=-4,2 for a negative first (default: all nodes, by increasing id)",
    )
    add("--format", choices=FORMATS, help="default: by the ending of OUT, else h5")
    add(
        "--replication",
        type=int,
        default=1,
        metavar="C",
        help="copies of every block row (1.5D); divides the number of ranks (default: 1)",
    )
    add(
        "--block",
        type=int,
        default=0,
        metavar="S",
        help="program graphs: leave out edges that blocks of this size, and the run's supernodes, "
        "do not hold (default: 0, all edges)",
    )
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where to compute (default: cpu)")
    add("--json", action="store_true", help="print what was written as JSON")
    return parser


def predict(grid: ProcessGrid, options: argparse.Namespace) -> dict[str, Any]:
    """Load the model and the graph, compute, write; return what was done.

    Collective.

    Raises
    ------
    CollectiveInputError
        On any fault of the input; an earlier file at the output stays whole.
    """
    with agree(grid.world):
        saved = open_saved_model(options.run, options.seed, options.store).on(options.device)
        require_device(saved.config)
        if grid.rank == 0:
            check_output(options.output)
        if options.block and saved.config.train.task != "programs":
            raise InputError("--block is for runs on program graphs")
        asks = grid.rank == 0 and options.nodes is not None
        mine = read_ids(options.nodes) if asks else None
    asked = grid.world.bcast(mine, root=0)
    set_threads(grid, saved.config.run.threads)
    if saved.config.train.task == "programs":
        return _predict_programs(grid, saved, options)
    graph = load_saved_graph(grid, saved, TraceRecorder.off())
    rows = infer(graph, saved.model(graph), options.what)
    if asked is None:
        rows = order_by_id(grid, rows)
        num_rows = graph.facts.num_nodes
    else:
        rows = order_as_asked(grid, rows, asked, saved.config.graph.store)
        num_rows = len(asked)
    file = make_file(options, saved, (num_rows, rows.values.shape[1]))
    write_rows(grid, rows, file)
    return {
        "output": str(options.output),
        "ids": str(file.ids_path) if isinstance(file, NpyPredictions) and file.has_ids else None,
        "what": options.what,
        "of": "nodes",
        "rows": num_rows,
        "columns": rows.values.shape[1],
        "ranks": grid.size,
        **saved.origin(),
    }


def _predict_programs(
    grid: ProcessGrid, saved: SavedModel, options: argparse.Namespace
) -> dict[str, Any]:
    with agree(grid.world):
        _check_program_options(options)
    store = options.store or saved.config.programs.judge_store or saved.config.graph.store
    found = predict_programs(grid, saved, store, options.block, options.output)
    return {"output": str(options.output), **found, "ranks": grid.size}


def _check_program_options(options: argparse.Namespace) -> None:
    """Refuse what has no meaning for program graphs."""
    kind = options.format or options.output.suffix.removeprefix(".")
    for option, given, remedy in (
        ("--nodes", options.nodes is not None, "all graphs of the store are scored"),
        ("--what", options.what != "probabilities", "candidates have probabilities only"),
        ("--replication", options.replication != 1, "their graphs have no block rows"),
        ("--format", kind in ("csv", "npy"), "they are written as h5"),
        ("--block", options.block < 0, "give a size of blocks, or 0 for all edges"),
    ):
        if given:
            raise InputError(f"{option} does not apply to program graphs: {remedy}")


def make_file(
    options: argparse.Namespace, saved: SavedModel, shape: tuple[int, int]
) -> PredictionFile:
    """Return the file to write, in the format that is asked for."""
    ending = options.output.suffix.removeprefix(".")
    kind = options.format or (ending if ending in FORMATS else "h5")
    if kind == "npy":
        return NpyPredictions(options.output, shape)
    names = saved.trained.class_names
    if kind == "csv":
        labels = names or tuple(str(number) for number in range(shape[1]))
        probabilities = [f"p_{label}" for label in labels]
        embeddings = [f"e{number}" for number in range(shape[1])]
        return CsvPredictions(
            options.output, probabilities if options.what == "probabilities" else embeddings
        )
    classes = names if options.what == "probabilities" else ()
    return H5Predictions(options.output, options.what, classes, saved.origin())


def read_ids(text: str) -> GlobalIndices:
    """Return the ids that ``--nodes`` names, int64.

    Raises
    ------
    InputError
        Where the file does not read, or holds something else than integers.
    """
    if re.fullmatch(r"-?\d+(,-?\d+)*", text):
        return _as_ids(text, np.array([int(each) for each in text.split(",")]))
    try:
        if text.endswith(".npy"):
            values = np.load(text, allow_pickle=False)
        else:
            lines = [line.split("#")[0].strip() for line in Path(text).read_text().splitlines()]
            values = np.array([int(line) for line in lines if line])
    except OSError as error:
        raise InputError(
            f"--nodes {text}: {error.strerror or error}; give a file or ids such as 1,5,9"
        ) from error
    except ValueError as error:
        raise InputError(f"--nodes {text}: {error}; give one integer a line, or .npy") from error
    return _as_ids(text, values)


def _as_ids(text: str, values: Array) -> GlobalIndices:
    fits = values.ndim == 1 and len(values) > 0 and values.dtype.kind in "iu"
    if not fits or values.max() > np.iinfo(np.int64).max:
        raise InputError(
            f"--nodes {text}: has shape {values.shape} and type {values.dtype}; give a list of "
            "at least one integer below 2^63"
        )
    return values.astype(np.int64)


if __name__ == "__main__":
    run_mpi_command("predict", main)
