"""Stores: a graph in one HDF5 file, written whole or not at all and read in blocks of rows.

`graph.schema` and `instances.schema` describe the files. Only this package imports h5py. In it only
`by_ranks` uses MPI; `GraphStore.open` passes a communicator on to a parallel h5py.
"""

from hpcgnn.storage.atomic import (
    check_output,
    hold,
    read_csv,
    read_whole,
    require_file,
    write_whole,
)
from hpcgnn.storage.files import HDF5_VERSION, OpenStore
from hpcgnn.storage.format import first_true
from hpcgnn.storage.graph.add_splits import add_splits
from hpcgnn.storage.graph.arrays import GraphArrays, SeriesArrays, store_from_arrays
from hpcgnn.storage.graph.blocks import (
    CSRBlock,
    EdgeData,
    NodeBlock,
    NodeType,
    SortedRows,
    SparseRows,
    names_by_type,
    row_positions,
)
from hpcgnn.storage.graph.checks import fault_in_times
from hpcgnn.storage.graph.edge_builder import EdgeBuilder, EdgeColumns, both_ways, finite_weights
from hpcgnn.storage.graph.fields import FieldInfo
from hpcgnn.storage.graph.parallel_writer import ShareSizes, StoreShare
from hpcgnn.storage.graph.part_assignment import assign_parts
from hpcgnn.storage.graph.reader import GraphStore
from hpcgnn.storage.graph.schema import (
    DEFAULT_SPLIT,
    MAX_NODE_TYPES,
    SPARSE_FEATURES,
    Split,
    StoreHeader,
)
from hpcgnn.storage.graph.sorting import SpillFile, first_of_each, split_places
from hpcgnn.storage.graph.writer import StoreWriter
from hpcgnn.storage.instances.schema import (
    CANDIDATE_DTYPE,
    GRAPH_DTYPE,
    InstanceBatch,
    InstanceHeader,
    InstanceSplit,
)
from hpcgnn.storage.instances.store import InstanceStore, InstanceWriter, is_instance_store
from hpcgnn.storage.predictions import (
    PREDICTION_FORMATS,
    CsvPredictions,
    H5Predictions,
    NamesOf,
    NpyPredictions,
    ParquetPredictions,
    PredictionFile,
    RowIds,
    TableColumns,
)
from hpcgnn.storage.rollouts import ROLLOUT_FORMATS, CellMesh, Rollout, RolloutFile, value_type
