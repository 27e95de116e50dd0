"""Virtual packages of a Debian archive, as nodes of a type of their own.

A virtual package is a name that packages provide and none has, such as ``mail-transport-agent``.
Nodes are those virtual names that a package refers to in a field other than Breaks, Conflicts and
Replaces; they have no description, so no features, and no section. Two relations join packages to
them: ``needs``, for every reference to the name, as first or further alternative, and ``provides``.
They say what the relation provided-by of the untyped graph says of pairs of packages, which is left
out beside them; a first alternative that one package alone provides still stands for that package
in its field's relation too.
"""

import io
import lzma
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np

from hpcgnn.gallery.debian import FIELDS, NEGATIVE_FIELDS, edge_arrays, first_of_names
from hpcgnn.gallery.graph import Edges, GalleryGraph
from hpcgnn.gallery.packages_index import Stanza, names_in
from hpcgnn.gallery.packing import pack_edges, pack_text, unpack_edges, unpack_text
from hpcgnn.storage import Split

__all__ = ["VirtualPackages", "bundled_virtual", "read_virtual", "with_virtual"]


@dataclass(frozen=True)
class VirtualPackages:
    """The virtual names, sorted, and the edges (package, virtual name) of both relations."""

    names: tuple[str, ...]
    needs: Edges
    provides: Edges

    def encode(self, num_packages: int) -> bytes:
        """Return the content of a file, an ``.npz`` inside ``.xz``."""
        plain = io.BytesIO()
        arrays: dict[str, Any] = pack_edges("needs", self.needs, num_packages)
        arrays |= pack_edges("provides", self.provides, num_packages)
        np.savez(plain, names=pack_text(self.names), **arrays)
        return lzma.compress(plain.getvalue(), check=lzma.CHECK_CRC64, preset=9)

    @classmethod
    def decode(cls, content: bytes) -> "VirtualPackages":
        """Return what a file's content holds."""
        with np.load(io.BytesIO(lzma.decompress(content))) as arrays:
            needs, provides = (unpack_edges(name, arrays) for name in ("needs", "provides"))
            return cls(unpack_text(arrays["names"]), needs, provides)


def read_virtual(stanzas: Iterable[Stanza]) -> VirtualPackages:
    """Return the virtual packages among `stanzas`, whose packages are numbered by their names."""
    packages = first_of_names(stanzas)
    providers: dict[str, set[int]] = {}
    users: dict[str, set[int]] = {}
    for node, stanza in enumerate(packages.values()):
        for provided in names_in(stanza.get("Provides", "")):
            providers.setdefault(provided[0], set()).add(node)
        for field in FIELDS:
            if field not in NEGATIVE_FIELDS:
                for name in (n for group in names_in(stanza.get(field, "")) for n in group):
                    users.setdefault(name, set()).add(node)
    names = sorted((providers.keys() & users.keys()) - packages.keys())

    def edges(of: dict[str, set[int]]) -> Edges:
        return edge_arrays((node, number) for number, name in enumerate(names) for node in of[name])

    return VirtualPackages(tuple(names), edges(users), edges(providers))


def bundled_virtual() -> VirtualPackages:
    """Return the virtual packages that belong to the bundled graph: 4,823 names."""
    file = resources.files("hpcgnn.gallery") / "data" / "debian-virtual.npz.xz"
    return VirtualPackages.decode(file.read_bytes())


def with_virtual(graph: GalleryGraph, virtual: VirtualPackages) -> GalleryGraph:
    """Return the graph of packages with virtual packages after them, in two node types."""
    num_packages, num_virtual = graph.num_nodes, len(virtual.names)
    edges = {name: ends for name, ends in graph.edges.items() if name != "provided-by"}
    for name, (package, number) in (("needs", virtual.needs), ("provides", virtual.provides)):
        edges[name] = (package, number + num_packages)
    assert graph.labels is not None
    assert graph.split is not None
    return replace(
        graph,
        name="debian-virtual",
        num_nodes=num_packages + num_virtual,
        edges=edges,
        features=None,
        types=np.repeat(np.array([0, 1], np.uint8), [num_packages, num_virtual]),
        type_features={"package": graph.features, "virtual": None},
        labels=np.pad(graph.labels, (0, num_virtual), constant_values=-1),
        split=np.pad(graph.split, (0, num_virtual), constant_values=Split.NONE),
        node_names=graph.node_names + virtual.names,
    )
