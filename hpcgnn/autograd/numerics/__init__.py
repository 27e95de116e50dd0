"""Arithmetic of products and sums: plain, with 16-bit rows, or with exact sums."""
