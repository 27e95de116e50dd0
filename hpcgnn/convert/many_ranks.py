"""The converting command on many ranks, which divide the input and sort rows of their own.

Files are divided into pieces, of one large file too: lines from one byte to another, row groups of
Parquet. Each rank reads some of them, and edges go to the ranks of their rows, which sort them in
files where they outgrow the memory given. Ids that are names, or numbers to relabel, are divided
among the ranks by ranges, as the sorted ids are. Data of nodes goes to the ranks of equal ranges of
nodes. All write the store, each its rows and its nodes. It does not depend on the number of ranks:
edges carry their places in the input where it matters which of several is the first.
"""

from hpcgnn.comm import Communicator
from hpcgnn.convert.command import run
from hpcgnn.convert.team import Team
from hpcgnn.launch import RankArgumentParser
from hpcgnn.spmd import collective


@collective
def main(comm: Communicator) -> int:
    """Convert as the command line says; return the exit status."""
    team = Team(comm)
    run(team, RankArgumentParser)
    return 0
