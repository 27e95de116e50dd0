"""Whether the ranks have read what the store's fingerprint stands for."""

from hpcgnn.comm import Communicator, agree, allreduce_sum, allreduce_xor
from hpcgnn.spmd import collective
from hpcgnn.storage import OpenStore


@collective
def check_rows_read(comm: Communicator, store: OpenStore) -> None:
    """Compare what the ranks of `comm` have read together with the checksums of the store.

    Raises
    ------
    CollectiveInputError
        Where a dataset was changed in place, or two ranks have read different files.
    """
    crcs, rows = store.rows_read()
    allreduce_xor(comm, crcs)
    allreduce_sum(comm, rows)
    with agree(comm):
        store.check_rows_read(crcs, rows)
