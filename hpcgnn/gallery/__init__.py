"""Small reproducible graphs for tests, examples and benchmarks, and one real graph.

Functions return a `GalleryGraph`, whose `write` writes it to a store; seeds are explicit.
`write_streamed` writes graphs of any size, and time-dependent fields on meshes.
"""

from hpcgnn.gallery.channel_mesh import KINDS, channel_mesh
from hpcgnn.gallery.communities import (
    CommunityEdges,
    CommunityNodes,
    dcsbm,
    planted,
    planted_types,
)
from hpcgnn.gallery.debian import DEBIAN_SPLIT_SEED, debian_packages
from hpcgnn.gallery.flow import VortexStreets
from hpcgnn.gallery.graph import GalleryGraph, random_split
from hpcgnn.gallery.heat import PLACES, BoxMesh, CoolingBoxes, MovedNodes
from hpcgnn.gallery.lattice_boltzmann import REYNOLDS_OF_A_CELL, FlowChannel
from hpcgnn.gallery.many_graphs import planted_graphs
from hpcgnn.gallery.rmat_edges import RmatEdges, rmat
from hpcgnn.gallery.shapes import GridEdges, grid_graph
from hpcgnn.gallery.streamed import (
    EdgeChunks,
    RandomNodes,
    StreamedGraph,
    write_streamed,
)
from hpcgnn.gallery.tables import tables
