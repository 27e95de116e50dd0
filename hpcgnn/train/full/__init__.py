"""Training on the whole graph: one step an epoch, its loss over all ranks."""
