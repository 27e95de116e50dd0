"""``python -m hpcgnn.selftest``: in one process, or on every rank with srun or mpiexec."""

from hpcgnn.commands.launch import start

if __name__ == "__main__":
    start("selftest")
