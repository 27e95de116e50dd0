"""Rollouts are shown on the cells of the converted mesh, and meshio reads them back."""

from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError
from hpcgnn.convert import ConvertOptions, convert
from hpcgnn.partition import block, read_pattern
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import GraphStore, Rollout
from tests.support.training import make_config, predict_with, train

meshio = pytest.importorskip("meshio")

SIDE, STEPS = 4, 6
WORDS = ("train.task=fields", "fields.targets=u", "train.epochs=1", "fields.horizons=[]")


def squares() -> tuple[np.ndarray, list[tuple[str, np.ndarray]]]:
    """Return points in a plane, one of them in no cell; quads, then triangles and a line."""
    axis = np.linspace(0, 1, SIDE)
    points = np.stack(np.meshgrid(axis, axis, [0.0], indexing="ij"), -1).reshape(-1, 3)
    corners = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    quads = np.stack(
        [corners[:-1, :-1], corners[1:, :-1], corners[1:, 1:], corners[:-1, 1:]], -1
    ).reshape(-1, 4)
    halves = quads[4:][:, [0, 1, 2, 0, 2, 3]].reshape(-1, 3)
    # It comes before all others.
    points = np.concatenate([[[9.0, 9.0, 0.0]], points])
    sides = np.array([[1, 2]])
    return points, [("line", sides), ("quad", quads[:4] + 1), ("triangle", halves + 1)]


def boxes() -> tuple[np.ndarray, list[tuple[str, np.ndarray]]]:
    """Return two tetrahedra and a surface triangle."""
    points = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], float)
    tetra = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
    return points, [("triangle", tetra[:1, :3]), ("tetra", tetra)]


@pytest.mark.parametrize("mesh", [squares, boxes])
def test_cells_come_back(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    mesh: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = comm_tmp_path
    points, cells = mesh()
    if comm.rank == 0:
        rng = np.random.default_rng(1)
        files = [folder / f"{step}.vtu" for step in range(STEPS)]
        for file in files:
            data = {"u": rng.normal(size=(len(points), 2))}
            meshio.write_points_cells(file, points, cells, point_data=data)
        convert(
            files[0],
            folder / "flow.h5",
            options=ConvertOptions(more_inputs=tuple(map(str, files[1:]))),
            format_name="mesh",
        )
        with GraphStore.open(folder / "flow.h5") as store:
            partition = block()(read_pattern(store), max(4, comm.size))
            write_partitioned(store, folder / "parts.h5", partition, method="block", seed=0)
        meshio.write_points_cells(folder / "other.vtu", points + 1, cells)
    comm.Barrier()
    config = make_config(folder / "parts.h5", folder / "run", *WORDS, "model.name=sage")
    predict = predict_with(comm, train(comm, config), monkeypatch, capsys)
    out = folder / "out.xdmf"
    predict(out, "--rollout", 3, "--from", 1, "--like", folder / "0.vtu")
    if comm.rank == 0:
        most = max(meshio.CellBlock(kind, rows).dim for kind, rows in cells)
        shown = {k: rows for k, rows in cells if meshio.CellBlock(k, rows).dim == most}
        with Rollout(folder / "out.h5") as rollout:
            positions, ids, times = rollout.positions, rollout.node_id, rollout.times
            steps = [rollout.read("u", step) for step in range(len(times))]
        with meshio.xdmf.TimeSeriesReader(out) as reader:
            read, blocks = reader.read_points_cells()
            np.testing.assert_array_equal(read, positions)
            assert [block.type for block in blocks] == list(shown)
            for found in blocks:
                # Row numbers, as points without a cell are left out.
                ends = ids[found.data]
                np.testing.assert_array_equal(ends, shown[found.type])
                np.testing.assert_array_equal(read[found.data], points[ends][..., : read.shape[1]])
            for step, time in enumerate(times):
                told, data, _ = reader.read_data(step)
                assert told == time
                np.testing.assert_array_equal(data["u"], steps[step])
        # The written file can be converted again, as a mesh with fields.
        convert(out, folder / "again.h5", format_name="mesh")
        with GraphStore.open(folder / "again.h5") as store:
            assert list(store.fields) == ["u"]
    comm.Barrier()
    with pytest.raises(CollectiveInputError, match=r"other.vtu: its points are not the nodes"):
        predict(folder / "no.xdmf", "--rollout", 1, "--like", folder / "other.vtu")
    with pytest.raises(CollectiveInputError, match=r"is a mesh, .*; write -o NAME.xdmf"):
        predict(folder / "no.h5", "--rollout", 1, "--like", folder / "0.vtu")
