"""Attention in training: a torch function for each form of scores, and the passes they share."""
