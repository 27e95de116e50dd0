"""``python -m hpcgnn.export``: export a model as a module of torch, torch_geometric or DGL."""

from hpcgnn.commands.launch import start

if __name__ == "__main__":
    start("export")
