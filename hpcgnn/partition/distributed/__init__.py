"""Partitioning by volume on many ranks, none of which holds the graph.

Each rank reads a block of rows (`rows`). Clusters of neighbours, found and contracted over the
ranks (`clusters`), give a small graph of which METIS makes the first parts (`start`). Then groups
of parts meet on ranks, which refine them side by side with the serial library's V-cycle (`share`,
`refine`), other groups in every round. All ranks write the store in the new order (`write`).
``command`` is ``python -m hpcgnn.partition`` on many ranks.
"""
