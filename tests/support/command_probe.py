"""Run the training command many times in one launch, and record the outcome of each run.

`python -m tests.support.command_probe CASES.json RESULTS.json`: cases are lists of arguments;
results are, for each case, the exit status of every rank and what the ranks wrote to standard
error. A first argument ``largest_file=BYTES`` makes longer writes fail, as on a full disk.
"""

import contextlib
import io
import json
import resource
import sys
from pathlib import Path

from mpi4py import MPI

from hpcgnn.commands.command import find_command
from hpcgnn.commands.launch import run_mpi_command


def probe(arguments: list[str]) -> dict[str, object]:
    """Return the outcome of one case; all ranks must end with an exit status."""
    errors = io.StringIO()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if arguments[0].startswith("largest_file="):
        size, arguments = int(arguments[0].partition("=")[2]), arguments[1:]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    sys.argv = ["hpcgnn train", *arguments]
    status = None
    with contextlib.redirect_stderr(errors):
        try:
            run_mpi_command("train", lambda comm: find_command("train").call(comm=comm))
        except SystemExit as end:
            status = end.code
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    world = MPI.COMM_WORLD
    return {"status": world.allgather(status), "stderr": world.allgather(errors.getvalue())}


if __name__ == "__main__":
    cases, results = Path(sys.argv[1]), Path(sys.argv[2])
    found = [probe(case) for case in json.loads(cases.read_text())]
    if MPI.COMM_WORLD.rank == 0:
        results.write_text(json.dumps(found))
