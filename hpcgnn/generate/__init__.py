"""Graphs that come with us, as stores: ``python -m hpcgnn.generate KIND -o OUT.h5``.

`command` runs as one process; `many_ranks` makes what comes in chunks on every rank of a launcher.
"""
