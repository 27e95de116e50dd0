"""All tables of the GPU path: kernels compared with libraries, execution paths, bands, training.

``python -m benchmarks.bench_gpu --json`` prints one JSON object per case; ``--tables`` selects.

- aggregation: graph, width, dtype, sizes and seconds by group-size rule, peers {name: s}, speedup
  over the fastest peer, error against float64, and the bandwidth for the bytes that must move as a
  share of the GPU's copy bandwidth.
- attention (a GAT layer forward and backward, including its linear map): heads, width, ours_s,
  peers, peak bytes of each.
- paths: backward aggregation of a two-layer GCN with 10 % training nodes, on all rows and on active
  rows only, and the seconds to prepare the paths.
- banded: a step of messages by block size and precision, compared with the sparse pattern.
- training: seconds of an epoch, accuracy and loss with paths prepared before training, in the
  first epoch, and not at all.

Methods take turns in one process, but each training has its own; seconds are medians from CUDA
events. Peers that are not installed are left out; without a GPU the command ends with one line.
cupyx has only the column-major product of cuSPARSE; torch's CSR product is the row-major one.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_attention import FusedAttention
from benchmarks.gpu_banded import banded_cases
from benchmarks.gpu_paths import path_cases
from benchmarks.gpu_peers import attention_peers, product_peers
from benchmarks.gpu_timing import (
    copy_bandwidth,
    device_name,
    device_peak_bytes,
    interleave_on_device,
)
from benchmarks.gpu_training import training_cases
from benchmarks.group_rules import TIGR_SIZE, dimension_rule
from benchmarks.harness import surroundings
from benchmarks.spmm_graphs import Matrix, load_matrix
from hpcgnn import kernels
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json, report
from hpcgnn.graph.device import Device
from hpcgnn.kernels import cuda
from hpcgnn.kernels.cuda.device import load_cupy
from hpcgnn.kernels.cuda.groups import PAPER_RULE, GroupRule
from hpcgnn.nn.group_size import load_group_rule
from hpcgnn.spmm.gpu.mpi import StagedTransport

# The first graph has the size of Cora.
DEFAULT_GRAPHS = "rmat:12:2,debian,rmat:18:16,rmat:20:16,rmat:22:8"
TABLES = ("aggregation", "attention", "paths", "banded", "training")
TRAINING_SHARE = 0.1
# Products per CUDA graph: some take less time than the host needs to launch them.
CAPTURED = 8
BLOCKS, HIDDEN = [32, 64, 128, 256, 512], 128
LIBRARIES = ("numpy", "torch", "cupy-cuda12x", "cupy-cuda13x", "torch-geometric")


def main() -> None:
    options = parse_arguments()
    cuda.require_gpu()
    where = surroundings(*LIBRARIES) | {"device": device_name()}
    bandwidth = copy_bandwidth()
    rule = load_group_rule(options.rule)
    for name in options.graphs:
        matrix = load_matrix(name)
        report(f"{name}: {matrix.num_nodes} nodes, {matrix.indices.size} non-zeros")
        for case in graph_cases(matrix, options, rule, bandwidth):
            print_json(case | where)
    if "banded" in options.tables:
        place = torch.device("cuda", 0)
        for case in banded_cases(BLOCKS, options.nodes, HIDDEN, place, options.repeat):
            print_json(case | where)


def graph_cases(
    matrix: Matrix, options: argparse.Namespace, rule: GroupRule, bandwidth: float
) -> Iterator[dict[str, Any]]:
    """Yield the cases of a graph."""
    tables, repeat = options.tables, options.repeat
    if "aggregation" in tables:
        for width in options.widths:
            for dtype in ("float32", "bfloat16"):
                yield aggregation_case(matrix, width, dtype, rule, bandwidth, repeat)
    if "attention" in tables:
        yield from attention_cases(matrix, options)
    if "paths" in tables:
        device = Device("cuda", torch.device("cuda", 0), StagedTransport(), rule)
        yield from path_cases(matrix, options.widths, TRAINING_SHARE, device, repeat)
    if "training" in tables:
        with tempfile.TemporaryDirectory() as folder:
            models = "gcn", "gat"
            yield from training_cases(matrix, TRAINING_SHARE, options.epochs, Path(folder), models)


def parse_arguments() -> argparse.Namespace:
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_gpu",
        description="Time kernels on a GPU, and those of peers.",
    )
    add = cli.add_argument
    graphs = "rmat:SCALE:FACTOR, grid3d:N, debian or STORE.h5"
    add("--graphs", type=words, default=words(DEFAULT_GRAPHS), metavar="NAME,...", help=graphs)
    tables = ",".join(TABLES)
    add("--tables", type=table_names, default=list(TABLES), metavar=tables, help="what to measure")
    add("--widths", type=numbers, default=[16, 64, 128, 256], metavar="N,...", help="columns")
    add("--heads", type=numbers, default=[1, 4], metavar="N,...", help="heads of attention")
    add("--head-width", type=int, default=32, help="columns of a head (default: 32)")
    add("--rule", default="measured", metavar="RULE", help="as train.group_size")
    add("--repeat", type=int, default=21, help="counted rounds (default: 21)")
    add(
        "--nodes", type=int, default=1 << 16, help="nodes of the banded supergraph (default: 65536)"
    )
    add("--epochs", type=int, default=30, help="of each training (default: 30)")
    add("--json", action="store_true", help="accepted for uniformity: the output is always JSON")
    return cli.parse_args()


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def table_names(text: str) -> list[str]:
    found = words(text)
    if not set(found) <= set(TABLES):
        raise argparse.ArgumentTypeError(f"choose from {', '.join(TABLES)}")
    return found


def numbers(text: str) -> list[int]:
    return [int(word) for word in words(text)]


def aggregation_case(
    matrix: Matrix, width: int, dtype: str, rule: GroupRule, bandwidth: float, repeat: int
) -> dict[str, Any]:
    """Return the times of one product, by group-size rule and by peer."""
    cupy, n, nnz = load_cupy(), matrix.num_nodes, matrix.indices.size
    rng = np.random.default_rng(width)
    x32 = cupy.asarray(rng.random((n, width), dtype=np.float32))
    pattern = cupy.asarray(matrix.indptr), cupy.asarray(matrix.indices)
    values = cupy.asarray(matrix.values)
    half = dtype == "bfloat16"
    x = cupy.empty((n, width), "uint16") if half else x32
    if half:
        cuda.gather_rows(x32, None, x, half="bfloat16")
    out = cupy.empty((n, width), "float32")
    sizes = {
        "rule": rule.choose(matrix.indptr, matrix.indices, n, width),
        "paper": PAPER_RULE.size(n, nnz),
        "gnnadvisor": dimension_rule(width),
        "tigr": TIGR_SIZE,
    }
    ours: dict[str, Callable[[], object]] = {}
    for name, size in sizes.items():
        groups = cuda.DeviceGroups.upload(cuda.neighbor_groups(matrix.indptr, size))
        operand = kernels.SparseMatrix(*pattern, values, groups=groups)
        ours[name] = partial(cuda.spmm, operand, x, out, half="bfloat16" if half else None)
    ours["rule"]()
    error = relative_error(matrix, x32 if not half else widened(x), cupy.asnumpy(out))
    peers = product_peers(matrix, x, cupy.empty(x.shape, x.dtype))
    seconds = interleave_on_device(ours | peers, warmup=3, repeat=repeat, captured=CAPTURED)
    fastest = min((seconds[name] for name in peers), default=None)
    moved = nnz * 8 + (n + 1) * 8 + x.nbytes + out.nbytes
    return {
        "kind": "aggregation",
        "graph": matrix.name,
        "width": width,
        "dtype": dtype,
        "sizes": sizes,
        "ours": {name: seconds[name] for name in ours},
        "peers": {name: seconds[name] for name in peers},
        "speedup": None if fastest is None else fastest / seconds["rule"],
        "relative_error": error,
        "bandwidth_share": moved / seconds["rule"] / bandwidth,
        "gathered_bytes_per_s": nnz * width * x.itemsize / seconds["rule"],
    }


def widened(bits: Any) -> Any:
    out = load_cupy().empty(bits.shape, "float32")
    cuda.gather_rows(bits, None, out, half="bfloat16")
    return out


def relative_error(matrix: Matrix, x: Any, found: Any) -> float:
    """Return the largest error against float64, divided by the largest number of the product."""
    operand = load_cupy().asnumpy(x).astype(np.float64)
    wanted = np.empty_like(operand)
    values = matrix.values.astype(np.float64)
    kernels.spmm(kernels.SparseMatrix(matrix.indptr, matrix.indices, values), operand, wanted)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def attention_cases(matrix: Matrix, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the times and the peak memory of layers by method."""
    cupy, n, width = load_cupy(), matrix.num_nodes, options.head_width
    turned = kernels.transpose_csr(matrix.indptr, matrix.indices, None, n)
    pattern, transpose = (
        (cupy.asarray(indptr), cupy.asarray(indices))
        for indptr, indices in ((matrix.indptr, matrix.indices), turned[:2])
    )
    for heads in options.heads:
        torch.manual_seed(heads)
        columns = heads * width
        shapes = (n, columns), (columns, columns), (heads, width), (heads, width), (n, columns)
        operands = [torch.randn(shape, device="cuda") for shape in shapes]
        layer = FusedAttention(pattern, transpose, heads)
        methods: dict[str, Callable[[], object]] = {"ours": partial(layer.run, *operands)}
        if find_spec("torch_geometric") is not None:
            methods |= attention_peers(matrix, operands, heads)
        peaks = {name: device_peak_bytes(method) for name, method in methods.items()}
        seconds = interleave_on_device(methods, warmup=2, repeat=options.repeat)
        peers = [name for name in methods if name != "ours"]
        fastest = min((seconds[name] for name in peers), default=None)
        yield {
            "kind": "attention",
            "graph": matrix.name,
            "heads": heads,
            "head_width": width,
            "ours_s": seconds["ours"],
            "peers": {name: seconds[name] for name in peers},
            "speedup": None if fastest is None else fastest / seconds["ours"],
            "peak_bytes": peaks,
        }


if __name__ == "__main__":
    run_command("bench_gpu", main)
