"""``python -m hpcgnn.init``: write a configuration for a store."""

from hpcgnn.commands.launch import start

if __name__ == "__main__":
    start("init")
