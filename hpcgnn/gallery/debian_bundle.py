"""The bundled debian-packages graph: made once from an index, kept in one small file.

The file in the package was made from the ``Packages`` index of Debian 12 (bookworm), main, amd64
by::

    python -m hpcgnn.gallery Packages.xz -o hpcgnn/gallery/data/debian-packages.npz.xz \
        --virtual hpcgnn/gallery/data/debian-virtual.npz.xz

It is an uncompressed ``.npz`` inside ``.xz``, which checks itself (CRC64). Edges are kept as counts
per source and destinations; features as int8 multiples of one step a column. The step is a quarter
of the last column's standard deviation, or what the largest value needs: finer steps cost space and
gain no accuracy. Steps are scaled so that the features' root mean square is one.
"""

import io
import lzma
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.console import report
from hpcgnn.gallery.debian import RELATIONS, Archive, read_archive
from hpcgnn.gallery.debian_features import description_features
from hpcgnn.gallery.debian_virtual import bundled_virtual, read_virtual, with_virtual
from hpcgnn.gallery.graph import GalleryGraph
from hpcgnn.gallery.packages_index import Stanza, read_index
from hpcgnn.gallery.packing import pack_edges, pack_text, unpack_edges, unpack_text
from hpcgnn.typing import FloatArray

__all__ = [
    "DEBIAN_FEATURES",
    "DEBIAN_SPLIT_SEED",
    "Bundle",
    "build_bundle",
    "debian_from_index",
    "debian_packages",
]

DEBIAN_FEATURES = 256
SVD_SEED = 20230610
DEBIAN_SPLIT_SEED = 1993
STEP_SHARE = 0.25


@dataclass(frozen=True)
class Bundle:
    """A typed graph of packages with quantised features.

    Attributes
    ----------
    archive
        Names, sections and edges; the descriptions are not kept in a file.
    levels
        int8[n, f]; feature = level times step.
    steps
        float32[f].
    """

    archive: Archive
    levels: NDArray[np.int8]
    steps: NDArray[np.float32]

    def to_graph(self, split_seed: int = DEBIAN_SPLIT_SEED) -> GalleryGraph:
        """Return the graph with float32 features and a random 60/20/20 split."""
        return GalleryGraph(
            name="debian-packages",
            num_nodes=len(self.archive.names),
            edges=self.archive.edges,
            features=self.levels * self.steps,
            labels=self.archive.labels,
            class_names=self.archive.classes,
            node_names=self.archive.names,
        ).with_split(split_seed)

    def encode(self) -> bytes:
        """Return the content of a bundle file."""
        archive = self.archive
        arrays: dict[str, Any] = {"levels": self.levels, "steps": self.steps}
        num_nodes = len(archive.names)
        for relation, edges in archive.edges.items():
            arrays |= pack_edges(relation, edges, num_nodes)
        plain = io.BytesIO()
        np.savez(
            plain,
            names=pack_text(archive.names),
            classes=pack_text(archive.classes),
            labels=archive.labels.astype(np.int16),
            **arrays,
        )
        return lzma.compress(plain.getvalue(), check=lzma.CHECK_CRC64, preset=9)

    @classmethod
    def decode(cls, content: bytes) -> "Bundle":
        """Return the bundle in a file's content."""
        with np.load(io.BytesIO(lzma.decompress(content))) as arrays:
            archive = Archive(
                names=unpack_text(arrays["names"]),
                descriptions=(),
                classes=unpack_text(arrays["classes"]),
                labels=arrays["labels"].astype(np.int32),
                edges={relation: unpack_edges(relation, arrays) for relation in RELATIONS},
            )
            return cls(archive, arrays["levels"], arrays["steps"])


def debian_packages(split_seed: int = DEBIAN_SPLIT_SEED, *, virtual: bool = False) -> GalleryGraph:
    """Return the bundled graph: 63,436 packages of Debian 12, 58 sections, 386,102 typed edges.

    `virtual` adds virtual packages as nodes of another type, see `debian_virtual`.
    """
    file = resources.files("hpcgnn.gallery") / "data" / "debian-packages.npz.xz"
    graph = Bundle.decode(file.read_bytes()).to_graph(split_seed)
    return with_virtual(graph, bundled_virtual()) if virtual else graph


def debian_from_index(
    index: Path,
    num_features: int = DEBIAN_FEATURES,
    split_seed: int = DEBIAN_SPLIT_SEED,
    *,
    virtual: bool = False,
) -> GalleryGraph:
    """Return the graph of another ``Packages`` index, made as the bundled one was.

    Raises InputError for a malformed index.
    """
    report(f"reading {index}")
    stanzas = read_index(index)
    graph = build_bundle(stanzas, num_features).to_graph(split_seed)
    return with_virtual(graph, read_virtual(stanzas)) if virtual else graph


def build_bundle(stanzas: list[Stanza], num_features: int = DEBIAN_FEATURES) -> Bundle:
    """Return the graph of the packages in an index."""
    archive = read_archive(stanzas)
    report(f"computing {num_features} features of {len(archive.names)} packages")
    features = description_features(
        archive.names, archive.descriptions, num_features, seed=SVD_SEED
    )
    return Bundle(archive, *quantise(features))


def quantise(features: FloatArray) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return int8 levels (n, f) and float32 steps (f,) that stand for `features`, scaled."""
    scale = np.sqrt(np.mean(features**2))
    finest = STEP_SHARE * features[:, -1].std()
    steps = np.maximum(finest, np.abs(features).max(axis=0) / np.iinfo(np.int8).max)
    steps[steps == 0] = 1
    levels = np.rint(features / steps).astype(np.int8)
    return levels, (steps / scale).astype(np.float32)
