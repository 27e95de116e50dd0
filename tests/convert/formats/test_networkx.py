"""networkx files, compared with the graph that was written."""

import gc
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.convert import convert, detect
from hpcgnn.convert.formats import networkx_files
from hpcgnn.convert.source import ConvertOptions
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore
from hpcgnn.storage.atomic import scratch_folders
from tests.support.graph_files import contents

COMMAND = find_command("convert")
NAMES = ["a b", "c,d", "\u00fc"]


def graph() -> nx.DiGraph:
    made = nx.DiGraph()
    for name, x in zip(reversed(NAMES), (0.5, 2, 3), strict=True):
        made.add_node(name, x=float(x), good=int(x > 1), group="red" if x < 3 else "blue")
    made.add_edge(NAMES[0], NAMES[1], weight=2.5, note="k")
    made.add_edge(NAMES[1], NAMES[2], weight=0.5)
    return made


@pytest.mark.parametrize("ending", ["graphml", "graphml.gz", "gml", "gexf"])
def test_graphs_come_back_with_what_is_known_of_nodes(tmp_path: Path, ending: str) -> None:
    path, out = tmp_path / f"g.{ending}", tmp_path / "out.h5"
    getattr(nx, f"write_{ending.removesuffix('.gz')}")(graph(), path)
    assert detect(path)[0] == "networkx"
    COMMAND.call([str(path), "--node-columns", "label=group", "-o", str(out)])
    found = contents(out)
    assert found.matrix.tolist() == [[0, 0, 0], [2.5, 0, 0], [0, 0.5, 0]]
    np.testing.assert_array_equal(found.nodes.features, [[3, 1], [2, 1], [0.5, 0]])
    assert found.nodes.labels.tolist() == [0, 1, 1]
    with GraphStore.open(out) as store:
        assert list(store.names(np.arange(3))) == NAMES
        assert store.provenance["inputs"] == [path.name]


def test_a_node_that_lacks_a_feature_is_named(tmp_path: Path) -> None:
    path, out = tmp_path / "g.graphml", str(tmp_path / "out.h5")
    made = graph()
    made.add_node("new", good=1)
    nx.write_graphml(made, path)
    with pytest.raises(InputError, match=r"g\.graphml: node 'new' has no x, which is a feature"):
        COMMAND.call([str(path), "-o", out])
    COMMAND.call([str(path), "--node-columns", "ignore=x", "-o", out])
    np.testing.assert_array_equal(contents(Path(out)).nodes.features, [[1], [1], [1], [0]])


def test_tables_on_the_way_are_swept_where_a_process_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "g.graphml"
    nx.write_graphml(graph(), path)
    source = networkx_files.read(path, ConvertOptions())
    (folder,) = scratch_folders()
    assert len(list(folder.glob("g.graphml-*.csv"))) == 2
    del source
    gc.collect()
    assert not scratch_folders()


def test_an_edge_without_the_weight_of_others_is_named(tmp_path: Path) -> None:
    path, given = tmp_path / "g.graphml", nx.DiGraph([("a", "b", {"weight": 2.0}), ("b", "c")])
    nx.write_graphml(given, path)
    with pytest.raises(
        InputError, match=r"g\.graphml: edge 'b' -> 'c' has no weight, and others do"
    ):
        convert(path, tmp_path / "out.h5", format_name="networkx")
    options = ConvertOptions(columns=("src=src", "dst=dst"))
    convert(path, tmp_path / "out.h5", format_name="networkx", options=options)
    assert contents(tmp_path / "out.h5").matrix.sum() == 2


@pytest.mark.parametrize("ending", ["adjlist", "edgelist"])
def test_lists_without_a_direction_have_both(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"g.{ending}"
    getattr(nx, f"write_{ending}")(nx.path_graph(3), path)
    convert(path, tmp_path / "out.h5", format_name="networkx")
    assert contents(tmp_path / "out.h5").matrix.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("g.graphml", r"g\.graphml: networkx cannot read it \(ParseError: .*; save it again"),
        ("g.csv", "networkx reads .graphml, .gml, .gexf, .adjlist, .edgelist; rename the file"),
    ],
)
def test_faulty_files_are_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_text("<graphml>")
    options = ConvertOptions()
    with pytest.raises(InputError, match=message):
        convert(tmp_path / name, tmp_path / "out.h5", format_name="networkx", options=options)
    assert [each.name for each in tmp_path.iterdir()] == [name]
