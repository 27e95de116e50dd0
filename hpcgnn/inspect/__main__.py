"""``python -m hpcgnn.inspect``: print what a store, a checkpoint or a run directory holds."""

from hpcgnn.commands.launch import start

if __name__ == "__main__":
    start("inspect")
