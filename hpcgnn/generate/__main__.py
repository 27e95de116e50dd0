"""``python -m hpcgnn.generate``: as one process, or on every rank for graphs made in chunks."""

import os

from hpcgnn.launch import num_launched, start_mpi_command

if __name__ == "__main__":
    if num_launched(os.environ) > 1:
        start_mpi_command("generate", "hpcgnn.generate.many_ranks")
    else:
        from hpcgnn.console import run_command
        from hpcgnn.generate.command import main

        run_command("generate", main)
