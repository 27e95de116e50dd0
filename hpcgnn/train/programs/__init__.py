"""Training on program graphs: VarMisuse with a gated graph neural network."""
