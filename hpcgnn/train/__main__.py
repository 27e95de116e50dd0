"""``python -m hpcgnn.train``: start it on every rank, with srun or mpiexec."""

from hpcgnn.launch import start_mpi_command

if __name__ == "__main__":
    start_mpi_command("train", "hpcgnn.train.command")
