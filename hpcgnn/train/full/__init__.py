"""Predictions for all nodes of a graph."""
