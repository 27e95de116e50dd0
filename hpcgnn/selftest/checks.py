"""The checks of the self-test; each yields the same findings on all ranks."""

import platform
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from timeit import repeat
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from hpcgnn import library
from hpcgnn.doctor.findings import FAULT, GOOD, REMARK, Finding
from hpcgnn.kernels import SparseMatrix, available_isas, spmm, spmm_transpose
from hpcgnn.kernels.cuda import GpuUnavailableError, require_gpu
from hpcgnn.partition import read_pattern
from hpcgnn.selftest.fixtures import SEED, Fixtures
from hpcgnn.spmd import collective
from hpcgnn.spmm import METHODS
from hpcgnn.storage import GraphStore

ROUNDING = 1e-10
"""Relative difference in float64, far above the effect of the order of summation."""
_UNEVEN = 3
_BROKEN = "results of this installation are wrong: build it again for this processor and this MPI"
_OBJECTIVES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "classes of nodes": {"train": {"task": "full"}},
    "attention": {"train": {"task": "full"}, "model": {"name": "gat", "heads": 2}},
    "links": {"train": {"task": "links"}},
    "whole graphs": {"train": {"task": "graphs"}, "graphs": {"batch": 0}},
}
_SAMPLED: Mapping[str, Mapping[str, Any]] = {
    "train": {"task": "sampled"},
    "sampling": {"budget": 60, "steps": 2},
}


def _tables(tables: Mapping[str, Mapping[str, Any]], store: Path) -> dict[str, dict[str, Any]]:
    train = {"epochs": 2, "dtype": "float64", "evaluate_every": 2, **tables.get("train", {})}
    model = {"hidden": 8, **tables.get("model", {})}
    others = {name: dict(table) for name, table in tables.items()}
    return {**others, "graph": {"store": str(store)}, "train": train, "model": model}


def _difference(result: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference relative to the largest expected number."""
    if result.shape != expected.shape:
        return np.inf
    difference = np.abs(result - expected).max(initial=0)
    return float(difference / max(np.abs(expected).max(initial=0), 1e-300))


@collective
def _judge(fixtures: Fixtures, topic: str, difference: float, limit: float, good: str) -> Finding:
    """Judge whether the differences on all ranks are within a limit."""
    worst, rank = fixtures.worst(difference)
    if worst <= limit:
        return Finding(topic, GOOD, f"{good} (largest difference {worst:.0e})" if limit else good)
    host = fixtures.comm.allgather(platform.node())[rank]
    return Finding(
        topic, FAULT, f"rank {rank} on {host} differs by {worst:.1e} of the largest value", _BROKEN
    )


@collective
def clocks(fixtures: Fixtures) -> Iterable[Finding]:
    """Compare the length of a wait on the two clocks of a host, and the hosts' times of day."""
    began, day = time.perf_counter(), time.time()
    time.sleep(0.05)
    passed, passed_day = time.perf_counter() - began, time.time() - day
    fixtures.comm.Barrier()
    days = fixtures.comm.allgather(time.time())
    wrong, rank = fixtures.worst(0.0 if passed > 0.04 and abs(passed - passed_day) < 0.5 else 1.0)
    if wrong:
        host, seconds, of_day = fixtures.comm.allgather((platform.node(), passed, passed_day))[rank]
        yield Finding(
            "clocks",
            FAULT,
            f"{host}: 0.05 s lasted {seconds:.3f} s, {of_day:.3f} s by its time of day",
            "its clock is broken or being set: measured times and time limits are wrong",
        )
    elif (apart := max(days) - min(days)) > 2:
        yield Finding(
            "clocks", REMARK, f"hosts are {apart:.0f} s apart", "start the hosts' time service"
        )
    else:
        yield Finding("clocks", GOOD, f"hosts are at most {1e3 * apart:.0f} ms apart")


@collective
def messages(fixtures: Fixtures) -> Iterable[Finding]:
    """Let every rank send a marked message to every rank."""
    comm, length = fixtures.comm, 5_000
    peers = np.arange(comm.size)
    sent = np.repeat(comm.rank * comm.size + peers, length).astype(np.float64)
    received = np.full_like(sent, -1)
    comm.Alltoall(sent, received)
    differs = received.reshape(comm.size, length) != (peers * comm.size + comm.rank)[:, None]
    senders = np.flatnonzero(differs.any(axis=1))
    wrong, rank = fixtures.worst(float(len(senders) > 0))
    if not wrong:
        yield Finding("messages", GOOD, f"{comm.size**2} between all ranks arrived unchanged")
        return
    sender = comm.allgather(int(senders[0]) if len(senders) else -1)[rank]
    yield Finding(
        "messages",
        FAULT,
        f"rank {rank} received other data from rank {sender} than were sent",
        "the launcher belongs to another MPI than mpi4py, or the network loses data: hpcgnn doctor",
    )


@collective
def kernels(fixtures: Fixtures) -> Iterable[Finding]:
    """Compare products with SciPy's, for each instruction set of the processor and each dtype."""
    generator = np.random.default_rng(SEED)
    matrix = sp.random_array((301, 203), density=0.05, rng=generator, format="csr")
    x, back = generator.standard_normal((203, 37)), generator.standard_normal((301, 37))
    worst = {"float64": 0.0, "float32": 0.0}
    for name in worst:
        csr = SparseMatrix(
            matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32),
            matrix.data.astype(name),
        )  # fmt: skip
        for isa in available_isas():
            forward, transposed = np.zeros((301, 37), name), np.zeros((203, 37), name)
            spmm(csr, x.astype(name), forward, isa=isa)
            spmm_transpose(csr, back.astype(name), transposed, isa=isa)
            differences = (
                _difference(forward, matrix @ x),
                _difference(transposed, matrix.T @ back),
            )
            worst[name] = max(worst[name], *differences)
    for name, limit in (("float64", ROUNDING), ("float32", 1e-5)):
        seen = f"sparse products equal SciPy's with {', '.join(available_isas())}"
        yield _judge(fixtures, f"kernels {name}", worst[name], limit, seen)


