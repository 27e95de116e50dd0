"""Features in unnamed files give the same bits as in memory, and nothing is left behind."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.comm import CollectiveInputError
from hpcgnn.errors import InputError
from hpcgnn.graph.feature_storage import FeatureStorage
from hpcgnn.nn import TypedRows
from tests.support.full_disk import largest_file
from tests.support.training import (
    StopAfter,
    assert_same,
    make_config,
    make_graph,
    predict_with,
    train,
    write_store,
)

SAMPLED = ("train.task=sampled", "sampling.budget=30", "sampling.subgraphs=3")
LABELS = ("train.label_augmentation=0.5",)
CASES = {
    "plain": (),
    "active sets": ("exchange.active_sets=true",),
    "row": ("graph.normalize_features=row", "model.name=sage", "model.input_dropout=0.3"),
    "l2": ("graph.normalize_features=l2", "train.precision=bfloat16"),
    "standard": ("graph.normalize_features=standard", "train.dtype=float64"),
    "inductive": ("graph.normalize_features=standard", "train.inductive=true"),
    "labels": (*LABELS, "train.precision=bfloat16", "exchange.active_sets=true"),
    "all labels": (*LABELS, "exchange.active_sets=false", "train.dtype=float64"),
    "structure": ("graph.structure=degree", "graph.normalize_features=standard"),
    "kept": ("exchange.keep_products=always", "model.name=sage"),
    "types": ("model.name=rgcn", *LABELS, "graph.normalize_features=standard"),
    "types, few bits": ("model.name=rgcn", "train.precision=bfloat16"),
    "links": ("train.task=links", "model.name=sage"),
    "sampled": (*SAMPLED, "sampling.sampler=node", "train.precision=bfloat16"),
    "sampled, types": (*SAMPLED, "model.name=rgcn", "sampling.sampler=walk"),
    "sampled, parts": (*SAMPLED, "sampling.topology=partitioned", *LABELS),
}


@pytest.fixture
def folder(comm_tmp_path: Path) -> Path:
    path = comm_tmp_path / "features"
    path.mkdir(exist_ok=True)
    return path


@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_features_in_memory(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    folder: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = make_graph().with_relations() if "types" in name else make_graph()
    graph = graph.with_types() if "types" in name else graph
    store = write_store(comm, comm_tmp_path, graph, method="empty second")
    room, allocate = [0], os.posix_fallocate

    def counted(file: int, start: int, size: int) -> None:
        room[0] += size
        allocate(file, start, size)

    monkeypatch.setattr(os, "posix_fallocate", counted)
    runs = []
    for number, features_dir in enumerate(("", folder)):
        words = (*CASES[name], "train.epochs=2", f"graph.features_dir={features_dir}")
        runs.append(train(comm, make_config(store, comm_tmp_path / f"run{number}", *words)))
        used = comm.allreduce(room[0])
        assert (used > 0) is bool(features_dir)
        assert not any(folder.iterdir())
    if comm.rank == 0:
        assert_same(*runs)


def test_a_run_goes_on_and_predicts_with_the_other(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    mapped = f"graph.features_dir={folder}"
    whole = train(comm, make_config(store, comm_tmp_path / "whole", mapped))
    cut = make_config(store, comm_tmp_path / "cut")
    train(comm, cut, StopAfter(2))
    resumed = train(comm, make_config(store, comm_tmp_path / "cut", mapped))
    predict_with(comm, resumed, monkeypatch, capsys)(comm_tmp_path / "again.h5")
    assert not any(folder.iterdir())
    if comm.rank == 0:
        assert_same(whole, resumed)


def test_a_folder_that_is_not_there_is_named(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    words = f"graph.features_dir={comm_tmp_path / 'nowhere'}"
    with pytest.raises(CollectiveInputError, match=r"features_dir = .*nowhere.*No such.*name a"):
        train(comm, make_config(store, comm_tmp_path / "run", words))


def test_a_full_disk_of_one_rank_is_told_to_all(
    comm: MPI.Intracomm, comm_tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())

    def full(_file: int, _start: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CollectiveInputError, match=r"features_dir = .* bytes: No space left"):
        train(comm, make_config(store, comm_tmp_path / "run", f"graph.features_dir={folder}"))
    assert not any(folder.iterdir())


def test_what_does_not_fit_is_refused_before_it_is_written(tmp_path: Path) -> None:
    room = FeatureStorage(str(tmp_path))
    with largest_file(1 << 12):
        assert room.empty((1, 1 << 9), np.float64).shape == (1, 1 << 9)
        with pytest.raises(InputError, match=r"8192 bytes: .*; name a folder"):
            room.empty((2, 1 << 9), np.float64)
    assert not any(tmp_path.iterdir())


def test_a_killed_process_leaves_no_file(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from hpcgnn.graph.feature_storage import FeatureStorage
rows = FeatureStorage(sys.argv[1]).empty((300, 50), "f4")
rows[:] = 1
assert any(sys.argv[1] in line for line in open("/proc/self/maps"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (5, 3)])
@pytest.mark.parametrize("narrow", [False, True])
def test_copies_equal_what_they_are_of(
    tmp_path: Path, shape: tuple[int, int], narrow: bool
) -> None:
    room, rows = FeatureStorage(str(tmp_path)), np.random.default_rng(3).normal(size=shape)
    made = room.empty(shape, np.float32)
    made[:] = rows
    kept = room.tensor(made, narrow=narrow)
    expected = torch.from_numpy(rows.astype(np.float32))
    assert torch.equal(kept, expected.bfloat16() if narrow else expected)
    some = torch.arange(0, shape[0], 2)
    typed = TypedRows.in_order([kept], torch.zeros(shape[0], dtype=torch.uint8))
    for places in (some, None):
        copy, of_type = room.select_rows(kept, places), room.select_rows(typed, places)
        assert torch.equal(copy, kept if places is None else kept[places])
        assert torch.equal(of_type.parts[0], copy)
        copy += 1
    assert torch.equal(kept, expected.bfloat16() if narrow else expected)
    assert not any(tmp_path.iterdir())
