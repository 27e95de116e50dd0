"""Readers of text, NumPy arrays, pickles and meshes that several formats share."""
