"""Node types in every format that has them: equal stores, and errors of faulty input."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.convert import ConvertOptions, columns, convert, detect, from_dgl, from_torch_geometric
from hpcgnn.convert.nodes import relation_names
from hpcgnn.convert.pipeline import Report
from hpcgnn.errors import InputError
from tests.support.graph_files import contents, write_gz
from tests.support.typed_files import LittleTyped

COMMAND = find_command("convert")

FORMS = ("torch-geometric", "dgl", "ogb", "npz")


def store(form: str, tmp_path: Path, little: LittleTyped, **options: Any) -> Report:
    out, chosen = tmp_path / "out.h5", ConvertOptions(**options)
    if form == "torch-geometric":
        return from_torch_geometric(little.hetero_data(), out, options=chosen)
    if form == "dgl":
        return from_dgl(little.dgl_graph(), out, options=chosen)
    if form == "ogb":
        path = little.write_ogb(tmp_path / "in")
    else:
        path = tmp_path / "in.npz"
        np.savez(path, **little.npz_arrays())
    assert detect(path)[0] == form
    return convert(path, out, format_name=form, options=chosen)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_store(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_NODE_ROWS", 4)
    little = LittleTyped()
    report = store(form, tmp_path, little)
    found = contents(tmp_path / "out.h5")
    assert found.store.relations == little.relations
    for relation, edge_type in zip(little.relations, little.edges, strict=True):
        expected = np.zeros((13, 13))
        src, dst = little.ends(edge_type)
        expected[dst, src] = 1
        np.testing.assert_array_equal(found.adjacency[relation], expected)
    np.testing.assert_array_equal(found.nodes.types, little.types)
    np.testing.assert_array_equal(found.nodes.labels, little.everywhere(little.labels, -1))
    np.testing.assert_array_equal(found.nodes.split, little.everywhere(little.split, 0))
    np.testing.assert_array_equal(found.nodes.original_id, np.arange(13))
    # In text, a type without nodes has no line from which its columns could be known.
    venue = 0 if form == "ogb" else 3
    kinds = [(kind.name, kind.num_nodes, kind.num_features) for kind in found.store.node_types]
    assert kinds == [("author", 4, 2), ("paper", 6, 3), ("field", 3, 0), ("venue", 0, venue)]
    for name, rows in zip(little.counts, found.nodes.type_features, strict=True):
        if little.features[name] is not None and len(rows):
            np.testing.assert_array_equal(rows, little.features[name])
    assert report.header.num_classes == 3
    assert report.split == {"train": 2, "valid": 1, "test": 2}
    assert [kind.num_nodes for kind in report.node_types] == [4, 6, 3, 0]
    assert report.num_features == 0


@pytest.mark.parametrize("form", ["ogb", "dgl"])
def test_reverses_stay_in_their_relation(form: str, tmp_path: Path) -> None:
    store(form, tmp_path, LittleTyped(), undirected=True, dtype="float64")
    found = contents(tmp_path / "out.h5")
    pairs = {(0, 9), (1, 4), (3, 6), (3, 4)}
    writes = {(int(i), int(j)) for i, j in np.argwhere(found.adjacency["writes"])}
    assert writes == pairs | {(j, i) for i, j in pairs}
    assert found.store.undirected
    assert found.store.node_types[1].dtype == np.float64
    store(form, tmp_path, LittleTyped(), reverse=True)
    writes = np.argwhere(contents(tmp_path / "out.h5").adjacency["writes"])
    assert {(int(i), int(j)) for i, j in writes} == pairs


def test_types_of_npz_may_be_mixed(tmp_path: Path) -> None:
    little = LittleTyped()
    arrays = little.npz_arrays()
    order = np.random.default_rng(3).permutation(13)
    arrays["node_type"] = arrays["node_type"][order]
    arrays["feat_0"], arrays["x_1"] = arrays.pop("x_author"), arrays.pop("x_paper")
    for name in ("node_types", "x_venue", "y", "split"):
        del arrays[name]
    path = tmp_path / "in.npz"
    np.savez(path, **arrays)
    convert(path, tmp_path / "out.h5", format_name="npz")
    found = contents(tmp_path / "out.h5")
    assert [kind.name for kind in found.store.node_types] == ["0", "1", "2"]
    np.testing.assert_array_equal(found.nodes.types, little.types[order])
    np.testing.assert_array_equal(found.nodes.type_features[1], little.features["paper"])


def test_what_a_store_has_no_place_for(tmp_path: Path) -> None:
    folder = LittleTyped().write_ogb(tmp_path / "in")
    write_gz(folder / "raw" / "node-feat" / "paper" / "node_year.csv.gz", "1990\n" * 6)
    report = convert(folder, tmp_path / "out.h5", format_name="ogb")
    assert "node-feat/paper/node_year.csv.gz" in report.ignored
    assert "relations/author___writes___paper/edge_reltype.csv.gz" in report.ignored
    assert len(report.ignored) == 6


def test_the_command_shows_node_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = LittleTyped().write_ogb(tmp_path / "in")
    COMMAND.call([str(folder), "-o", str(tmp_path / "out.h5")])
    shown = capsys.readouterr().out
    assert "node types: paper" in shown
    assert "num_nodes 6, num_features 3" in shown


def test_relations_with_the_same_name() -> None:
    cites, likes = ("a", "cites", "b"), ("a", "likes", "b")
    assert relation_names([cites, likes]) == {cites: "cites", likes: "likes"}
    other = ("b", "cites", "a")
    names = relation_names([cites, likes, other])
    assert names == {cites: "a-cites-b", likes: "likes", other: "b-cites-a"}
    with pytest.raises(InputError, match="would both be the relation 'a-cites-b'; rename one"):
        relation_names([cites, other, ("a", "a-cites-b", "b")])


def outside(little: LittleTyped) -> None:
    little.edges["author", "writes", "paper"] = np.array([[0, 4], [1, 1]])


def below(little: LittleTyped) -> None:
    little.edges["paper", "about", "field"] = np.array([[0], [-1]])


def unlabelled(little: LittleTyped) -> None:
    little.split = np.array([1, 1, 2, 2, 3, 3])


@pytest.mark.parametrize("form", ["torch-geometric", "dgl", "ogb"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (outside, r"source id 4 is outside 0\.\.3 of the node type 'author'; number the nodes of"),
        (below, r"target id -1 is outside 0\.\.2 of the node type 'field'"),
        (unlabelled, "nodes of the type 'paper': node 3 is in the valid split but has no label"),
    ],
)
def test_faulty_graphs(
    form: str, change: Callable[[LittleTyped], object], message: str, tmp_path: Path
) -> None:
    little = LittleTyped()
    change(little)
    with pytest.raises(InputError, match=message):
        store(form, tmp_path, little)
    assert not (tmp_path / "out.h5").exists()


def test_labels_of_two_types(tmp_path: Path) -> None:
    data = LittleTyped().hetero_data()
    data["author"].y = np.array([0, 1, 0, 0])
    with pytest.raises(InputError, match="the node types author, paper have labels; only one"):
        from_torch_geometric(data, tmp_path / "out.h5")
    data["paper"].y = np.eye(6, 2, dtype=int)
    del data["author"].y
    from_torch_geometric(data, tmp_path / "out.h5")
    labels = contents(tmp_path / "out.h5").nodes.labels
    assert labels[4:10].tolist() == [[1, 0], [0, 1], [0, 0], [0, 0], [0, 0], [0, 0]]
    assert not labels[:4].any()


def test_a_type_without_a_number_of_nodes(tmp_path: Path) -> None:
    data = LittleTyped().hetero_data()
    del data["field"].num_nodes
    with pytest.raises(InputError, match=r"data\['field'\]: has no num_nodes; set it"):
        from_torch_geometric(data, tmp_path / "out.h5")


Arrays = dict[str, Any]

NPZ_FAULTS: list[tuple[Callable[[Arrays], object], str]] = [
    (lambda a: a.update(node_type=np.full(13, 4)), r"node 0 has the type 4, outside 0\.\.3"),
    (lambda a: a.update(node_type=-np.ones(13, int)), r"node 0 has the type -1, outside 0\.\.3"),
    (lambda a: a.update(node_type=np.ones(13)), "node_type has shape .* a vector of whole numbers"),
    (lambda a: a.update(node_type=np.zeros(12, int)), "y implies 13 nodes and .* implies 12"),
    (lambda a: a.update(node_types=np.array(["a"] * 4)), "node_types: must name at least one type"),
    (lambda a: a.update(node_types=np.arange(4)), "node_types has shape"),
    (lambda a: a.update(x=np.ones((13, 2))), "x holds features of all nodes, but node_type gives"),
    (lambda a: a.update(x_paper=np.ones((5, 3))), "there are only 5 feature rows for 6 nodes"),
    (lambda a: a.update(x_author=np.ones((5, 3))), "there are more feature rows for 4 nodes"),
    (lambda a: a.update(x_field=np.ones(3)), r"x_field has shape \(3,\)"),
    (
        lambda a: a.update(node_types=np.array(["a\nb", "paper", "field", "venue"])),
        "node type 'a.nb' is empty or has unprintable",
    ),
]


@pytest.mark.parametrize(("change", "message"), NPZ_FAULTS, ids=[case[1] for case in NPZ_FAULTS])
def test_faulty_npz(change: Callable[[Arrays], object], message: str, tmp_path: Path) -> None:
    arrays = LittleTyped().npz_arrays()
    change(arrays)
    path = tmp_path / "in.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=message):
        convert(path, tmp_path / "out.h5", format_name="npz")
    assert not (tmp_path / "out.h5").exists()


def remove(*parts: str) -> Callable[[Path], object]:
    return lambda folder: folder.joinpath(*parts).unlink()


def rewrite(text: str, *parts: str) -> Callable[[Path], object]:
    return lambda folder: write_gz(folder.joinpath(*parts), text)


COUNTS = ("raw", "num-node-dict.csv.gz")
TRIPLETS = ("raw", "triplet-type-list.csv.gz")
WRITES = ("raw", "relations", "author___writes___paper", "edge.csv.gz")
PAPERS = ("raw", "node-feat", "paper", "node-feat.csv.gz")
LABELS = ("raw", "node-label", "paper", "node-label.csv.gz")
SPLIT = ("split", "time", "paper")

OGB_FAULTS: list[tuple[Callable[[Path], object], str]] = [
    (remove(*WRITES), r"author___writes___paper/edge\.csv\.gz: no such file"),
    (remove(*PAPERS), r"node-feat\.csv\.gz: no such file; nodetype-has-feat\.csv\.gz says"),
    (remove(*LABELS), r"node-label\.csv\.gz: no such file; nodetype-has-label\.csv\.gz says"),
    (remove(*SPLIT, "valid.csv.gz"), r"paper/valid\.csv\.gz: no such file"),
    (remove(*TRIPLETS), r"triplet-type-list\.csv\.gz: no such file"),
    (remove(*COUNTS), "give the folder that holds raw/num-node-dict"),
    (
        rewrite("author,paper\n4,6\n", *COUNTS),
        "the edge type paper,about,field has nodes of the type 'field'; num-node-dict",
    ),
    (rewrite("a,b\n4,x\n", *COUNTS), "the number of nodes of 'b' is 'x'"),
    (rewrite("a,b\n4,1\n1,1\n", *COUNTS), "has 3 lines; a line of distinct"),
    (rewrite("a,a\n4,1\n", *COUNTS), "a line of distinct type names"),
    (rewrite("paper,cites\n", *TRIPLETS), "line 1 has 2 fields where 3"),
    (rewrite("paper,cites,paper\n" * 2, *TRIPLETS), "must name distinct edge types"),
    (rewrite("x\nTrue\n", "raw", "nodetype-has-feat.csv.gz"), "names the type 'x', which"),
    (rewrite("1,2\n" * 5, *PAPERS), "line 6: there are only 5 feature rows for 6 nodes"),
    (rewrite("0,0\n0,6\n", *WRITES), r"edge\.csv\.gz: line 2: target id 6 is outside 0\.\.5"),
    (rewrite("6\n", *SPLIT, "test.csv.gz"), r"node id 6 is outside 0\.\.5"),
]


@pytest.mark.parametrize(("spoil", "message"), OGB_FAULTS, ids=[case[1] for case in OGB_FAULTS])
def test_spoiled_folders(spoil: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    folder = LittleTyped().write_ogb(tmp_path / "in")
    spoil(folder)
    with pytest.raises(InputError, match=message):
        convert(folder, tmp_path / "out.h5", format_name="ogb")
    assert not (tmp_path / "out.h5").exists()
