"""What steps are made of: the whole graph, sampled subgraphs, batches of graphs, programs."""
