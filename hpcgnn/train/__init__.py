"""Training: configuration, task, loop, checkpoints; ``python -m hpcgnn.train``."""