@collective
def exchanges(fixtures: Fixtures) -> Iterable[Finding]:
    """Compare distributed products, by every exchange and schedule, with SciPy's."""
    with GraphStore.open(fixtures.whole) as store:
        adjacency = read_pattern(store).to_scipy().astype(float)
    looped = adjacency + sp.eye_array(adjacency.shape[0])
    scale = sp.diags_array(1 / np.sqrt(np.asarray(looped.sum(axis=1)).ravel()))
    x = np.random.default_rng(SEED).standard_normal((adjacency.shape[0], 5))
    expected, names = scale @ looped @ scale @ x, []
    worst = 0.0
    for method in METHODS:
        for schedule in ("resident", "sequential"):
            with library.open_graph(
                fixtures.comm,
                str(fixtures.nodes),
                aggregations=["symmetric"],
                exchange={"method": method, "schedule": schedule},
                train={"dtype": "float64"},
            ) as graph:
                (operator,) = graph.operators.values()
                own, own_expected = x[graph.node_ids], expected[graph.node_ids]
                # The matrix is symmetric, so its adjoint gives the same.
                for apply in (operator.apply, operator.apply_transpose):
                    worst = max(worst, _difference(apply(own), own_expected))
        names.append(method)
    yield _judge(
        fixtures, "exchanges", worst, ROUNDING, f"{', '.join(names)} equal SciPy's product"
    )


@collective
def gradients(fixtures: Fixtures) -> Iterable[Finding]:
    """Compare the slope of a loss along its gradient with a finite difference."""
    for model in ("gcn", "sage", "gat"):
        with library.open_graph(
            fixtures.comm,
            str(fixtures.nodes),
            model={"name": model, "hidden": 6},
            train={"dtype": "float64"},
        ) as graph:
            net = graph.make_model(SEED)
            parameters = [weight for weight in net.parameters() if weight.requires_grad]

            def loss(net: Any = net, graph: library.Graph = graph) -> torch.Tensor:
                return graph.loss(net(graph.view, graph.features, None))

            loss().backward()  # type: ignore[no-untyped-call]
            library.sum_gradients(graph, net)
            slopes = [torch.clone(weight.grad) for weight in parameters if weight.grad is not None]
            length = float(torch.cat([slope.flatten() for slope in slopes]).norm())
            values = []
            with torch.no_grad():
                for step in (1e-5, -2e-5):
                    for weight, slope in zip(parameters, slopes, strict=True):
                        weight.add_(slope, alpha=step / length)
                    values.append(graph.total(loss()))
            measured = (values[0] - values[1]) / 2e-5
        difference = abs(measured - length) / length
        yield _judge(fixtures, f"gradient {model}", difference, 1e-5, "equals a finite difference")


def rank_counts(size: int) -> list[int]:
    """Return 1, 2, 4, ... and `size`."""
    return sorted({size, *(2**power for power in range(size.bit_length()) if 2**power <= size)})


