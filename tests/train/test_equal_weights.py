"""A rank whose weights differ is named before they are in a checkpoint."""

from pathlib import Path

from mpi4py import MPI

import pytest
import torch

from hpcgnn.errors import MACHINE_FAULT, MachineError
from hpcgnn.train import seed_run
from hpcgnn.train.gradients import check_equal_weights
from tests.support.training import make_config, make_graph, train, write_store


def flipped(tensor: torch.Tensor) -> None:
    """Flip the lowest bit of the first number."""
    tensor.reshape(-1).view(torch.int32)[0] ^= 1


def test_one_flipped_bit_names_its_rank(comm: MPI.Intracomm) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(())}
    check_equal_weights(comm, tensors, "epoch 3")
    if comm.size == 1:
        return
    last = comm.size - 1
    if comm.rank == last:
        flipped(tensors["a"])
    with pytest.raises(MachineError, match="after epoch 3: memory or a processor") as caught:
        check_equal_weights(comm, tensors, "epoch 3")
    assert caught.value.status == MACHINE_FAULT
    if comm.size == 2:
        # It is unknown whose weights are right.
        assert "rank 0 on" in str(caught.value)
        assert "than one another" in str(caught.value)
    else:
        assert "rank 0 on" not in str(caught.value)
        assert f"than the other {last} rank(s)" in str(caught.value)
    assert f"rank {last} on" in str(caught.value)


def test_a_run_ends_before_it_saves_them(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size == 1:
        pytest.skip("a rank alone has nobody to compare with")
    store = write_store(comm, comm_tmp_path, make_graph())
    begin = seed_run.SeedRun.begin_epoch

    def flip_in_epoch_3(self: seed_run.SeedRun) -> None:
        if self.epoch == 3 and comm.rank == comm.size - 1:
            with torch.no_grad():
                flipped(next(iter(self.model.parameters())))
        begin(self)

    monkeypatch.setattr(seed_run.SeedRun, "begin_epoch", flip_in_epoch_3)
    settings = ("train.epochs=6", "run.checkpoint_every=1")
    config = make_config(store, comm_tmp_path / "run", *settings)
    with pytest.raises(MachineError, match="after epoch 3"):
        train(comm, config)
    comm.Barrier()
    names = {each.name for each in (comm_tmp_path / "run" / "checkpoints").iterdir()}
    assert names == {"seed1-epoch000002", "seed1-epoch000003"}
