import runpy
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import bench_gpu, calibrate_group_size, gpu_timing
from benchmarks.calibrate_group_size import LADDER, best_size
from benchmarks.epoch_methods import METHODS, make_problem
from benchmarks.gpu_attention import SLOPE, FusedAttention
from benchmarks.gpu_banded import banded_cases
from benchmarks.gpu_paths import path_cases
from benchmarks.spmm_graphs import Matrix
from hpcgnn import kernels
from hpcgnn.autograd import cupy_bridge
from hpcgnn.autograd.attention import additive
from hpcgnn.autograd.band import BAND_PRECISIONS
from hpcgnn.graph.device import Device
from hpcgnn.kernels.cuda.groups import PAPER_RULE
from hpcgnn.spmm.gpu.mpi import StagedTransport
from tests.kernels.conftest import random_graph
from tests.support.emulated_gpu import emulated_gpu
from tests.support.stand_in import StandIn, compiler


class Events(StandIn):
    """The stand-in for cupy, with a clock that counts launches."""

    def __init__(self):
        super().__init__()
        self.now = 0
        self.cuda.Event = self.event
        self.cuda.get_elapsed_time = lambda start, end: 1e3 * (end.at - start.at)

    def event(self):
        made = SimpleNamespace(at=0, synchronize=lambda: None)

        def record():
            self.now += 1
            made.at = self.now

        made.record = record
        return made


@pytest.fixture
def device(monkeypatch):
    if compiler() is None:
        pytest.skip("no C++ compiler: the kernels cannot be emulated")
    made = Events()
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setattr(cupy_bridge, "_stream_address", lambda: 0)
    # The stand-in cannot capture graphs.
    monkeypatch.setattr(gpu_timing, "_replay", lambda function, _: function)
    return made


@pytest.fixture
def matrix():
    graph = random_graph(np.random.default_rng(5).integers(0, 12, 40), 40, 21)
    return Matrix("random", 40, graph.indptr, graph.indices, graph.values.astype(np.float32))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_aggregation_cases_are_right(matrix, monkeypatch, dtype):
    monkeypatch.setattr(bench_gpu, "product_peers", lambda *_: {"peer": lambda: None})
    case = bench_gpu.aggregation_case(matrix, 16, dtype, PAPER_RULE, 1e9, 2)
    assert case["relative_error"] < 1e-5
    assert set(case["ours"]) == {"rule", "paper", "gnnadvisor", "tigr"}
    assert case["sizes"]["tigr"] == 10
    assert case["speedup"] == 1.0


@pytest.mark.usefixtures("device")
def test_calibration_times_every_size(matrix):
    seconds = calibrate_group_size.time_sizes(matrix, 4, 1)
    assert tuple(seconds) == LADDER


def test_paths_give_what_all_rows_give(matrix):
    with emulated_gpu():
        device = Device("cuda", torch.device("cpu"), StagedTransport())
        cases = list(path_cases(matrix, [3], 0.2, device, 1))
    assert [case["relative_error"] < 1e-5 for case in cases] == [True]
    whole, paths = cases[0]["entries"][:2], cases[0]["entries"][2:]
    assert sum(paths) < sum(whole)


def test_bands_give_what_the_pattern_gives():
    with emulated_gpu():
        cases = list(banded_cases([8, 16], 300, 4, torch.device("cpu"), 1))
    assert len(cases) == 1 + 2 * len(BAND_PRECISIONS)
    for case in cases:
        assert case["relative_error"] < (2e-2 if case["precision"] == "bfloat16" else 1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["sage", "gcn", "gat:2"])
def test_epochs_on_a_gpu_are_those_of_the_cpu(model, precision, monkeypatch):
    # GPUs have no kernels for heads that share the input.
    monkeypatch.setattr(additive, "heads_share_input", lambda *_: False)
    steps = []
    for context, gpu in ((nullcontext(), False), (emulated_gpu(), True)):
        torch.manual_seed(1)  # The seed of the layer's weights; models have their own seeds.
        with context:
            ours = METHODS["ours"](make_problem(model, "rmat:6:4", 1, precision=precision, gpu=gpu))
            result = ours.forward()
            ours.differentiate(result)
        steps.append([result.detach(), *(each.grad for each in ours.parameters)])
    tolerance = 1e-5 if precision == "float32" else 2e-2
    for mine, theirs in zip(*steps, strict=True):
        spread = theirs.abs().max().item()
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance * spread)


def test_the_smallest_of_sizes_that_are_alike():
    assert best_size({1: 3.0, 2: 1.005, 4: 1.0, 8: 1.2}) == 2


def test_the_fused_layer_equals_autograd(device, matrix):
    torch.manual_seed(3)
    heads, width, n = 2, 4, matrix.num_nodes
    shapes = (n, 5), (5, heads * width), (heads, width), (heads, width)
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    grad = torch.randn((n, heads * width), dtype=torch.float64)
    x, weight, source, target = leaves
    z = (x @ weight).unflatten(1, (heads, width))
    rows = torch.from_numpy(np.repeat(np.arange(n), np.diff(matrix.indptr)))
    columns = torch.from_numpy(matrix.indices).long()
    logits = (z[rows] * target).sum(2) + (z[columns] * source).sum(2)
    weights = torch.nn.functional.leaky_relu(logits, SLOPE).exp()
    total = torch.zeros((n, heads), dtype=torch.float64).index_add(0, rows, weights)
    sums = torch.zeros_like(z).index_add(0, rows, weights[:, :, None] * z[columns])
    wanted = (sums / total.clamp_min(1e-300)[:, :, None]).flatten(1)
    wanted.backward(grad)
    pattern = device.asarray(matrix.indptr), device.asarray(matrix.indices)
    turned = kernels.transpose_csr(matrix.indptr, matrix.indices, None, n)
    transpose = device.asarray(turned[0]), device.asarray(turned[1])
    layer = FusedAttention(pattern, transpose, heads)
    out, found = layer.run(*(leaf.detach() for leaf in leaves), grad)
    torch.testing.assert_close(out, wanted.detach(), rtol=1e-10, atol=1e-10)
    for each, leaf in zip((found.x, found.weight, found.source, found.target), leaves, strict=True):
        torch.testing.assert_close(each, leaf.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("script", "words"), [(bench_gpu, []), (calibrate_group_size, ["--output", "rule.json"])]
)
def test_without_a_gpu_one_line_says_so(monkeypatch, capsys, script, words):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(sys, "argv", [script.__name__, *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script.__file__, run_name="__main__")
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    name = script.__name__.removeprefix("benchmarks.")
    assert line.startswith(f"hpcgnn {name}: error: CuPy cannot be imported")
