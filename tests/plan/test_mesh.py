"""A plan of a mesh that does not exist equals that of the mesh: rows, bytes, analytic surfaces."""

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcgnn.comm import ProcessGrid
from hpcgnn.commands.command import find_command
from hpcgnn.errors import InputError
from hpcgnn.plan.mesh import Boxes, MeshGraph, MeshShape, write_boxes
from hpcgnn.plan.rehearsal import rehearse
from hpcgnn.plan.traffic import ALL, Ranks, Traffic, sent_by_groups
from hpcgnn.plan.whole_graph import WholeGraph
from hpcgnn.storage import GraphStore
from tests.support.training import load_config

COMMAND = find_command("plan")
BOX = """
name = "box"
[mesh]
nodes = {}
steps = 9
[mesh.fields]
u = 3
p = 1
"""
WORDS = (
    "train.task=fields",
    "fields.targets=u",
    "fields.batch=2",
    "model.num_layers=2",
    "model.hidden=8",
    "model.dropout=0",
    "run.threads=1",
)


def read(folder: Path, nodes: list[int], more: str = "") -> MeshShape:
    (folder / "box.toml").write_text(BOX.format(nodes) + more)
    return MeshShape.read(folder / "box.toml")


def pairs(traffic: Traffic) -> dict[tuple[int, int], list[int]]:
    (known,) = traffic.pieces()
    moved = np.concatenate([known.fetched, known.pushed]).T.tolist()
    ends = zip(known.readers.tolist(), known.owners.tolist(), strict=True)
    return {pair: rows for pair, rows in zip(ends, moved, strict=True) if any(rows)}


@pytest.mark.parametrize("model", ["meshgraphnet", "gat"])
@pytest.mark.parametrize(
    ("nodes", "ranks"),
    [([9, 7, 5], 12), ([7, 8, 6], 40), ([13, 11], 15), ([4, 9, 3], 1), ([11, 2, 5], 2)],
)
def test_bytes_are_those_of_the_stored_mesh(
    tmp_path: Path, nodes: list[int], ranks: int, model: str
) -> None:
    shape = read(tmp_path, nodes)
    boxes, path = Boxes.of(shape.nodes, ranks), tmp_path / "whole.h5"
    write_boxes(path, shape, boxes)
    words = [f"graph.store={path}", "run.dir=none", f"model.name={model}", *WORDS]
    words += ["graph.positions=relative"] * (model == "meshgraphnet")
    config = load_config(None, words)
    with ExitStack() as stack:
        alone = stack.enter_context(ProcessGrid.of_this_process())
        store = stack.enter_context(GraphStore.open(path))
        found = []
        for whole in (WholeGraph(alone, config, store), MeshGraph(alone, config, shape, stack)):
            starts = whole.row_starts(ranks)
            every = Ranks(starts, config.exchange)
            surveys = whole.surveys(every)
            traffic = {key: each.traffic(every) for key, each in surveys.items()}
            block = int(np.argmax(traffic[ALL].entries))
            made = rehearse(alone, whole.share(config, every, surveys, block), 2)
            sent = [sent_by_groups(moves, traffic, 1) for moves in (made.once, made.epoch)] + [
                sent_by_groups(made.evaluation, traffic, 1)
            ]
            found.append((starts, traffic, sent))
    (starts, right, expected), (same, mine, sent) = found
    np.testing.assert_array_equal(same, starts)
    assert mine.keys() == right.keys()
    for key, traffic in right.items():
        assert pairs(mine[key]) == pairs(traffic)
    for one, other in zip(sent, expected, strict=True):
        np.testing.assert_array_equal(one.bytes_out, other.bytes_out)
        np.testing.assert_array_equal(one.messages, other.messages)


def plan(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *words: str,
    exchange: str = "aware",
) -> list[dict[str, Any]]:
    asked = ("--shape", str(folder / "box.toml"), "--exchange", exchange, "--json", "--epochs", "2")
    monkeypatch.setattr(sys, "argv", ["hpcgnn plan", *WORDS, *words, *asked])
    assert COMMAND.call() == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_surface_rows_are_the_analytic_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read(tmp_path, [66, 50, 41])
    words = ("model.name=gcn", "--ranks", "512,768", "--groups", "1,2", "--ranks-per-host", "32")
    found = plan(tmp_path, monkeypatch, capsys, *words)
    assert [(each["ranks"], each["groups"]) for each in found] == [
        (512, 1), (512, 2), (768, 1), (768, 2),
    ]  # fmt: skip
    for each in found:
        blocks = each["ranks"] // each["groups"]
        cuts = Boxes.of((66, 50, 41), blocks).cuts
        faces = (50 * 41, 66 * 41, 66 * 50)
        rows = sum(2 * (cut - 1) * face for cut, face in zip(cuts, faces, strict=True))
        assert each["rows_total"] == pytest.approx(rows, rel=1e-3)
        # 6 faces of cubes, except for those at the walls.
        cubes = 6 * blocks * (66 * 50 * 41 / blocks) ** (2 / 3)
        assert cubes * 0.7 < rows < cubes * 1.1


def test_the_cheapest_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read(tmp_path, [9, 7, 5])
    words = ("model.name=gcn", "--ranks", "12", "--ranks-per-host", "4")
    each = "aware,push,joint,auto"
    *others, chosen = plan(tmp_path, monkeypatch, capsys, *words, exchange=each)
    assert chosen["is_auto"]
    assert chosen["rows_total"] == min(each["rows_total"] for each in others)


@pytest.mark.parametrize(
    ("nodes", "more", "told"),
    [
        ([9, 0, 3], "", r"nodes = \[9, 0, 3\] must be two or three numbers above 0"),
        ([9], "", r"nodes = \[9\] must be two or three numbers above 0"),
        ([9, 9], "q = 0\n", r"field 'q' has 0 columns"),
        ([9, 9], "q = 'a'\n", r"mesh: fields: q must be a int, not 'a'"),
        ([9, 9], "[other]\n", r"other is unknown; keys are name, mesh"),
    ],
)
def test_wrong_meshes_are_one_line(tmp_path: Path, nodes: list[int], more: str, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        read(tmp_path, nodes, more)
    assert "\n" not in str(caught.value)


def test_a_mesh_has_one_step_at_least(tmp_path: Path) -> None:
    path, text = tmp_path / "box.toml", BOX.format([9, 9])
    path.write_text(text.replace("steps = 9", "steps = 1"))
    assert MeshShape.read(path).steps == 1
    path.write_text(text.replace("steps = 9", "steps = 0"))
    with pytest.raises(InputError, match="mesh: steps = 0 must be at least 1"):
        MeshShape.read(path)


def test_a_mesh_has_no_more_boxes_than_nodes() -> None:
    with pytest.raises(InputError, match=r"a mesh of \(3, 2\) nodes is not cut into 5 boxes"):
        Boxes.of((3, 2), 5)
