"""Link prediction on the whole graph: score edges from the embeddings of their nodes."""
