"""Partitioned stores."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.comm import ONE_PROCESS, RowMap
from hpcgnn.partition import Partition
from hpcgnn.partition.permute import NewOrder, write_in_order
from hpcgnn.storage import GraphStore, StoreWriter


def write_partitioned(
    store: GraphStore,
    path: Path,
    partition: Partition,
    *,
    method: str,
    seed: int,
    metrics: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> None:
    """Write `store` to `path` with its nodes in the order of `partition`, as one process."""
    partition.validate()
    rows = RowMap(np.array([0, partition.num_nodes]), 0)
    order = NewOrder.of(ONE_PROCESS, rows, partition.part, partition.sizes())

    def record(writer: StoreWriter) -> None:
        writer.set_partition(order.row_starts, method, seed, metrics)

    write_in_order(ONE_PROCESS, store, path, order, provenance, record)
