"""``python -m hpcgnn.convert``: as one process, or on every rank."""

from hpcgnn.launch import start_command

if __name__ == "__main__":
    start_command("convert", "hpcgnn.convert.command")
