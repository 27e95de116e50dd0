"""nekRS folders: learned equally on any ranks, and written back in nekRS's order."""

from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError
from hpcgnn.convert import convert
from hpcgnn.partition import block, read_pattern
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import GraphStore, Rollout
from tests.support.nekrs import TIMES, write
from tests.support.training import make_config, predict_with, train

WORDS = (
    "train.task=fields",
    "train.epochs=3",
    "model.name=sage",
    "fields.valid=0",
    "fields.test=0",
)
SAME = ("fields.predict=same", "fields.inputs=u", "fields.targets=p")


def store_of(comm: MPI.Intracomm, folder: Path, *, steps: bool) -> Path:
    """Return the store, in four parts or more, of a folder that two ranks wrote."""
    path = folder / "parts.h5"
    if comm.rank == 0:
        convert(write(folder / "nek", 2, steps=steps), folder / "nek.h5", format_name="nekrs")
        with GraphStore.open(folder / "nek.h5") as store:
            partition = block()(read_pattern(store), max(4, comm.size))
            write_partitioned(store, path, partition, method="block", seed=0)
    comm.Barrier()
    return path


def field(folder: Path, name: str, rank: int, time: str, *, steps: bool) -> np.ndarray:
    end = f"rank_{rank}_size_2"
    file = f"data_{end}/{name}_step_{time}.bin" if steps else f"fld_{name}_time_{time}_{end}.bin"
    return np.fromfile(folder / file)


@pytest.mark.several_ranks
@pytest.mark.parametrize("steps", [False, True])
def test_ranks_do_not_matter_and_folders_come_back(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    steps: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = comm_tmp_path
    store = store_of(comm, folder, steps=steps)
    words = (*WORDS, *SAME, "train.reproducible=true" if steps else "train.dtype=float64")
    run = train(comm, make_config(store, folder / "run", *words))
    if comm.rank == 0:
        alone = train(MPI.COMM_SELF, make_config(store, folder / "alone", *words))
        tensors = run.tensors()
        for name, tensor in alone.tensors().items() if steps else ():
            np.testing.assert_array_equal(tensors[name], tensor, err_msg=name)
        np.testing.assert_allclose(run.column("train_loss"), alone.column("train_loss"), rtol=1e-10)
    predict = predict_with(comm, run, monkeypatch, capsys)
    predict(folder / "back", "--rollout", 2, "--from", 0, "--like", folder / "nek")
    predict(folder / "back.h5", "--rollout", 2, "--from", 0)
    if comm.rank == 0:
        with GraphStore.open(folder / "nek.h5") as opened:
            ids = opened.read_original_id(0, opened.num_nodes)
        for rank in range(2):
            own = np.fromfile(folder / f"nek/global_ids_rank_{rank}_size_2.bin", np.int64)
            # Points inside elements are numbered after the ids, rank by rank.
            inside = np.flatnonzero(own == 0)
            own[inside] = len(ids) // 2 + 1 + rank * len(inside) + np.arange(len(inside))
            for place, time in enumerate(("0", "10") if steps else map(str, TIMES)):
                # Velocities have the bits that were read, also where copies differ.
                for name in ("u", "p"):
                    found = field(folder / "back", name, rank, time, steps=steps)
                    given = field(folder / "nek", name, rank, time, steps=steps)
                    assert found.shape == given.shape
                    if name == "u":
                        np.testing.assert_array_equal(found, given)
                with Rollout(folder / "back.h5") as rollout:
                    values = rollout.read("p", place)[:, 0]
                    np.testing.assert_array_equal(found, values[np.searchsorted(ids, own)])
    comm.Barrier()
    if comm.rank == 0:
        ids = write(folder / "other", 1) / "global_ids_rank_0_size_1.bin"
        (np.fromfile(ids, np.int64) * 2).tofile(ids)
    comm.Barrier()
    with pytest.raises(CollectiveInputError, match="its points are not the nodes"):
        predict(folder / "no", "--rollout", 1, "--from", 0, "--like", folder / "other")
