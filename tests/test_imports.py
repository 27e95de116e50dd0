"""Modules are imported only where they are used."""

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, pkgutil, sys
from hpcgnn.plan import start

def serve():
    import hpcgnn.train.command
    print(*sys.modules)
    import hpcgnn.nn
    hpcgnn.open_graph
    print(*sys.modules)
    for module in pkgutil.walk_packages(hpcgnn.__path__, "hpcgnn."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    print(*sys.modules)
    sys.exit()

sys.path.insert(0, sys.argv[1])
start.serve = serve
start.main(None)
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> list[set[str]]:
    """Return the modules of a rehearsed rank, with those of the library, and with all others.

    The first cupy on the path cannot be imported.
    """
    folder = tmp_path_factory.mktemp("imports")
    for name in ("cupy", "cupyx"):
        (folder / f"{name}.py").write_text("raise SystemExit('imported')\n")
    words = [sys.executable, "-c", PROGRAM, folder]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_training_starts_without_what_it_does_not_use(imported: list[set[str]]) -> None:
    """Each rank pays for imports: these modules and converters took 0.35 of 2 CPU seconds.

    So does a rehearsed rank, whose process had 26 MiB that no rank has.
    """
    rank, *_ = imported
    assert not {"scipy", "pyarrow", "pymetis", "hpcgnn.convert.pipeline"} & rank
    # Of planning, only the rehearsal.
    assert not {"hpcgnn.plan.command", "hpcgnn.gallery"} & rank


def test_importing_layers_starts_no_mpi(imported: list[set[str]]) -> None:
    _, library, _ = imported
    assert {"hpcgnn.nn", "hpcgnn.library"} <= library
    assert "mpi4py.MPI" not in library


def test_importing_everything_never_imports_cupy(imported: list[set[str]]) -> None:
    *_, everything = imported
    assert {"hpcgnn.plan.command", "hpcgnn.kernels.cuda"} <= everything
    assert not {name for name in everything if name.split(".")[0] in ("cupy", "cupyx")}
