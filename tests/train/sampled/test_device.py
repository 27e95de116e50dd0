"""Sampled training on a GPU, or its emulator, equals that on the CPU."""

from pathlib import Path

from mpi4py import MPI

import pytest

from tests.support.emulated_gpu import some_gpu
from tests.support.training import make_config, make_graph, train, write_store
from tests.train.full.test_device import assert_alike
from tests.train.sampled.test_sampled import BATCHES, SUBGRAPHS

KINDS = {
    "subgraphs": (*SUBGRAPHS, "sampling.coverage=1", "model.name=gat", "model.heads=2"),
    "batches": (*BATCHES, "model.name=gcn", "model.dropout=0.3"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_cpu(comm: MPI.Intracomm, comm_tmp_path: Path, kind: str) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(4, num_nodes=29))
    words = (*KINDS[kind], "model.hidden=6", "train.epochs=1", "run.save_predictions=true")
    host = train(comm, make_config(store, comm_tmp_path / "host", *words))
    with some_gpu():
        config = make_config(store, comm_tmp_path / "device", *words, "train.device=cuda")
        assert_alike(train(comm, config), host)
