"""Pictures of rollouts: the truth at the right steps and nodes, slices, animations."""

import json
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
from PIL import Image

from hpcgnn.analysis import rollout
from hpcgnn.analysis.rollout_figures import Picture, Plane, draw_steps
from hpcgnn.errors import InputError
from hpcgnn.storage import FieldInfo, RolloutFile
from tests.support.series import Fields, planted, with_flows, write_series


@pytest.fixture
def fields() -> Fields:
    return replace(planted(trajectories=2), positions=np.random.default_rng(4).random((29, 3)))


@pytest.fixture
def path(tmp_path: Path, fields: Fields) -> Path:
    """Return a rollout of three steps, the last of which is beyond the end of its trajectory."""
    store = write_series(MPI.COMM_SELF, tmp_path, fields)
    ids, values = np.arange(29), fields.values["u"][14:17]
    infos = [FieldInfo("u", 2, np.dtype("f8"))]
    told = {"run": "runs/x", "store": str(store), "start": 13}
    path = tmp_path / "rollout.h5"
    with RolloutFile(path, infos, np.array([7.0, 7.5, 8.0]), (29, 0), told) as file:
        file.write_nodes([(ids, fields.positions)])
        for step, rows in enumerate(values):
            file.write_step(step, [(rows[:10] + 0.5,), (rows[10:] + 0.5,)])
    return path


def test_errors_are_of_the_steps_that_have_a_truth(
    path: Path, fields: Fields, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--field", "u", "--component", "1", "--gif", str(path.with_suffix(".gif"))]
    rollout.main([str(path), *words, "--json"])
    told = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(told["errors"]["rmse"]["u"], [0.5, 0.5])
    u = fields.values["u"]
    weights = fields.weights[:, None]
    still = [
        np.sqrt((weights * (u[13] - u[step]) ** 2).sum() / (2 * weights.sum())) for step in (14, 15)
    ]
    np.testing.assert_allclose(told["errors"]["unchanged_rmse"]["u"], still)
    page = Path(told["path"]).read_text()
    assert told["figures"] == page.count("<figure>") == 2
    assert "z = 0.5" in page
    with Image.open(path.with_suffix(".gif")) as moving:
        assert moving.n_frames == 3


def test_a_directory_without_its_store_has_no_truth(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path.parent / "series.h5").unlink()
    rollout.main([str(path.parent), "--steps", "1,3", "--axis", "x", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["errors"] == {}
    assert "No truth" in Path(told["path"]).read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--field", "v"), "choose one of u"),
        (("--component", "2"), "2 columns"),
        (("--steps", "4"), "steps 1 to 3"),
        (("--steps", "a"), "numbers such as"),
        (("--at", "7"), "z goes from"),
    ],
)
def test_what_does_not_fit_is_told(path: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rollout.main([str(path), *words])


def test_planes() -> None:
    rng = np.random.default_rng(3)
    line, square = (Plane.of(rng.random((50, axes))) for axes in (1, 2))
    assert line.triangles is None
    assert square.labels == ("x", "y")
    _, order = square.triangles
    assert sorted(order.tolist()) == list(range(50))
    # Two distant clouds are not joined.
    apart = rng.random((60, 2)) * 0.1 + np.repeat([[0.0, 0.0], [10.0, 10.0]], 30, axis=0)
    made, order = Plane.of(apart).triangles
    sides = apart[order][made.get_masked_triangles()]
    assert np.ptp(sides, axis=1).max() < 1
    assert len(made.get_masked_triangles()) < len(made.triangles)
    for where in (("x", None), (None, 0.5)):
        with pytest.raises(
            InputError, match="--at need positions in 3 dimensions, and these have 2"
        ):
            Plane.of(apart, *where)


def test_a_step_without_any_truth_leaves_the_other_pictures(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    plane, values, none = Plane.of(rng.random((50, 2))), rng.random(50), np.full(50, np.nan)
    pictures = [Picture("1", values, none), Picture("2", values, values + 2)]
    figure = draw_steps(plane, pictures, "u")
    colours = {axis.get_title(): axis.collections[0].get_clim() for axis in figure.axes[:6]}
    for step in (1, 2):
        np.testing.assert_allclose(colours[f"{step}: difference"], (-2, 2))
        due = values.min(), values.max() + 2
        np.testing.assert_allclose(colours[f"{step}: prediction"], due)
    figure = draw_steps(plane, [Picture("1", none, none)], "u")
    figure.savefig(tmp_path / "none.png")


@pytest.mark.parametrize("of_edges", [False, True])
def test_without_positions_errors_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], of_edges: bool
) -> None:
    fields = replace(with_flows(planted(), holes=0), positions=None)
    store = write_series(MPI.COMM_SELF, tmp_path, fields)
    told = {"run": "runs/x", "store": str(store), "start": 13}
    path = tmp_path / "rollout.h5"
    info = FieldInfo("q" if of_edges else "u", 2, np.dtype("f8"), of_edges=of_edges)
    targets, sources = fields.adjacency.toarray().T.nonzero()[::-1]
    with RolloutFile(path, [info], np.array([7.0]), (29, len(sources)), told) as file:
        file.write_nodes([(np.arange(29),)])
        if of_edges:
            file.write_edges([(np.stack([sources, targets], axis=1),)])
            file.write_edge_step(0, [(fields.of_edges["q"][14, targets, sources] + 0.5,)])
        else:
            file.write_step(0, [(fields.values["u"][14] + 0.5,)])
    rollout.main([str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["figures"] == 1
    np.testing.assert_allclose(found["errors"]["rmse"][info.name], [0.5])
    with pytest.raises(InputError, match="--gif: pictures need fields of nodes with positions"):
        rollout.main([str(path), "--gif", "a.gif"])
    store.unlink()
    with pytest.raises(InputError, match="nothing to show: no node with fields has a position"):
        rollout.main([str(path)])


def test_no_rollout_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be opened .*; write one with .*--rollout"):
        rollout.main([str(tmp_path / "none.h5")])
