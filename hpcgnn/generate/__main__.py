"""``python -m hpcgnn.generate``: as one process, or on every rank for graphs made in chunks."""

from hpcgnn.launch import start_command

if __name__ == "__main__":
    start_command("generate", "hpcgnn.generate.command")
