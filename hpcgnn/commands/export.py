"""The arguments of ``hpcgnn export``."""

from pathlib import Path

from hpcgnn.commands.arguments import TRUST_CODE, CommandParser
from hpcgnn.commands.command import Command, Processes

LIBRARIES = ("torch", "pyg", "dgl")

DESCRIPTION = """Write a trained model as a module of another library: FOLDER/model.py, source to
keep and change, and FOLDER/model.safetensors, its state dict under the names of that library's
layers.
  python -m hpcgnn.export RUN_DIR --to pyg -o FOLDER
The module gives logits; scaling of features, self loops, reverses and normalisation are in it.
Start it as one process. It compares the module with the model on the run's graph, in float64."""

EPILOG = """libraries:
  torch  classes of the module itself, products of sparse matrices
  pyg    layers of torch_geometric
  dgl    layers of DGL
A module of a library that is not installed here is written, but not compared.
exit status: 0 written; 2 a fault of the input, one line tells which."""


def parser() -> CommandParser:
    """Return the arguments."""
    cli = CommandParser("export", DESCRIPTION, epilog=EPILOG)
    add = cli.add_argument
    add(
        "run", type=Path, metavar="RUN_DIR", help="run directory of hpcgnn.train, or its model file"
    )
    add("--to", choices=LIBRARIES, required=True, help="library")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="made where there is none; its files are replaced (default: RUN_DIR/export-LIBRARY)",
    )
    add("--seed", type=int, help="seed whose model is used (default: the best by validation)")
    add("--store", metavar="G.h5", help="the run's graph, where it lies elsewhere now")
    add(
        "--no-check",
        action="store_true",
        help="do not compare: for graphs that one process cannot hold",
    )
    add("--trust-code", action="store_true", help=TRUST_CODE)
    add("--json", action="store_true", help="print what was written as JSON")
    return cli


COMMAND = Command("export", parser, "hpcgnn.export.command:main", Processes.ONE)

if __name__ == "__main__":
    COMMAND.start()
