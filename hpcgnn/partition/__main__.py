"""``python -m hpcgnn.partition``: as one process, or for ``--method volume`` on every rank."""

import os

from hpcgnn.launch import num_launched, start_mpi_command

if __name__ == "__main__":
    if num_launched(os.environ) > 1:
        start_mpi_command("partition", "hpcgnn.partition.distributed.command")
    else:
        from hpcgnn.console import run_command
        from hpcgnn.partition.command import main

        run_command("partition", main)
