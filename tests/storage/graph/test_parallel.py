"""Ranks read their own rows of one file, which is opened collectively if h5py can."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore, SortedRows, StoreHeader, StoreWriter

NUM_NODES = 11


def write_store(path: Path) -> None:
    with StoreWriter(path, StoreHeader(name="p", num_nodes=NUM_NODES)) as writer:
        writer.append_rows(SortedRows(np.arange(NUM_NODES + 1), np.arange(NUM_NODES)[::-1]))
        writer.append_features(np.arange(2.0 * NUM_NODES).reshape(-1, 2))


def test_each_rank_reads_its_rows(comm: Any, comm_tmp_path: Path) -> None:
    path = comm_tmp_path / "p.h5"
    if comm.rank == 0:
        write_store(path)
    comm.barrier()
    start, stop = (NUM_NODES * each // comm.size for each in (comm.rank, comm.rank + 1))
    with GraphStore.open(path, comm) as store:
        block, nodes = store.read_adjacency(start, stop), store.read_nodes(start, stop)
        store.verify()
    assert block.indices.tolist() == list(range(NUM_NODES))[::-1][start:stop]
    assert nodes.features is not None
    assert nodes.features[:, 0].tolist() == list(range(2 * start, 2 * stop, 2))


@pytest.mark.parametrize("content", [None, b"", b"\x89HDF\r\n\x1a\n and then nothing"])
def test_ranks_fail_together(comm: Any, comm_tmp_path: Path, content: bytes | None) -> None:
    good, bad = comm_tmp_path / "good.h5", comm_tmp_path / "bad.h5"
    if comm.rank == 0:
        write_store(good)
        if content is not None:
            bad.write_bytes(content)
    comm.barrier()
    # A file that cannot be opened may be missing on only one host.
    alone = content is None and h5py.get_config().mpi
    with pytest.raises(InputError, match=r"bad\.h5"):
        GraphStore.open(good if alone and comm.rank else bad, comm)
