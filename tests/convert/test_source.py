"""The choice of sparse storage for features."""

from collections.abc import Iterator

import numpy as np
import pytest

from hpcgnn.convert.source import ConvertOptions, Features


def blocks() -> Iterator[np.ndarray]:
    yield np.zeros((1, 500), np.float32)


@pytest.mark.parametrize(
    ("density", "how", "sparse"),
    [
        # The sizes of Cora, of Pubmed, and of more words than are fast as a dense product.
        (0.0127, "auto", True),
        (0.1002, "auto", True),
        (0.3, "auto", False),
        (None, "auto", False),
        (0.3, "always", True),
        (0.0127, "never", False),
    ],
)
def test_density_decides(density: float | None, how: str, sparse: bool) -> None:
    features = Features(500, np.dtype(np.float32), blocks, str, density=density)
    assert features.is_sparse(ConvertOptions(sparse_features=how)) is sparse
