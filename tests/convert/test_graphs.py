"""Many graphs in one store: from tables, TUDataset folders and torch-geometric; faulty input."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.convert import convert, from_torch_geometric
from hpcgnn.convert.formats.registry import detect
from hpcgnn.convert.source import ConvertOptions
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore, NodeBlock, Split
from hpcgnn.train.init_config import choose

COMMAND = find_command("convert")

EDGES = "0 1\n1 0\n2 3\n3 2\n"
NODES = "id,graph,a\n0,4,1\n1,4,2\n2,9,3\n3,9,4\n4,9,5\n"
GRAPHS = "graph,label,split\n9,toxic,test\n4,safe,train\n5,safe,valid\n"


def read(path: Path) -> NodeBlock:
    with GraphStore.open(path) as store:
        store.verify()
        return store.read_nodes(0, store.num_nodes)


def write_tables(folder: Path, **texts: str) -> list[str]:
    for name, text in {"edges": EDGES, "nodes": NODES, "graphs": GRAPHS, **texts}.items():
        (folder / f"{name}.csv").write_text(text)
    words = [str(folder / "edges.csv"), "--nodes", str(folder / "nodes.csv")]
    return [*words, "--graphs", str(folder / "graphs.csv"), "-o", str(folder / "out.h5")]


def test_tables_of_nodes_and_of_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    COMMAND.call(write_tables(tmp_path))
    found = read(tmp_path / "out.h5")
    assert found.graph.tolist() == [4, 4, 9, 9, 9]
    assert found.labels.tolist() == [0, 0, 1, 1, 1]
    assert found.split.tolist() == [Split.TRAIN] * 2 + [Split.TEST] * 3
    assert found.features.ravel().tolist() == [1, 2, 3, 4, 5]
    words = write_tables(tmp_path)
    COMMAND.call([*words[:3], *words[5:]])
    assert "labels: --graphs FILE with a column label" in capsys.readouterr().out


def test_what_a_table_of_graphs_has_beside_labels_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graphs = "graph,label,gap,note\n9,a,0.5,x\n4,b,1.5,y\n5,a,2.5,z\n"
    COMMAND.call([*write_tables(tmp_path, graphs=graphs), "--json"])
    report = json.loads(capsys.readouterr().out)
    left_out = ["gap", "note", "graphs without nodes: 5"]
    assert report["ignored"][-3:] == [f"graphs.csv: {each}" for each in left_out]


def test_a_drawn_split_has_whole_graphs(tmp_path: Path) -> None:
    words = write_tables(tmp_path, graphs="graph,label\n4,a\n9,b\n")
    COMMAND.call([*words, "--random-split", "50,50,0", "--split-seed", "3"])
    found = read(tmp_path / "out.h5")
    sets = {(graph, split) for graph, split in zip(found.graph, found.split, strict=True)}
    assert sorted(split for _, split in sets) == [Split.TRAIN, Split.VALID]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"edges": "0 1\n1 2\n"}, "line 2: the edge joins graphs 4 and 9"),
        ({"graphs": "graph,label\n4,a\n"}, "has no row for graph 9"),
        ({"graphs": "graph,label\n4,a\n9,b\n4,b\n"}, "graph 4 occurs twice"),
        ({"graphs": "number,label\n4,a\n9,b\n"}, "a column graph"),
        ({"graphs": "graph,label\nfour,a\n9,b\n"}, "graphs.csv"),
        ({"nodes": "id,graph,a\n0,4,1\n1,-1,2\n2,9,3\n3,9,4\n"}, "node 1 is of graph -1"),
        ({"nodes": "id,graph,a\n0,4,1\n1,x,2\n2,9,3\n3,9,4\n"}, "nodes.csv"),
        ({"nodes": "id,a\n0,1\n1,2\n2,3\n3,4\n"}, "--graphs"),
        ({"nodes": NODES.replace("a\n", "label\n", 1)}, "nodes also have labels"),
        ({"graphs": "graph,split\n4,train\n9,never\n"}, "never"),
        ({"graphs": "graph,label\n9,1\n4,-3\n"}, "graphs.csv: line 3 has label -3"),
        (
            {"graphs": "graph,label,split\n4,,train\n9,,test\n5,a,none\n"},
            "graph 4 is in the train split but has no label, like 1 more; give",
        ),
    ],
)
def test_tables_that_do_not_fit_are_told_in_one_line(
    tmp_path: Path, texts: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError) as fault:
        COMMAND.call(write_tables(tmp_path, **texts))
    assert message in str(fault.value)
    assert "\n" not in str(fault.value)
    assert not (tmp_path / "out.h5").exists()


def write_tudataset(folder: Path, **more: str) -> Path:
    folder.mkdir()
    texts = {
        "A": "1, 2\n2, 1\n3, 4\n4, 3\n",
        "graph_indicator": "1\n1\n2\n2\n2\n",
        "node_labels": "0\n7\n7\n0\n3\n",
        "edge_attributes": "0.5\n0.5\n1.5\n1.5\n",
        **more,
    }
    for name, text in texts.items():
        (folder / f"TOY_{name}.txt").write_text(text)
    return folder


def test_tudataset_with_classes(tmp_path: Path) -> None:
    folder = write_tudataset(
        tmp_path / "TOY", graph_labels="1\n-1\n", node_attributes="1\n2\n3\n4\n5\n"
    )
    convert(folder, tmp_path / "out.h5", format_name=detect(folder)[0])
    found = read(tmp_path / "out.h5")
    assert found.graph.tolist() == [0, 0, 1, 1, 1]
    assert found.labels.tolist() == [1, 1, 0, 0, 0]
    assert found.features.tolist() == [
        [1, 1, 0, 0],
        [2, 0, 0, 1],
        [3, 0, 0, 1],
        [4, 1, 0, 0],
        [5, 0, 1, 0],
    ]
    with GraphStore.open(tmp_path / "out.h5") as store:
        assert store.class_names == ("-1", "1")
        assert store.read_edge_data(0, 5).features.ravel().tolist() == [0.5, 0.5, 1.5, 1.5]


def test_tudataset_with_more_than_it_is_read_for(tmp_path: Path) -> None:
    folder = write_tudataset(
        tmp_path / "TOY", graph_labels="1, 5\n0, 6\n", graph_attributes="1\n2\n"
    )
    report = convert(folder, tmp_path / "out.h5", format_name=detect(folder)[0])
    assert report.ignored == ("graph_labels behind the first column", "graph_attributes")
    with GraphStore.open(tmp_path / "out.h5") as store:
        assert store.class_names == ()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tudataset_keeps_the_dtype_asked_for(tmp_path: Path, dtype: str) -> None:
    texts = {"node_attributes": "0.1\n" * 5, "edge_attributes": "0.2\n" * 4}
    folder = write_tudataset(tmp_path / "TOY", graph_labels="1\n2\n", **texts)
    options = ConvertOptions(dtype="float64" if dtype == "float64" else None)
    convert(folder, tmp_path / "out.h5", format_name="tudataset", options=options)
    assert read(tmp_path / "out.h5").features[0, 0] == np.dtype(dtype).type(0.1)
    with GraphStore.open(tmp_path / "out.h5") as store:
        assert store.read_edge_data(0, 5).features[0, 0] == np.dtype(dtype).type(0.2)


@pytest.mark.parametrize("numbers", [[[0.25, 3], [1.5, 4]], [[3], [250]]])
def test_tudataset_with_numbers_writes_them_beside_the_store(
    tmp_path: Path, numbers: list[list[float]]
) -> None:
    text = "".join(", ".join(map(str, row)) + "\n" for row in numbers)
    folder = write_tudataset(tmp_path / "TOY", graph_attributes=text)
    report = convert(folder, tmp_path / "out.h5", format_name=detect(folder)[0])
    assert report.targets == tmp_path / "out-targets.npy"
    assert np.load(report.targets).tolist() == numbers
    assert read(tmp_path / "out.h5").labels is None
    (tmp_path / "new-targets.npy").mkdir()
    with pytest.raises(InputError, match=r"new-targets\.npy: is a directory"):
        convert(folder, tmp_path / "new.h5", format_name="tudataset")
    assert not (tmp_path / "new.h5").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [("A", "1, 9\n"), ("A", "0, 1\n"), ("A", "a, b\n"), ("graph_labels", "1\n"), ("A", "1, 3\n")],
)
def test_faulty_tudatasets_are_told(tmp_path: Path, name: str, text: str) -> None:
    folder = write_tudataset(tmp_path / "TOY", **{"edge_attributes": "1\n", name: text})
    with pytest.raises(InputError) as fault:
        convert(folder, tmp_path / "out.h5", format_name="tudataset")
    assert "\n" not in str(fault.value)


def data(size: int, y: object, seed: int = 0, **more: object) -> SimpleNamespace:
    rng = np.random.default_rng(seed)
    more = {"edge_index": np.array([[0, 1], [1, 0]]), **more}
    return SimpleNamespace(num_nodes=size, x=rng.random((size, 2), dtype=np.float32), y=y, **more)


def test_torch_geometric_graphs(tmp_path: Path) -> None:
    graphs = [data(3, np.array([1])), data(2, np.array([0])), data(4, np.array([1]))]
    from_torch_geometric(graphs, tmp_path / "out.h5")
    found = read(tmp_path / "out.h5")
    assert found.graph.tolist() == [0] * 3 + [1] * 2 + [2] * 4
    assert found.labels.tolist() == [1] * 3 + [0] * 2 + [1] * 4
    np.testing.assert_array_equal(found.features[3:5], graphs[1].x)
    with GraphStore.open(tmp_path / "out.h5") as store:
        indices = store.read_adjacency(0, store.num_nodes).indices
    assert indices.tolist() == [1, 0, 4, 3, 6, 5]
    numbers = [data(3, np.array([0.5])), data(2, np.array([1.25]))]
    report = from_torch_geometric(numbers, tmp_path / "numbers.h5", options=ConvertOptions())
    assert np.load(report.targets).tolist() == [[0.5], [1.25]]
    empty = data(0, np.array([9.5]), edge_index=np.zeros((2, 0), int))
    report = from_torch_geometric([numbers[0], empty, numbers[1], empty], tmp_path / "gap.h5")
    assert np.load(report.targets).tolist() == [[0.5], [9.5], [1.25]]
    several = [data(3, np.array([[0.0, 1.0]])), data(2, np.array([[1.0, 1.0]]))]
    from_torch_geometric(several, tmp_path / "several.h5")
    assert read(tmp_path / "several.h5").labels.tolist() == [[0, 1]] * 3 + [[1, 1]] * 2
    of_nodes = [data(3, np.array([0, 1, 2])), data(2, np.array([2, 2]))]
    from_torch_geometric(of_nodes, tmp_path / "nodes.h5")
    assert read(tmp_path / "nodes.h5").labels.tolist() == [0, 1, 2, 2, 2]
    assert choose(tmp_path / "out.h5")[0]["train.task"] == "graphs"
    assert "train.task" not in choose(tmp_path / "nodes.h5")[0]


@pytest.mark.parametrize("several", [False, True])
def test_a_graph_is_labelled_where_any_node_is(tmp_path: Path, several: bool) -> None:
    labels = [np.array([-1, -1, 1]), np.array([0, -1]), np.array([-1, -1])]
    if several:
        labels = [np.stack([each == 0, each == 1], axis=1).astype(np.float32) for each in labels]
    graphs = [data(len(each), each) for each in labels]
    options = ConvertOptions(random_split=(50.0, 50.0, 0.0))
    from_torch_geometric(graphs, tmp_path / "drawn.h5", options=options)
    from_torch_geometric(graphs, tmp_path / "plain.h5")
    find_command("split").call([str(tmp_path / "plain.h5"), "--random-split", "50,50,0"])
    for name in ("drawn", "plain"):
        with GraphStore.open(tmp_path / f"{name}.h5") as store:
            found = store.read_split(0, store.num_nodes)
        assert sorted(found[[2, 3]].tolist()) == [Split.TRAIN, Split.VALID]
        if several:
            assert len({*found[:3].tolist()}) == len({*found[3:5].tolist()}) == 1
        else:
            assert found[[0, 1, 4]].tolist() == [Split.NONE] * 3
        assert found[5:].tolist() == [Split.NONE] * 2


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (data(2, None), "some graphs have y"),
        (data(2, np.array([1]), edge_weight=np.ones(2)), "edges of only some graphs have weights"),
        (data(1, np.array([1])), "an edge has a node outside 0..0"),
        (SimpleNamespace(edge_index=np.zeros((2, 1), int)), "num_nodes"),
    ],
)
def test_graphs_that_do_not_fit_are_told(tmp_path: Path, second: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_torch_geometric([data(3, np.array([1])), second], tmp_path / "out.h5")
