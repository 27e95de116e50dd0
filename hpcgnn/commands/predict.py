"""``python -m hpcgnn.predict``: write the predictions of a trained model."""

from hpcgnn.commands.launch import start

if __name__ == "__main__":
    start("predict")
