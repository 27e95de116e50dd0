"""Training and prediction: tasks, the loop, run directories; ``python -m hpcgnn.train``."""
