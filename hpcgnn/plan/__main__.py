"""``python -m hpcgnn.plan``: what a run would need on other numbers of ranks."""

from hpcgnn.commands.launch import start

if __name__ == "__main__":
    start("plan")
