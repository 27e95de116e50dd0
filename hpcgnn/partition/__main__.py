"""``python -m hpcgnn.partition``: as one process, or on every rank."""

from hpcgnn.launch import start_command

if __name__ == "__main__":
    start_command("partition", "hpcgnn.partition.command")
