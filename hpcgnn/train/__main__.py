"""``python -m hpcgnn.train``: start it on every rank, with srun or mpiexec."""

from hpcgnn.comm import run_mpi_command
from hpcgnn.train.command import main

if __name__ == "__main__":
    run_mpi_command("train", main)
