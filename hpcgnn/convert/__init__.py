"""Importers: graphs in the formats that are in use, streamed into a store.

``python -m hpcgnn.convert`` and `convert` read files; `from_scipy`, `from_torch_geometric` and
`from_dgl` take graphs of a Python program. A file for each format reads its input into a
`GraphSource` (`source`): streams of edges and features, arrays of labels and split; `pipeline`
writes it.
An edge src -> dst of the input becomes the non-zero in row dst, column src. This package may import
`storage`, and knows nothing of torch. Ranks divide an input as a `comm.RankGroup`; one process
needs no MPI.
"""

from hpcgnn.convert.formats.python import from_dgl, from_scipy, from_torch_geometric
from hpcgnn.convert.formats.registry import FORMATS, convert, detect
from hpcgnn.convert.pipeline import Report
from hpcgnn.convert.source import ConvertOptions

__all__ = [
    "FORMATS",
    "ConvertOptions",
    "Report",
    "convert",
    "detect",
    "from_dgl",
    "from_scipy",
    "from_torch_geometric",
]
