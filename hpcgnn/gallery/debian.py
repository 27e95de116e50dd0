"""The bundled graph: the binary packages of Debian 12 (main, amd64), labelled and typed.

Nodes are packages, sorted by name. A node's class is its Section. Edges run from a package to the
package it refers to, in eleven relations: eight fields of the index (`depends` to `replaces`),
`alternative` for packages after a ``|``, `provided-by` for the providers of a virtual name, and
`same-source`. Features are the leading principal directions of the words of the one-line
descriptions, stored as int8 multiples of a step for each column.

``python -m benchmarks.debian`` made the two files from an index of the archive; it defines the
relations and features in full. Each file is an uncompressed ``.npz`` in an ``.xz`` with checksum.
"""

import io
import lzma
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.gallery.graph import Edges, GalleryGraph
from hpcgnn.storage import Split

DEBIAN_SPLIT_SEED = 1993
RELATIONS = (
    "depends",
    "pre-depends",
    "recommends",
    "suggests",
    "enhances",
    "breaks",
    "conflicts",
    "replaces",
    "alternative",
    "provided-by",
    "same-source",
)
VIRTUAL_RELATIONS = ("needs", "provides")


def debian_packages(split_seed: int = DEBIAN_SPLIT_SEED, *, virtual: bool = False) -> GalleryGraph:
    """Return the bundled graph: 63,436 packages of Debian 12, 58 sections, 386,102 typed edges.

    `split_seed` seeds the random 60/20/20 split. `virtual` adds the 4,823 virtual names that
    packages refer to, such as ``mail-transport-agent``, as nodes of a second type without features.
    The relations `needs` and `provides` join packages to them and replace `provided-by`.
    """
    data = resources.files("hpcgnn.gallery") / "data"
    graph = decode_packages((data / "debian-packages.npz.xz").read_bytes()).with_split(split_seed)
    if not virtual:
        return graph
    return _with_virtual(graph, *decode_virtual((data / "debian-virtual.npz.xz").read_bytes()))


def decode_packages(content: bytes) -> GalleryGraph:
    """Return the graph of packages from the content of a file, without a split."""
    arrays, edges = _unpack(content, RELATIONS)
    names = _lines(arrays["names"])
    return GalleryGraph(
        name="debian-packages",
        num_nodes=len(names),
        edges=edges,
        features=arrays["levels"] * arrays["steps"],
        labels=arrays["labels"].astype(np.int32),
        class_names=_lines(arrays["classes"]),
        node_names=names,
    )


def decode_virtual(content: bytes) -> tuple[tuple[str, ...], dict[str, Edges]]:
    """Return the virtual names from a file's content, and the edges (package, name) by relation."""
    arrays, edges = _unpack(content, VIRTUAL_RELATIONS)
    return _lines(arrays["names"]), edges


def _unpack(
    content: bytes, relations: Sequence[str]
) -> tuple[dict[str, NDArray[Any]], dict[str, Edges]]:
    """Return the arrays and the edges of a file, which stores counts per source and targets."""
    with np.load(io.BytesIO(lzma.decompress(content))) as file:
        arrays = dict(file)
    edges: dict[str, Edges] = {}
    for relation in relations:
        counts = arrays[f"count:{relation}"]
        sources = np.repeat(np.arange(len(counts)), counts)
        edges[relation] = (sources, arrays[f"dst:{relation}"].astype(np.int64))
    return arrays, edges


def _lines(text: NDArray[Any]) -> tuple[str, ...]:
    return tuple(text.tobytes().decode().split("\n"))


def _with_virtual(
    graph: GalleryGraph, names: tuple[str, ...], pairs: dict[str, Edges]
) -> GalleryGraph:
    """Return the graph with two node types: packages, then virtual names."""
    num_packages, num_virtual = graph.num_nodes, len(names)
    edges = {name: ends for name, ends in graph.edges.items() if name != "provided-by"}
    for relation, (package, number) in pairs.items():
        edges[relation] = (package, number + num_packages)
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
        node_names=graph.node_names + names,
    )
