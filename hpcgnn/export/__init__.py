"""Export a trained model as a module of another library; ``python -m hpcgnn.export``."""
