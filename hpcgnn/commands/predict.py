"""``python -m hpcgnn.predict``: write what a trained model says of nodes."""

from hpcgnn.commands.launch import start

if __name__ == "__main__":
    start("predict")
