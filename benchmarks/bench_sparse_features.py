"""The first product of a model on bags of words: sparse, dense, and torch's sparse product.

``python -m benchmarks.bench_sparse_features --json`` prints one JSON object per density: seconds of
``X W`` and of the gradient of W, forward and backward in turn in one process, and bytes of X.
``--dropout`` is the share of features dropped in each pass. One process; needs no MPI.
"""

import argparse
import json
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from benchmarks.harness import interleave, surroundings
from hpcgnn.autograd import DropoutKey, SparseFeatures, arithmetic, dropout
from hpcgnn.commands.launch import run_command
from hpcgnn.sparse import LocalCSR

DENSITIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)


def make_features(rows: int, columns: int, density: float, seed: int) -> SparseFeatures:
    """Return random rows in float32."""
    rng = np.random.default_rng(seed)
    matrix = sp.random(rows, columns, density, "csr", np.float32, rng)
    matrix.sort_indices()
    parts = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data
    return SparseFeatures.of(LocalCSR(*parts, matrix.shape))


def measure(options: argparse.Namespace, density: float) -> dict[str, Any]:
    """Return the results for one density."""
    sparse = make_features(options.rows, options.columns, density, options.seed)
    dense, weight = sparse.written_out(), torch.randn(options.hidden, options.columns)
    gradient, ids = torch.randn(options.rows, options.hidden), np.arange(options.rows)
    stored, key = sparse.matrix, DropoutKey(1, 1)
    parts = (stored.indptr, stored.indices.astype(np.int64), stored.values)
    csr = torch.sparse_csr_tensor(*map(torch.from_numpy, parts), size=stored.shape)
    weight.requires_grad_()

    def ours(features: Tensor) -> Tensor:
        weight.grad = None
        dropped = dropout(features, ids, key, options.dropout)
        arithmetic().linear(dropped, weight).backward(gradient)
        assert weight.grad is not None
        return weight.grad

    def peer() -> Tensor:
        # Without dropout, which torch does not have for sparse rows.
        weight.grad = None
        (csr @ weight.t()).backward(gradient)
        assert weight.grad is not None
        return weight.grad

    expected = ours(dense).clone()
    torch.testing.assert_close(ours(sparse), expected, rtol=1e-3, atol=1e-3)
    ways = {"sparse": lambda: ours(sparse), "dense": lambda: ours(dense), "torch_csr": peer}
    timings = interleave(ways, warmup=2, repeat=options.rounds)
    seconds = {name: timing.median_s for name, timing in timings.items()}
    sparse_bytes = sum(array.nbytes for array in (stored.indptr, stored.indices, stored.values))
    return {
        "density": density,
        "rows": options.rows,
        "columns": options.columns,
        "hidden": options.hidden,
        "dropout": options.dropout,
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "spread": {name: timing.spread for name, timing in timings.items()},
        "dense_over_sparse": seconds["dense"] / seconds["sparse"],
        "torch_csr_over_sparse": seconds["torch_csr"] / seconds["sparse"],
        "sparse_bytes": sparse_bytes,
        "dense_bytes": dense.nbytes,
        "bytes_ratio": sparse_bytes / dense.nbytes,
        **surroundings(),
    }


def main() -> int:
    """Measure all densities; return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.bench_sparse_features", description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=1433)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--densities", type=float, nargs="+", default=DENSITIES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for density in options.densities:
        found = measure(options, density)
        if options.json:
            print(json.dumps(found), flush=True)
            continue
        print(
            f"{density:>6}: {1e3 * found['seconds']['sparse']:.2f} ms sparse, "
            f"dense {found['dense_over_sparse']:.2f}, torch CSR "
            f"{found['torch_csr_over_sparse']:.2f} times as long; "
            f"{found['bytes_ratio']:.4f} of the bytes"
        )
    return 0


if __name__ == "__main__":
    run_command("bench_sparse_features", main)
