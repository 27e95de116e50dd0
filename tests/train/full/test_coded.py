"""Columns are coded where that saves memory, and no bit of losses and weights changes."""

from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
from safetensors.numpy import load_file

from hpcgnn.sparse import LocalCSR
from hpcgnn.sparse.local import CodedCSR, MainMemory
from tests.support.training import make_config, make_graph, train, write_store

SETTINGS = ("train.epochs=2", "exchange.schedule=sequential", "train.evaluate_every=1")
CASES = {
    "gcn": ("exchange.active_sets=false", "train.precision=bfloat16"),
    "sage": ("exchange.method=joint",),
    "gin": ("exchange.method=oblivious", "exchange.active_sets=false"),
    "appnp": ("exchange.method=hierarchical", "exchange.prefetch=1"),
}


@pytest.mark.parametrize("model", CASES)
def test_equal_bits(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(), parts=comm.size)
    coded, made = MainMemory.coded, []

    def counted(memory: MainMemory, block: LocalCSR) -> CodedCSR:
        made.append(block.nnz)
        return coded(memory, block)

    runs = []
    for name, form in (("coded", counted), ("plain", MainMemory.matrix)):
        monkeypatch.setattr(MainMemory, "coded", form)
        directory = comm_tmp_path / name
        settings = (f"model.name={model}", *SETTINGS, *CASES[model])
        run = train(comm, make_config(store, directory, *settings))
        weights = load_file(directory / "model.safetensors")
        losses = [run.column(f"{each}_loss") for each in ("train", "valid", "test")]
        runs.append((losses, weights))
    assert sum(comm.allgather(sum(made))) > 0
    (losses, weights), (plain_losses, plain_weights) = runs
    assert losses == plain_losses
    assert weights.keys() == plain_weights.keys()
    for key, weight in weights.items():
        assert np.array_equal(weight, plain_weights[key])
