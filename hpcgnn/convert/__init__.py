"""Importers: read graphs in common formats and stream them into a store.

Each format has a module that reads its input into a `GraphSource`, which `pipeline` writes. An edge
src -> dst of the input becomes the non-zero in row dst, column src. Nothing here imports torch.
Names are loaded on first use, since training imports readers of meshes and should not load the
converter with them.
"""

from typing import TYPE_CHECKING

from hpcgnn import lazily

if TYPE_CHECKING:
    from hpcgnn.convert.formats.python import from_dgl, from_scipy, from_torch_geometric
    from hpcgnn.convert.formats.registry import FORMATS, convert, detect
    from hpcgnn.convert.pipeline import Report
    from hpcgnn.convert.source import ConvertOptions

__getattr__ = lazily(
    __name__,
    {
        "hpcgnn.convert.formats.python": "from_dgl from_scipy from_torch_geometric",
        "hpcgnn.convert.formats.registry": "FORMATS convert detect",
        "hpcgnn.convert.pipeline": "Report",
        "hpcgnn.convert.source": "ConvertOptions",
    },
)
