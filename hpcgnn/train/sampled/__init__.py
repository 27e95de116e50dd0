"""Training on sampled subgraphs, or on batches with sampled neighbours."""
