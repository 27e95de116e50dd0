"""The arguments of ``hpcgnn predict``."""

from pathlib import Path

from hpcgnn.commands.arguments import TRUST_CODE, CommandParser
from hpcgnn.commands.command import Command, Processes
from hpcgnn.storage import PREDICTION_FORMATS

DESCRIPTION = """Write what a trained model says about nodes, or about the graphs of a store of
many, in the order of the original or in the order in which they are asked for; or about the
candidates of the holes of program graphs, and how often it is right on each split; or, where links
are predicted, the scores of given pairs (--pairs), the best targets of nodes (--top), or
embeddings. Start it on every rank:
  srun python -m hpcgnn.predict RUN_DIR -o OUT.h5
It uses the model that was kept for the best seed by validation."""

EPILOG = """formats:
  h5   datasets node_id, probabilities or embeddings, prediction, classes; attributes tell the run
  csv  header node_id,p_CLASS,...,prediction,class (or node_id,e0,...), a line for each node; name
       behind node_id where nodes have names, and their type where nodes have types; class where
       classes have names; graph_id of graphs
  parquet  the columns of the csv
  npy  the array alone; where its rows are not nodes 0, 1, 2, ... their ids stand beside it:
       OUT.ids.npy for OUT.npy
Values are float32. Pairs of nodes are csv, header source,target[,source_name,target_name],
relation,score, or h5 with datasets of these names. Program graphs are written as h5: graph_id,
probabilities (of candidates), prediction, label (the right candidate), split, file, line, files.
exit status: 0 written; 2 a fault of the input, one line tells which."""


def parser() -> CommandParser:
    """Return the arguments."""
    cli = CommandParser("predict", DESCRIPTION, epilog=EPILOG)
    add = cli.add_argument
    add("run", type=Path, metavar="RUN_DIR", help="run directory of hpcgnn.train")
    add("-o", "--output", type=Path, required=True, metavar="OUT")
    add("--store", metavar="OTHER.h5", help="another graph with the same features (default: its)")
    add("--seed", type=int, help="seed whose model is used (default: the best by validation)")
    add(
        "--what",
        choices=("probabilities", "embeddings"),
        help="embeddings are the input of the last layer, of links what scores are made of "
        "(default: probabilities; of links: embeddings)",
    )
    add(
        "--pairs",
        type=Path,
        metavar="FILE.csv",
        help="links: score these pairs; a header source,target[,relation], names or original ids",
    )
    add(
        "--top",
        type=int,
        metavar="K",
        help="links: the K targets with the largest scores for each of --nodes, without known "
        "edges",
    )
    add("--relation", metavar="R", help="links: of the pairs, where several are predicted")
    add("--with-known", action="store_true", help="links: --top with the targets of known edges")
    add(
        "--nodes",
        metavar="IDS",
        help="original ids: 1,5,9, or a file, .npy or text with an id a "
        "line; --nodes=-4,2 for a negative first; names instead where nodes have names, "
        "TYPE:NAME where types share one; numbers of graphs where these are predicted "
        "(default: all, by increasing id)",
    )
    add("--format", choices=PREDICTION_FORMATS, help="default: by the ending of OUT")
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
    add("--trust-code", action="store_true", help=TRUST_CODE)
    add("--json", action="store_true", help="print what was written as JSON")
    return cli


COMMAND = Command("predict", parser, "hpcgnn.train.predict:main", Processes.RANKS)

if __name__ == "__main__":
    COMMAND.start()
