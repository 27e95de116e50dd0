"""Classes, several labels or numbers of edges that exist, from embeddings of their nodes."""
