"""Random damage to files of runs and stopped commands: models, JSON of runs, shapes, parts.

Every case is refused in one line, or works: a model that can be read predicts finite numbers, and a
resumed conversion writes the store of an uninterrupted one.
`python -m tests.faults.test_fuzz_runs DOOR FIRST LAST FOLDER` counts cases.
"""

import argparse
import contextlib
import io
import json
import shutil
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save

from hpcgnn.analysis import comm_matrix, epoch_breakdown, learning_curves, report
from hpcgnn.comm import ProcessGrid
from hpcgnn.config.file import dump_value
from hpcgnn.convert import ConvertOptions, convert, send_edges
from hpcgnn.convert.resume import SavedConversion
from hpcgnn.errors import InputError
from hpcgnn.inspect import inspect_path
from hpcgnn.inspect.show import show
from hpcgnn.plan.graph_shape import Shape
from hpcgnn.train.predict import predict
from hpcgnn.train.run.checkpoint import _checksum
from tests.faults.test_fuzz import SIZES, change_json, change_tensors
from tests.faults.test_fuzz_doors import damaged, outcome
from tests.faults.test_fuzz_formats import count_cases, scattered
from tests.support import training
from tests.support.graph_files import contents

Generator = np.random.Generator
SHAPE = b"""name = "papers"
classes = 17
training = 0.01
[nodes.paper]
count = 1_000
features = 12
[edges.cites]
from = "paper"
to = "paper"
count = 4_000
outside = 1.0
degrees = {exponent = 2.9, min = 1, max = 250}
"""
HISTOGRAM = b"degree,count\n1,100\n3,500\n16,400\n"
EDGES = "".join(f"{i},{(7 * i + 1) % 40}\n" for i in range(40))


def make_run(folder: Path) -> Path:
    """A run of two epochs with traces, on four parts."""
    if not (folder / "run").exists():
        graph = training.make_graph()
        store = training.write_store(MPI.COMM_SELF, folder, graph, parts=2)
        more = ("train.epochs=2", "trace.enabled=true", "exchange.method=aware")
        training.train(MPI.COMM_SELF, training.make_config(store, folder / "run", *more))
    return folder / "run"


def damaged_model(rng: Generator, path: Path) -> None:
    """Change the texts or tensors of a model file; its checksum is usually corrected."""
    if rng.random() < 0.2:
        path.write_bytes(scattered(rng, path.read_bytes()))
        return
    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    kind = rng.random()
    if kind < 0.3:
        change_tensors(rng, tensors)
    elif kind < 0.4:
        name = sorted(tensors)[rng.integers(len(tensors))]
        tensors[name] = tensors[name] / 0
    elif kind < 0.6:
        state = change_json(rng, json.loads(metadata["state"]))
        metadata["state"] = json.dumps(state)
    elif kind < 0.8:
        tables = change_json(rng, tomllib.loads(metadata["config"]))
        with contextlib.suppress(Exception):
            metadata["config"] = "".join(
                f"[{section}]\n" + "".join(f"{k} = {dump_value(v)}\n" for k, v in values.items())
                for section, values in tables.items()
            )
    else:
        metadata["config"] = damaged(rng, metadata["config"].encode()).decode(errors="ignore")
    texts = {name: metadata[name] for name in ("config", "state")}
    metadata["crc32"] = str(_checksum(texts, tensors))
    path.write_bytes(save(tensors, metadata))


def model_case(rng: Generator, run: Path, folder: Path) -> Callable[[], object]:
    """`predict` with a changed ``model.safetensors``."""
    path = folder / "model.safetensors"
    shutil.copy(run / "model.safetensors", path)
    damaged_model(rng, path)
    out = folder / "out.npy"
    options = {
        **dict.fromkeys(
            ("seed", "store", "nodes", "what", "pairs", "top", "relation", "format", "like")
        ),
        "rollout": None,
        "from_step": None,
        "task": "",
        "run": path,
        "output": out,
        "device": "cpu",
        "block": 0,
        "replication": 1,
        "with_known": False,
        "trust_code": False,
        "json": True,
    }

    def call() -> None:
        out.unlink(missing_ok=True)
        with ProcessGrid(MPI.COMM_SELF) as grid:
            predict(grid, argparse.Namespace(**options))
        assert np.isfinite(np.load(out)).all()

    return call


