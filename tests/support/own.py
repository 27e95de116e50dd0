"""A model outside of the package, with options of several types."""

from types import MappingProxyType

from hpcgnn.nn.models import GCN


class Many(GCN):
    """A GCN that ignores its options."""

    own_options = MappingProxyType({"widths": (1, 2), "name": "x", "on": False})
