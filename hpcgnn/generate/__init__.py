"""Graphs that come with us, as stores: ``python -m hpcgnn.generate KIND -o OUT.h5``."""
