"""``python -m hpcgnn.predict``: start it on every rank, with srun or mpiexec.

Nothing else is in this package, so that nobody imports it and `hpcgnn.predict` stays the function
of the library.
"""

from hpcgnn.launch import start_mpi_command

if __name__ == "__main__":
    start_mpi_command("predict", "hpcgnn.predict_command")
