"""Node features of the debian-packages graph: what the one-line descriptions say.

The words of a description, without the words of the package's own name (``libfoo-perl`` would give
its section away), without plural endings, are weighted by TF-IDF, and a truncated singular value
decomposition keeps the directions of most variance. Nothing else of the index is used: tags,
tasks and priorities are the archive's own classification, as the section is.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds

from hpcgnn.errors import InputError
from hpcgnn.typing import FloatArray

__all__ = ["description_features", "tfidf", "words"]

WORD = re.compile(r"[a-z0-9]{2,}")


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
    features: FloatArray = left[:, order] * (values[order] * np.sign(peaks))
    return features


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
