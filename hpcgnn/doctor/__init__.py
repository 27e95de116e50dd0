"""Find problems of a machine that would make runs fail or slow; ``hpcgnn doctor``."""
