"""Attention in training: scores of each form, and the passes that they share."""
