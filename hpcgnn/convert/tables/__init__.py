"""Graphs in tables: the ids of nodes, tables of edges, tables of nodes and what they hold."""
