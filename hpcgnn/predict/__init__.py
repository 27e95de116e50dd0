"""What a trained model says of nodes, or of the holes of programs; ``python -m hpcgnn.predict``."""
