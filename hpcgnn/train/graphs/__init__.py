"""Training on batches of whole graphs."""
