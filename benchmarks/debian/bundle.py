"""The files of the bundled debian-packages graph: features of packages, and how they are packed.

Features are what the one-line descriptions say. The words of a description, without the words of
the package's own name (``libfoo-perl`` would give its section away), without plural endings, are
weighted by TF-IDF, and a truncated singular value decomposition keeps the directions of most
variance. Nothing else of the index is used: tags, tasks and priorities are the archive's own
classification, as the section is.

A file is an uncompressed ``.npz`` inside ``.xz``, which checks itself (CRC64). Edges are kept as
counts per source and destinations; features as int8 multiples of one step a column. The step is a
quarter of the last column's standard deviation, or what the largest value needs: finer steps cost
space and gain no accuracy. Steps are scaled so that the features' root mean square is one.
`hpcgnn.gallery.debian` reads these files.
"""

import io
import lzma
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import svds

from benchmarks.debian.archive import Archive, Edges, VirtualPackages, read_archive
from benchmarks.debian.index import Stanza
from hpcgnn.console import report
from hpcgnn.errors import InputError
from hpcgnn.typing import FloatArray

DEBIAN_FEATURES = 256
SVD_SEED = 20230610
STEP_SHARE = 0.25
WORD = re.compile(r"[a-z0-9]{2,}")


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

    def encode(self) -> bytes:
        """Return the content of a bundle file."""
        archive, num_nodes = self.archive, len(self.archive.names)
        return compress(
            {
                "names": pack_text(archive.names),
                "classes": pack_text(archive.classes),
                "labels": archive.labels.astype(np.int16),
                "levels": self.levels,
                "steps": self.steps,
            },
            archive.edges,
            num_nodes,
        )


def encode_virtual(virtual: VirtualPackages, num_packages: int) -> bytes:
    """Return the content of a file of virtual packages."""
    edges = {"needs": virtual.needs, "provides": virtual.provides}
    return compress({"names": pack_text(virtual.names)}, edges, num_packages)


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


def description_features(
    names: Sequence[str],
    descriptions: Sequence[str],
    num_features: int,
    *,
    seed: int,
    min_count: int = 5,
) -> FloatArray:
    """Return the features of packages, (n, num_features) float64, columns of falling variance.

    Words of fewer than `min_count` descriptions are ignored. The result is deterministic: `seed`
    starts the iteration, and the entry of largest magnitude of each right singular vector is made
    positive. Raises InputError where there are too few packages or words for so many features.
    """
    if num_features < 1:
        raise InputError(f"{num_features} features: give at least 1")
    texts = [words(name, text) for name, text in zip(names, descriptions, strict=True)]
    matrix = tfidf(texts, min_count)
    if num_features >= min(matrix.shape):
        raise InputError(
            f"{num_features} features need more than {matrix.shape[0]} packages with "
            f"{matrix.shape[1]} common words; ask for fewer features"
        )
    start = np.random.default_rng(seed).standard_normal(min(matrix.shape))
    left, values, right = svds(matrix, k=num_features, v0=start)
    order = np.argsort(-values)
    right = right[order]
    peaks = right[np.arange(num_features), np.argmax(np.abs(right), axis=1)]
    return left[:, order] * (values[order] * np.sign(peaks))


def words(name: str, description: str) -> list[str]:
    """Return the words of a description that are not words of the package's name, in singular."""
    own = {_singular(word) for word in WORD.findall(name.lower())}
    found = (_singular(word) for word in WORD.findall(description.lower()))
    return [word for word in found if word not in own]


def tfidf(texts: Iterable[Sequence[str]], min_count: int) -> Any:
    """Return the TF-IDF of word lists, CSR (texts, vocabulary), rows of length one or zero.

    A word that a text has k times and m of n texts have weighs (1 + ln k) (1 + ln((1+n)/(1+m))).
    """
    counts = [Counter(text) for text in texts]
    spread = Counter(word for count in counts for word in count)
    known = sorted(word for word, texts_with in spread.items() if texts_with >= min_count)
    column = {word: number for number, word in enumerate(known)}
    kept = [[(column[w], k) for w, k in count.items() if w in column] for count in counts]
    entries = np.array([pair for pairs in kept for pair in sorted(pairs)], float).reshape(-1, 2)
    indptr = np.concatenate([[0], np.cumsum([len(pairs) for pairs in kept], dtype=np.int64)])
    columns = entries[:, 0].astype(np.int64)
    texts_with = np.array([spread[word] for word in known], float)
    rarity = 1 + np.log((1 + len(counts)) / (1 + texts_with))
    values = (1 + np.log(entries[:, 1])) * rarity[columns]
    matrix = sparse.csr_matrix((values, columns, indptr), shape=(len(counts), len(known)))
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    return sparse.diags_array(1 / np.where(lengths > 0, lengths, 1)).tocsr() @ matrix


def _singular(word: str) -> str:
    """Return an English word without its plural ending, roughly."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def compress(
    arrays: Mapping[str, NDArray[Any]], edges: Mapping[str, Edges], num_sources: int
) -> bytes:
    """Return an ``.npz`` of arrays and of edges, sorted by source, inside ``.xz``."""
    packed = dict(arrays)
    for relation, (src, dst) in edges.items():
        packed[f"count:{relation}"] = np.bincount(src, minlength=num_sources).astype(np.uint32)
        packed[f"dst:{relation}"] = dst.astype(np.int32)
    plain = io.BytesIO()
    np.savez(plain, **packed)  # type: ignore[arg-type]
    return lzma.compress(plain.getvalue(), check=lzma.CHECK_CRC64, preset=9)


def pack_text(lines: tuple[str, ...]) -> NDArray[np.uint8]:
    """Return lines as bytes of UTF-8."""
    return np.frombuffer("\n".join(lines).encode(), np.uint8)
