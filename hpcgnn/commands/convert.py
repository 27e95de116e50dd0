"""The arguments of ``hpcgnn convert``."""

import argparse

from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.command import Command, Processes
from hpcgnn.commands.convert_programs import COMMAND as PROGRAMS
from hpcgnn.convert.formats.registry import FORMATS


def parser() -> CommandParser:
    """Return the arguments."""
    cli = CommandParser(
        "convert",
        formatter_class=argparse.HelpFormatter,
        description="Convert a graph into a store (HDF5). docs/formats.md describes each format. "
        "Started with mpiexec or srun, all ranks divide edge lists: the same store on any number.",
        epilog="python -m hpcgnn.convert programs --help: program graphs from Python sources. "
        "formats: " + "; ".join(f"{name}: {each.about}" for name, each in FORMATS.items()),
    )
    cli.add_argument(
        "input",
        metavar="INPUT",
        nargs="+",
        help="file or folder to read; several edge lists are read one after the other",
    )
    cli.add_argument("-o", "--output", metavar="OUT.h5", required=True, help="store to write")
    cli.add_argument(
        "--format", metavar="F", choices=list(FORMATS), help="default: told from the input"
    )
    cli.add_argument("--name", help="name of the graph (default: from INPUT)")
    cli.add_argument("--undirected", action="store_true", help="add the reverse of each edge")
    cli.add_argument("--reverse", action="store_true", help="swap the ends of each edge")
    cli.add_argument(
        "--self-loops", choices=("keep", "add", "drop"), default="keep", help="default: keep"
    )
    cli.add_argument(
        "--duplicates",
        choices=("first", "sum", "error"),
        default="first",
        help="edges given more than once: the first counts (default), weights are summed, or fail",
    )
    cli.add_argument(
        "--relabel",
        action="store_true",
        help="edge lists: number the ids that occur from 0, in their order, and keep them",
    )
    cli.add_argument(
        "--num-nodes", type=int, metavar="N", help="edge lists (default: largest id + 1)"
    )
    cli.add_argument(
        "--columns",
        metavar="A,B,...",
        help="edge lists: what each field of a line is: src, dst, weight, relation or skip; or "
        "by the names of a header: src=NAME,dst=NAME,...",
    )
    cli.add_argument(
        "--names", action="store_true", help="edge lists: take all ids as names, numbers too"
    )
    cli.add_argument(
        "--nodes",
        action="append",
        default=[],
        metavar="FILE",
        help="table of nodes (csv, tsv, parquet) or matrix of their features (npy); repeatable",
    )
    cli.add_argument(
        "--node-columns",
        metavar="ROLE=NAME,...",
        help="columns of --nodes by name or place: id, label, split, ignore; several as A+B",
    )
    cli.add_argument(
        "--features",
        metavar="A,B,...",
        help="columns of --nodes that are features, also of vectors (default: all other numbers)",
    )
    cli.add_argument(
        "--label-separator",
        metavar="TEXT",
        help="what stands between the labels of a node that may have several",
    )
    cli.add_argument(
        "--edge-features",
        metavar="A,B,...",
        help="columns of edge lists that are features of the edges",
    )
    cli.add_argument(
        "--graphs",
        metavar="FILE",
        help="table of graphs: graph, label, split; for nodes with a column graph",
    )
    cli.add_argument(
        "--nodes-from-edges",
        action="store_true",
        help="admit nodes that occur in edges only, beside those of --nodes",
    )
    cli.add_argument(
        "--split-file",
        action="append",
        default=[],
        metavar="[NAME=]A,B,C",
        help="files of the ids that train, validate and test; repeatable",
    )
    cli.add_argument("--root", metavar="DIR", help="pyg: the folder of torch-geometric's data set")
    cli.add_argument(
        "--split", metavar="S", help="which of several splits: OGB folder name, npz mask column"
    )
    cli.add_argument(
        "--random-split",
        metavar="A,B,C",
        help="draw a split: percentages of the nodes with labels that train, validate and test",
    )
    cli.add_argument(
        "--split-seed", type=int, metavar="S", help="seed of --random-split (default: 0)"
    )
    cli.add_argument(
        "--per-class", type=int, metavar="N", help="--random-split: N nodes of each class train"
    )
    cli.add_argument(
        "--dtype",
        choices=("float16", "float32", "float64"),
        help="type of the stored features (default: as in the input; float32 from text)",
    )
    cli.add_argument(
        "--memory",
        type=int,
        default=1024,
        metavar="MIB",
        help="for edges, names, of each process (default: 1024)",
    )
    cli.add_argument(
        "--resume",
        action="store_true",
        help="keep sorted edges in OUT.h5.parts; go on from what an ended conversion left there",
    )
    cli.add_argument("--json", action="store_true", help="print one JSON object")
    return cli


COMMAND = Command(
    "convert", parser, "hpcgnn.convert.command:main", Processes.ANY, subcommands=(PROGRAMS,)
)

if __name__ == "__main__":
    COMMAND.start()
