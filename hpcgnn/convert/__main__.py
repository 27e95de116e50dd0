"""Run ``python -m hpcgnn.convert``, as one process or on every rank."""

from hpcgnn.commands.launch import start

if __name__ == "__main__":
    start("convert")