def run_case(rng: Generator, run: Path, folder: Path) -> Callable[[], object]:
    """`inspect` and all analyses of a run with a changed file."""
    copy = folder / "run"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    names = ("summary.json", "sessions.json", "metrics.jsonl", "trace/rank00000.jsonl")
    file = copy / names[rng.integers(4)]
    if rng.random() < 0.3:
        file.write_bytes(damaged(rng, file.read_bytes()))
    elif file.suffix == ".json":
        file.write_text(json.dumps(change_json(rng, json.loads(file.read_text()))))
    else:
        lines = file.read_text().splitlines()
        row = int(rng.integers(len(lines)))
        lines[row] = json.dumps(change_json(rng, json.loads(lines[row])))
        file.write_text("\n".join(lines) + "\n")

    def call() -> None:
        calls: tuple[Callable[[], object], ...] = (
            lambda: show(inspect_path(copy)),
            partial(report.main, [str(copy), "-o", str(folder / "r.html")]),
            partial(learning_curves.main, [str(copy), "--out", str(folder / "figures")]),
            partial(epoch_breakdown.main, [str(copy), "--out", str(folder / "figures")]),
            partial(comm_matrix.main, [str(copy), "--out", str(folder / "figures")]),
        )
        with contextlib.redirect_stdout(io.StringIO()):
            done = [outcome(each) for each in calls]
        if not all(done):
            raise InputError("refused")

    return call


def shape_case(rng: Generator, _: Path, folder: Path) -> Callable[[], object]:
    """A shape, and the file of degrees that it names."""
    degrees, text = HISTOGRAM, SHAPE
    if rng.random() < 0.5:
        text = text.replace(b"{exponent = 2.9, min = 1, max = 250}", b'"degrees.csv"')
        degrees = damaged(rng, degrees) if rng.random() < 0.6 else degrees
    if degrees is HISTOGRAM:
        text = damaged(rng, text)
    (folder / "degrees.csv").write_bytes(degrees)
    (folder / "shape.toml").write_bytes(text)
    return partial(Shape.read, folder / "shape.toml")


class KilledError(Exception):
    """The point at which a conversion is stopped."""


def parts_case(rng: Generator, _: Path, folder: Path) -> Callable[[], object]:
    """``convert --resume`` in a folder whose runs were changed."""
    source, out = folder / "e.csv", folder / "out.h5"
    source.write_text(f"src,dst\n{EDGES}")
    parts = folder / "out.h5.parts"
    shutil.rmtree(parts, ignore_errors=True)
    out.unlink(missing_ok=True)

    def killed(*_: object, **__: object) -> None:
        raise KilledError

    convert_it = partial(
        convert, source, out, format_name="edge-list", options=ConvertOptions(), resume=True
    )
    kept, every = SavedConversion.remove, send_edges.SAVE_EVERY_S
    SavedConversion.remove, send_edges.SAVE_EVERY_S = killed, 0.0  # type: ignore[method-assign]
    try:
        with contextlib.suppress(KilledError):
            convert_it()
    finally:
        SavedConversion.remove, send_edges.SAVE_EVERY_S = kept, every  # type: ignore[method-assign]
    out.unlink(missing_ok=True)
    files = sorted(path for path in parts.rglob("*") if path.is_file())
    assert files
    file = files[rng.integers(len(files))]
    content = file.read_bytes()
    if file.suffix == ".json" and rng.random() < 0.6:
        file.write_text(json.dumps(change_json(rng, json.loads(content))))
    elif rng.random() < 0.1:
        file.unlink()
    elif content:
        file.write_bytes(scattered(rng, content))

    def call() -> None:
        convert_it()
        expected = {((7 * i + 1) % 40, i) for i in range(40)}
        assert set(map(tuple, np.argwhere(contents(out).matrix).tolist())) == expected

    return call


DOORS = {"model": model_case, "run": run_case, "shape": shape_case, "parts": parts_case}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs"))


def works(door: str, seed: int, run: Path, folder: Path) -> bool:
    """Return whether a case works; False if it is refused in one line."""
    folder.mkdir(exist_ok=True, parents=True)
    case = DOORS[door](np.random.default_rng([20261124, seed]), run, folder)
    return outcome(case)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("count", SIZES)
def test_what_runs_leave(tmp_path: Path, run: Path, door: str, count: int) -> None:
    if door == "run":
        # A case runs every command that reads a run: seconds, while other cases take hundredths.
        count //= 8
    done = sum(works(door, seed, run, tmp_path) for seed in range(count))
    # Both outcomes occur: damage is refused, and harmless damage is not.
    assert 0 < done < count


if __name__ == "__main__":
    where = Path(sys.argv[4])
    where.mkdir(parents=True, exist_ok=True)
    of = make_run(where)
    count_cases(
        sys.argv[1],
        range(int(sys.argv[2]), int(sys.argv[3])),
        where,
        lambda door, seed, folder: works(door, seed, of, folder),
    )
