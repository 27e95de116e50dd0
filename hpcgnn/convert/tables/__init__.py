"""Graphs in tables: node ids, edge tables, node tables and their data."""
