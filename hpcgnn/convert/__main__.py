"""``python -m hpcgnn.convert``: as one process, or on every rank."""

import os

from hpcgnn.launch import num_launched, start_mpi_command

if __name__ == "__main__":
    if num_launched(os.environ) > 1:
        start_mpi_command("convert", "hpcgnn.convert.many_ranks")
    else:
        from hpcgnn.console import run_command
        from hpcgnn.convert.command import main

        run_command("convert", main)
