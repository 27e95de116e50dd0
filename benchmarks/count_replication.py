"""Where replication pays: rows of a product and its adjoint by ranks P and copies c, counted.

    python -m benchmarks.count_replication --graph debian --method metis --figure FILE.svg

The figure over P and c of "Sparsity-Aware Communication for Distributed Graph Neural Network
Training" (its section 7.2), in rows and not in seconds: for P ranks and c copies the graph is cut
into P / c block rows, and what would travel is counted as `hpcgnn.plan` does, rows between block
rows and sums over replicas alike. A training layer runs one product forward and one back.
"""
