"""Folders and files of other collections: Geom-GCN, GraphSAGE, PPI, MATLAB."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from hpcgnn.commands.command import find_command
from hpcgnn.convert import convert, detect
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore
from tests.support.graph_files import contents

COMMAND = find_command("convert")

N, SPLITS = 12, 10
RNG = np.random.default_rng(5)
EDGES = np.unique(RNG.integers(0, N, (40, 2)), axis=0)
FEATURES = RNG.integers(0, 2, (N, 4)).astype(np.float32)
CLASSES = np.arange(N) % 3


def edges_of(path: Path) -> set[tuple[int, int]]:
    """The edges of a store without partition, source first."""
    with GraphStore.open(path) as store:
        block = store.read_adjacency(0, store.num_nodes)
        rows = np.repeat(np.arange(store.num_nodes), np.diff(block.indptr))
        return set(zip(block.indices.tolist(), rows.tolist(), strict=True))


def all_edges() -> set[tuple[int, int]]:
    return {(int(a), int(b)) for a, b in EDGES}


def geom_gcn(folder: Path, *, places: bool = False) -> Path:
    """Write a folder whose nodes are unordered, with ten splits."""
    folder.mkdir()
    lines = "".join(f"{a}\t{b}\n" for a, b in EDGES)
    (folder / "out1_graph_edges.txt").write_text(f"node_id\tnode_id\n{lines}")
    lines = ""
    for node in RNG.permutation(N):
        row = FEATURES[node]
        values = [0, *np.flatnonzero(row[1:]) + 1] if places else row.astype(int)
        lines += f"{node}\t{','.join(map(str, values))}\t{CLASSES[node]}\n"
    header = "node_id\tfeature\tlabel\n"
    (folder / "out1_node_feature_label.txt").write_text(header + lines)
    for number in range(SPLITS):
        draw = np.random.default_rng(number).permutation(N)
        masks = {
            name: np.isin(np.arange(N), draw[low:high]).astype(int)
            for name, low, high in (("train", 0, 6), ("val", 6, 9), ("test", 9, N))
        }
        np.savez(
            folder / f"film_split_0.6_0.2_{number}.npz",
            **{f"{name}_mask": mask for name, mask in masks.items()},
        )
    return folder


@pytest.mark.parametrize("places", [False, True])
def test_geom_gcn_folders_keep_all_splits(tmp_path: Path, *, places: bool) -> None:
    folder = geom_gcn(tmp_path / "film", places=places)
    assert detect(folder)[0] == "geom-gcn"
    convert(folder, tmp_path / "out.h5", format_name="geom-gcn")
    assert edges_of(tmp_path / "out.h5") == all_edges()
    with GraphStore.open(tmp_path / "out.h5") as store:
        assert store.splits == tuple(map(str, range(SPLITS)))
        nodes = store.read_nodes(0, N, "7")
        expected = FEATURES.copy()
        if places:
            expected[:, 0] = 1
        np.testing.assert_array_equal(nodes.features, expected)
        np.testing.assert_array_equal(nodes.labels, CLASSES)
        trains = np.sort(np.random.default_rng(7).permutation(N)[:6])
        np.testing.assert_array_equal(np.flatnonzero(nodes.split == 1), trains)


def test_geom_gcn_splits_of_all_graphs_in_one_folder(tmp_path: Path) -> None:
    folder = geom_gcn(tmp_path / "film")
    splits = folder / "splits"
    splits.mkdir()
    for file in folder.glob("*.npz"):
        file.rename(splits / file.name)
    other = {f"{name}_mask": np.zeros(3) for name in ("train", "val", "test")}
    for number in range(SPLITS):
        np.savez(splits / f"cornell_split_0.6_0.2_{number}.npz", **other)
    report = convert(folder, tmp_path / "out.h5", format_name="geom-gcn")
    assert list(report.splits) == list(map(str, range(SPLITS)))
    assert all(sizes == {"train": 6, "valid": 3, "test": 3} for sizes in report.splits.values())
    # Under another name, nothing tells which files belong to the folder.
    folder.rename(tmp_path / "mine")
    with pytest.raises(
        InputError, match=r"name the folder like the start of the file names, before _split"
    ):
        convert(tmp_path / "mine", tmp_path / "out.h5", format_name="geom-gcn")
    shutil.rmtree(tmp_path / "mine" / "splits")
    report = convert(tmp_path / "mine", tmp_path / "out.h5", format_name="geom-gcn")
    assert "mine_split_*_I.npz in " in report.missing["split"]


def graphsage(folder: Path, *, by_name: bool) -> Path:
    """Write a GraphSAGE folder; with names, links are positions of nodes listed elsewhere."""
    folder.mkdir()
    order = RNG.permutation(N).tolist()
    ids = [f"n{row}" if by_name else row for row in order]
    nodes = [{"id": each, "val": i % 4 == 1, "test": i % 4 == 2} for i, each in enumerate(ids)]
    place = {row: i for i, row in enumerate(order)}
    links = [
        {"source": place[a] if by_name else a, "target": place[b] if by_name else b}
        for a, b in EDGES.tolist()
    ]
    graph = {"directed": False, "nodes": nodes, "links": links}
    (folder / "toy-G.json").write_text(json.dumps(graph))
    rows = {str(each): row for each, row in zip(ids, order, strict=True)}
    (folder / "toy-id_map.json").write_text(json.dumps(rows))
    classes = {str(each): [int(row % 2), 1] for each, row in zip(ids, order, strict=True)}
    (folder / "toy-class_map.json").write_text(json.dumps(classes))
    np.save(folder / "toy-feats.npy", FEATURES)
    return folder


@pytest.mark.parametrize("by_name", [False, True])
def test_graphsage_folders(tmp_path: Path, *, by_name: bool) -> None:
    folder = graphsage(tmp_path / "toy", by_name=by_name)
    assert detect(folder)[0] == "graphsage"
    report = convert(folder, tmp_path / "out.h5", format_name="graphsage")
    assert edges_of(tmp_path / "out.h5") == all_edges()
    assert report.split == {"train": 6, "valid": 3, "test": 3}
    found = contents(tmp_path / "out.h5")
    np.testing.assert_array_equal(found.nodes.features, FEATURES)
    np.testing.assert_array_equal(found.nodes.labels, np.stack([np.arange(N) % 2, np.ones(N)], 1))


def test_three_graphs_of_ppi_become_one(tmp_path: Path) -> None:
    for number, part in enumerate(("train", "valid", "test")):
        graph = {
            "nodes": [{"id": i} for i in range(4)],
            "links": [{"source": i, "target": number} for i in range(4)],
        }
        (tmp_path / f"{part}_graph.json").write_text(json.dumps(graph))
        np.save(tmp_path / f"{part}_feats.npy", np.full((4, 2), number, np.float64))
        np.save(tmp_path / f"{part}_labels.npy", np.eye(4)[:, :3])
    assert detect(tmp_path)[0] == "graphsage"
    report = convert(tmp_path, tmp_path / "out.h5", format_name="graphsage")
    expected = {(4 * part + i, 4 * part + part) for part in range(3) for i in range(4)}
    assert edges_of(tmp_path / "out.h5") == expected
    assert report.split == {"train": 4, "valid": 4, "test": 4}
    assert (
        contents(tmp_path / "out.h5").nodes.features[:, 0].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    )


def test_matlab_files(tmp_path: Path) -> None:
    adjacency = scipy.sparse.coo_matrix((np.ones(len(EDGES)), EDGES.T), (N, N))
    groups = scipy.sparse.csr_matrix(np.eye(3)[CLASSES])
    for labels in ({"group": groups}, {"gnd": (CLASSES + 1)[:, None]}):
        values = {"network": adjacency, "Attributes": FEATURES, "note": "text", **labels}
        scipy.io.savemat(tmp_path / "blog.mat", values)
        assert detect(tmp_path / "blog.mat")[0] == "matlab"
        report = convert(tmp_path / "blog.mat", tmp_path / "out.h5", format_name="matlab")
        assert report.ignored == ("note",)
        assert edges_of(tmp_path / "out.h5") == all_edges()
        found = contents(tmp_path / "out.h5")
        np.testing.assert_array_equal(found.nodes.features, FEATURES)
        expected = np.eye(3)[CLASSES] if "group" in labels else CLASSES
        np.testing.assert_array_equal(found.nodes.labels, expected)
    scipy.io.savemat(tmp_path / "suite.mat", {"Problem": {"A": adjacency, "name": "x"}})
    convert(tmp_path / "suite.mat", tmp_path / "out.h5", format_name="matlab")
    assert edges_of(tmp_path / "out.h5") == all_edges()


def write_nodes(folder: Path, lines: str) -> None:
    (folder / "out1_node_feature_label.txt").write_text(f"node_id\tfeature\tlabel\n{lines}")


def spoil_nodes(folder: Path, old: str, new: str) -> None:
    path = folder / "out1_node_feature_label.txt"
    path.write_text(path.read_text().replace(old, new, 1))


FAULTS: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: spoil_nodes(f, "\n3\t", "\n77\t"), r"node ids must be 0 to 11"),
    (lambda f: spoil_nodes(f, "0\n", "x\n"), r"label\.txt: line \d+, column 3 holds"),
    (lambda f: spoil_nodes(f, "\n3\t", "\n3\tone,"), r"line \d+: features are numbers separated"),
    (lambda f: spoil_nodes(f, "\n3\t", "\n3\t0.5,"), r"unequal numbers of features"),
    (
        lambda f: (f / "out1_graph_edges.txt").write_text("a\tb\n0\t99\n"),
        r"target id 99 is outside",
    ),
    (
        lambda f: (f / "out1_graph_edges.txt").write_text("a\n0\n"),
        r"has 1 columns where 2 are expected",
    ),
    (
        lambda f: np.savez(f / "a_split_3.npz", train_mask=1),
        r"split '3', like .* remove one of them",
    ),
    (lambda f: np.savez(f / "a_split_11.npz", train_mask=1), r"array val_mask is missing"),
    (
        lambda f: np.savez(f / "a_split_11.npz", train_mask=[1], val_mask=[1], test_mask=[1]),
        r"train_mask has shape \(1,\) for 12 nodes",
    ),
    (lambda f: write_nodes(f, ""), "holds no"),
    (lambda f: write_nodes(f, "0\t1,inf\t0\n1\t1\t0\n"), "no column indices"),
    (lambda f: write_nodes(f, "0\t1,1e30\t0\n1\t1\t0\n"), "no column indices"),
]


@pytest.mark.parametrize(("spoil", "message"), FAULTS, ids=[each[1] for each in FAULTS])
def test_faulty_geom_gcn(tmp_path: Path, spoil: Callable[[Path], object], message: str) -> None:
    folder = geom_gcn(tmp_path / "film")
    spoil(folder)
    with pytest.raises(InputError, match=message):
        convert(folder, tmp_path / "out.h5", format_name="geom-gcn")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("toy-G.json", "{", "is not valid JSON text"),
        ("toy-G.json", "[]", "has no list 'nodes'"),
        ("toy-G.json", '{"nodes": [{"x": 1}], "links": []}', "has no 'id'; add it"),
        ("toy-G.json", '{"nodes": [{"id": 0}], "links": [{"source": 0}]}', "has no 'target'"),
        ("toy-id_map.json", "{}", "must give each of the 12 nodes a row of its own"),
        ("toy-class_map.json", "{}", "has no entry for the node"),
    ],
)
def test_faulty_graphsage(tmp_path: Path, name: str, text: str, message: str) -> None:
    folder = graphsage(tmp_path / "toy", by_name=False)
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=message):
        convert(folder, tmp_path / "out.h5", format_name="graphsage")


def test_a_file_of_a_folder_stands_for_it(tmp_path: Path) -> None:
    folder = geom_gcn(tmp_path / "film")
    path = folder / "out1_graph_edges.txt"
    COMMAND.call([str(path), "-o", str(tmp_path / "out.h5")])
    assert edges_of(tmp_path / "out.h5") == all_edges()
    with GraphStore.open(tmp_path / "out.h5") as store:
        assert store.name == "film"


def test_parts_of_unequal_widths_are_refused(tmp_path: Path) -> None:
    for part, width in (("train", 3), ("valid", 2), ("test", 3)):
        (tmp_path / f"{part}_graph.json").write_text('{"nodes": [{"id": 0}], "links": []}')
        np.save(tmp_path / f"{part}_feats.npy", np.ones((1, width)))
        np.save(tmp_path / f"{part}_labels.npy", np.ones((1, 2)))
    with pytest.raises(InputError, match=r"valid_feats\.npy: has rows of shape \(2,\)"):
        convert(tmp_path, tmp_path / "out.h5", format_name="graphsage")
    np.save(tmp_path / "train_labels.npy", np.float32(1))
    with pytest.raises(InputError, match=r"train_labels\.npy: has shape \(\) for 1 nodes"):
        convert(tmp_path, tmp_path / "out.h5", format_name="graphsage")


def test_faulty_matlab_files(tmp_path: Path) -> None:
    path = tmp_path / "g.mat"
    for values, message in (
        ({"other": np.ones(3)}, "holds other, but no adjacency"),
        ({"A": np.ones((2, 3))}, "A has shape"),
        ({"A": np.eye(3), "X": np.ones((2, 2))}, "only 2 feature rows for 3 nodes"),
        ({"A": np.array([[1j, 0], [0, 1]])}, "A is complex numbers; save numbers"),
        ({"G": {"nodes": 3}}, "G is a struct; save numbers"),
    ):
        scipy.io.savemat(path, values)
        with pytest.raises(InputError, match=message):
            convert(path, tmp_path / "out.h5", format_name="matlab")
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(InputError, match=r"is no complete \.mat file"):
        convert(path, tmp_path / "out.h5", format_name="matlab")
