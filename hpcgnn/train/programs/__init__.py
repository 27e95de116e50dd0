"""Training on program graphs: the VarMisuse task with a gated graph neural network."""
