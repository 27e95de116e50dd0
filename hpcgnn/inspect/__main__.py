"""``python -m hpcgnn.inspect``: print the contents of a store, a checkpoint or a run directory."""

from hpcgnn.commands.launch import start

if __name__ == "__main__":
    start("inspect")
