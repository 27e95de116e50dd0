"""Sums of cross entropies over rows."""
