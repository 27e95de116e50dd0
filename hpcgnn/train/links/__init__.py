"""Link prediction on the whole graph: which edges there are, from embeddings of their nodes."""
