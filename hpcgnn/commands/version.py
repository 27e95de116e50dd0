"""``python -m hpcgnn.version``: print what is installed."""

from hpcgnn.commands.launch import start

if __name__ == "__main__":
    start("version")
