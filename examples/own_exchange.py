"""Your own exchange: choose which rows to fetch, and which partial sums to push.

mpiexec -n 4 hpcgnn train CONFIG.toml exchange.method=own_exchange:HUBS
"""

from dataclasses import replace

import numpy as np

from hpcgnn.spmm import METHODS

MANY = 4


def push_hubs(remote, starts):
    """Push a row's sum over a peer's nodes if these are many, else fetch their rows.

    `remote` is the CSR of a rank's entries with columns of other ranks; those of peer p are columns
    ``starts[p]`` to ``starts[p + 1]``. Return a mask (nnz,) of the entries to push.
    """
    peers = np.searchsorted(starts, remote.indices, side="right") - 1
    pairs = remote.entry_rows().astype(np.int64) * len(starts) + peers
    _, pair_of_entry, sizes = np.unique(pairs, return_inverse=True, return_counts=True)
    return sizes[pair_of_entry] >= MANY


HUBS = replace(METHODS["joint"], cover=push_hubs)
