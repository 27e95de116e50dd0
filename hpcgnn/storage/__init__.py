"""The store: a graph in one HDF5 file, written all or nothing and read in block rows.

`GraphStore` reads, `StoreWriter` writes, `EdgeBuilder` sorts edges that come in any order, and
`store_from_arrays` does all of it for arrays in memory. Program graphs have a store of their own,
`InstanceStore` and `InstanceWriter`. `schema` describes the file. Predictions
have files of their own. This package is the only one that imports h5py; it knows nothing of MPI,
except that `GraphStore.open` hands a communicator to a parallel h5py.
"""

from hpcgnn.storage.arrays import store_from_arrays
from hpcgnn.storage.assign import assign_parts
from hpcgnn.storage.atomic import check_output
from hpcgnn.storage.blocks import CSRBlock, NodeBlock
from hpcgnn.storage.edges import EdgeBuilder
from hpcgnn.storage.instance_batch import (
    CANDIDATE_DTYPE,
    GRAPH_DTYPE,
    InstanceBatch,
    InstanceSplit,
)
from hpcgnn.storage.instance_schema import INSTANCE_FORMAT, InstanceHeader
from hpcgnn.storage.instance_writer import InstanceWriter
from hpcgnn.storage.instances import InstanceStore, is_instance_store
from hpcgnn.storage.predictions import (
    CsvPredictions,
    H5Predictions,
    NpyPredictions,
    PredictionFile,
)
from hpcgnn.storage.reader import GraphStore
from hpcgnn.storage.schema import Split, StoreHeader
from hpcgnn.storage.typed_nodes import NodeType
from hpcgnn.storage.writer import StoreWriter

__all__ = [
    "CANDIDATE_DTYPE",
    "GRAPH_DTYPE",
    "INSTANCE_FORMAT",
    "CSRBlock",
    "CsvPredictions",
    "EdgeBuilder",
    "GraphStore",
    "H5Predictions",
    "InstanceBatch",
    "InstanceHeader",
    "InstanceSplit",
    "InstanceStore",
    "InstanceWriter",
    "NodeBlock",
    "NodeType",
    "NpyPredictions",
    "PredictionFile",
    "Split",
    "StoreHeader",
    "StoreWriter",
    "assign_parts",
    "check_output",
    "is_instance_store",
    "store_from_arrays",
]
