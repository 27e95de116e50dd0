"""``python -m hpcgnn.doctor``: alone, or on every rank with srun or mpiexec."""

from hpcgnn.commands.launch import start

if __name__ == "__main__":
    start("doctor")
