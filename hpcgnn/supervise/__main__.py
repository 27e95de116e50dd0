"""``python -m hpcgnn.supervise``: one process that starts the launcher of a run."""

from hpcgnn.commands.launch import start

if __name__ == "__main__":
    start("supervise")