@collective
def objectives(fixtures: Fixtures) -> Iterable[Finding]:
    """Train each objective on 1, 2, 4, ... and all ranks, and compare the losses."""
    size = fixtures.comm.size
    counts = rank_counts(size)
    for name, tables in _OBJECTIVES.items():
        store = fixtures.graphs if name == "whole graphs" else fixtures.nodes
        curves = [
            fixtures.train(f"{name}-{ranks}", ranks, _tables(tables, store)) for ranks in counts
        ]
        difference = max(_difference(np.array(curve), np.array(curves[0])) for curve in curves)
        seen = f"losses are equal on {', '.join(map(str, counts))} rank{'s' * (size > 1)}"
        yield _judge(fixtures, f"training: {name}", difference, ROUNDING, seen)
    losses = fixtures.train("sampled", size, _tables(_SAMPLED, fixtures.nodes))
    broken = 0.0 if np.isfinite(losses).all() and len(losses) == 2 else np.inf
    yield _judge(
        fixtures, "training: sampled subgraphs", broken, 0, "two epochs with finite losses"
    )


@collective
def resume(fixtures: Fixtures) -> Iterable[Finding]:
    """Resume from a checkpoint, and compare the losses with those of an uninterrupted run."""
    size = fixtures.comm.size
    tables = {name: _tables({"train": {"epochs": epochs}}, fixtures.nodes) for name, epochs in
              (("whole", 4), ("first", 2), ("all", 4))}  # fmt: skip
    uninterrupted = fixtures.train("uninterrupted", size, tables["whole"])
    fixtures.train("resumed", size, tables["first"])
    resumed = fixtures.train("resumed", size, tables["all"])
    equal = uninterrupted == resumed and len(resumed) == 4
    seen = "a run resumes from its checkpoint bit for bit"
    yield _judge(fixtures, "resume", 0.0 if equal else np.inf, 0, seen)


@collective
def rates(fixtures: Fixtures) -> Iterable[Finding]:
    """Compare the speed of a sparse product on all ranks, and with that of a memory copy."""
    generator = np.random.default_rng(SEED + fixtures.comm.rank)
    nodes, degree, width = 20_000, 8, 64
    indices = generator.integers(0, nodes, nodes * degree, dtype=np.int32)
    matrix = SparseMatrix(np.arange(nodes + 1, dtype=np.int64) * degree, indices)
    x, out = np.ones((nodes, width), np.float32), np.empty((nodes, width), np.float32)
    source = np.ones(nodes * degree * width // 4, np.float32)
    target = np.empty_like(source)
    moved = 4 * nodes * width * (degree + 1)
    seconds = min(repeat(lambda: spmm(matrix, x, out), number=1))
    copied = 2 * source.nbytes / min(repeat(lambda: np.copyto(target, source), number=1))
    _, rank = fixtures.worst(seconds)
    shares = fixtures.comm.allgather((moved / seconds, copied))
    rate, memory = shares[rank]
    host = fixtures.comm.allgather(platform.node())[rank]
    seen = f"{rate / 1e9:.1f} GB/s at worst, rank {rank} on {host}; it copies {memory / 1e9:.1f}"
    times = max(other for other, _ in shares) / rate
    if times > _UNEVEN:
        remedy = f"the fastest rank is {times:.1f} times as fast: look for other jobs on that host"
        yield Finding("sparse products", REMARK, seen, remedy)
    else:
        yield Finding("sparse products", GOOD, seen)


@collective
def devices(fixtures: Fixtures) -> Iterable[Finding]:
    """Train on GPUs, if every rank has one, and compare the losses with those on CPUs."""
    try:
        require_gpu()
        missing = ""
    except GpuUnavailableError as error:
        missing = str(error)
    if any(fixtures.comm.allgather(missing)):
        yield Finding("GPU", GOOD, "not tested: not every rank has one")
        return
    size, tables = fixtures.comm.size, {"train": {"dtype": "float32"}}
    on_host = fixtures.train("host", size, _tables(tables, fixtures.nodes))
    tables = {"train": {"dtype": "float32", "device": "cuda"}}
    on_gpu = fixtures.train("gpu", size, _tables(tables, fixtures.nodes))
    difference = _difference(np.array(on_gpu), np.array(on_host))
    yield _judge(fixtures, "GPU", difference, 1e-3, "losses equal those on CPUs")


CHECKS: tuple[Callable[[Fixtures], Iterable[Finding]], ...] = (
    clocks, messages, kernels, exchanges, gradients, objectives, resume, rates, devices,
)  # fmt: skip
"""The checks in their order; later ones depend on what earlier ones check."""
