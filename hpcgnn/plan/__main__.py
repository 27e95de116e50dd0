"""``python -m hpcgnn.plan``: predict what a run would need on given numbers of ranks."""

from hpcgnn.commands.launch import start

if __name__ == "__main__":
    start("plan")
