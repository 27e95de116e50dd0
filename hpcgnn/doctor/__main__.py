"""``python -m hpcgnn.doctor``: alone, or on every rank with srun or mpiexec."""

from hpcgnn.launch import start_mpi_command

if __name__ == "__main__":
    start_mpi_command("doctor", "hpcgnn.doctor.command")
