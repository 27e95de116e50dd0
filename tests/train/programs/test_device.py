"""Program graphs on a GPU, or its emulator, train as on the CPU."""

from pathlib import Path

from mpi4py import MPI

import pytest

from tests.support.emulated_gpu import some_gpu
from tests.support.training import train
from tests.train.full.test_device import assert_alike
from tests.train.programs.test_programs import make, store

__all__ = ["store"]


@pytest.mark.parametrize(("propagator", "supernodes"), [("sparse", 0), ("banded", 2)])
def test_equals_the_cpu(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    store: Path,
    propagator: str,
    supernodes: int,
) -> None:
    settings = (
        "train.epochs=1",
        f"programs.propagator={propagator}",
        "programs.block=8",
        f"programs.supernodes={supernodes}",
    )
    host = train(comm, make(store, comm_tmp_path / "host", *settings))
    with some_gpu():
        config = make(store, comm_tmp_path / "device", *settings, "train.device=cuda")
        assert_alike(train(comm, config), host)
