"""Tables named by DGL's meta.yaml and GraphStorm's JSON, compared with a graph.toml's store."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from hpcgnn.convert import convert, detect
from hpcgnn.errors import InputError
from tests.support.graph_files import contents

USERS = 'node_id,label,feat,train_mask,val_mask,test_mask\n7,1,"0.5, 1",1,0,0\n3,0,"2, 3",0,1,0\n'
ITEMS = "node_id,price,size\n1,1.5,2\n0,2.5,4\n4,3,8\n"
BUYS = 'src_id,dst_id,weight,feat,when\n7,1,2,"1,2,3",x\n3,4,1,"4,5,6",y\n'
KNOWS = "from,to\n7,3\n"
META = """
dataset_name: shop
edge_data:
- {file_name: buys.csv, etype: [user, buys, item]}
- {file_name: knows.csv, etype: [user, knows, user], src_id_field: from, dst_id_field: to}
node_data:
- {file_name: users.csv, ntype: user}
- {file_name: items.csv, ntype: item}
"""
TOML = """
[nodes.user]
file = "users.csv"
features = "feat"
[nodes.item]
file = "items.csv"
[edges."user,buys,item"]
file = "buys.csv"
src = "src_id"
dst = "dst_id"
weight = "weight"
features = "feat"
[edges."user,knows,user"]
file = "knows.csv"
src = "from"
dst = "to"
"""
GRAPHSTORM: dict[str, Any] = {
    "version": "gconstruct-v0.1",
    "nodes": [
        {
            "node_type": "user",
            "node_id_col": "node_id",
            "format": {"name": "csv"},
            "files": ["users.csv"],
            "features": [{"feature_col": "feat", "transform": {"name": "max_min_norm"}}],
            "labels": [
                {"label_col": "label", "task_type": "classification", "split_pct": [0.8, 0.1, 0.1]}
            ],
        },
        {
            "node_type": "item",
            "node_id_col": "node_id",
            "files": "items-*.parquet",
            "features": [{"feature_col": ["price", "size"]}],
        },
    ],
    "edges": [
        {
            "relation": ["user", "buys", "item"],
            "source_id_col": "src_id",
            "dest_id_col": "dst_id",
            "format": {"name": "csv"},
            "files": ["buys.csv"],
            "features": [{"feature_col": "feat"}],
        },
        {
            "relation": ["user", "knows", "user"],
            "source_id_col": "from",
            "dest_id_col": "to",
            "format": {"name": "csv"},
            "files": ["knows.csv"],
        },
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "shop"
    path.mkdir()
    tables = {"users": USERS, "items": ITEMS, "buys": BUYS, "knows": KNOWS}
    for name, text in tables.items():
        (path / f"{name}.csv").write_text(text)
    items = pa.csv.read_csv(path / "items.csv")
    pa.parquet.write_table(items[:2], path / "items-0.parquet")
    pa.parquet.write_table(items[2:], path / "items-1.parquet")
    return path


def converted(path: Path, out: Path) -> tuple[str, Any]:
    report = convert(path, out, format_name=detect(path)[0])
    return contents(out).store.fingerprint, report


def test_meta_yaml_gives_the_store_of_a_graph_toml(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (folder / "graph.toml").write_text(TOML)
    expected, _ = converted(folder, tmp_path / "o.h5")
    found = contents(tmp_path / "o.h5")
    assert found.store.relations == ("buys", "knows")
    assert found.adjacency["buys"].max() == 2
    assert found.nodes.split.tolist() == [2, 1, 0, 0, 0]
    assert found.store.edge_features("buys") == (3, np.dtype(np.float32))
    (folder / "graph.toml").unlink()
    (folder / "meta.yaml").write_text(META)
    assert detect(folder) == ("dgl-csv", "the folder holds meta.yaml")
    fingerprint, report = converted(folder, tmp_path / "o.h5")
    assert fingerprint == expected
    assert "buys: when" in report.ignored


def test_a_dgl_folder_of_one_type_is_a_plain_graph(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "n.csv").write_text("node_id,label,x,graph_id\n0,1,5,0\n2,0,6,0\n1,0,7,0\n")
    (tmp_path / "e.csv").write_text("src_id,dst_id\n0,2\n2,1\n")
    meta = "edge_data: [{file_name: e.csv}]\nnode_data: [{file_name: n.csv}]\n"
    (tmp_path / "meta.yaml").write_text(meta)
    _, report = converted(tmp_path, tmp_path / "o.h5")
    found = contents(tmp_path / "o.h5")
    assert found.nodes.features.ravel().tolist() == [5, 7, 6]
    assert found.nodes.labels.tolist() == [1, 0, 0]
    assert np.argwhere(found.matrix).tolist() == [[1, 2], [2, 0]]
    assert "n.csv: graph_id" in report.ignored


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ("a: [", r"meta\.yaml: is not valid YAML"),
        ("version: &a [x]\nseparator: *a", r"meta\.yaml: is not valid YAML text \(it has aliases"),
        ("- 1", "must hold node_data and edge_data"),
        ("colour: 1", "'colour' is none of dataset_name"),
        ("graph_data: {file_name: g.csv}", "describes several graphs"),
        ("separator: '|'", "separator is '|'"),
        ("edge_data: [{ntype: x}]", "edge_data must be a list whose entries have file_name"),
        ("edge_data: [{file_name: e.csv, etype: [a, b]}]", "etype is"),
        ("edge_data: [{file_name: e.csv, colour: 1}]", "'colour' is none of dst_id_field"),
        ("edge_data: [{file_name: none.csv}]", r"none\.csv: no such file"),
        ("edge_data: [{file_name: e.csv}, {file_name: e.csv}]", "has two tables; keep one"),
        ("edge_data: [{file_name: n.csv}]", "has no column 'src_id'"),
        ("edge_data: [{file_name: e.csv}]\nnode_data: [{file_name: e.csv}]", "no column 'node_id'"),
    ],
)
def test_faulty_meta_files_are_named(tmp_path: Path, meta: str, message: str) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "e.csv").write_text("src_id,dst_id\n0,1\n")
    (tmp_path / "n.csv").write_text("node_id,label\n0,1\n")
    (tmp_path / "meta.yaml").write_text(meta)
    with pytest.raises(InputError, match=message):
        converted(tmp_path, tmp_path / "o.h5")


def test_without_pyyaml_the_remedy_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (folder / "meta.yaml").write_text(META)
    with pytest.raises(InputError, match=r"meta\.yaml: reading it needs PyYAML; pip install"):
        converted(folder, tmp_path / "o.h5")


def test_the_json_of_graphstorm(folder: Path, tmp_path: Path) -> None:
    path = folder / "shop.json"
    path.write_text(json.dumps(GRAPHSTORM))
    _, report = converted(path, tmp_path / "o.h5")
    found = contents(tmp_path / "o.h5")
    assert [kind.name for kind in found.store.node_types] == ["user", "item"]
    assert [kind.num_nodes for kind in found.store.node_types] == [2, 3]
    assert found.nodes.labels.tolist() == [0, 1, -1, -1, -1]
    assert np.argwhere(found.adjacency["buys"]).tolist() == [[3, 1], [4, 0]]
    assert "split_pct of 'user' (give --random-split 80,10,10)" in report.ignored
    assert "transform 'max_min_norm' of feat, nodes of 'user'" in report.ignored


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("edges"), "edges must be a list whose entries have relation and files"),
        (lambda d: d["edges"][0].pop("dest_id_col"), "the edges 'user,buys,item' have no dest_id"),
        (lambda d: d["nodes"][0].update(format={"name": "hdf5"}), "are in 'hdf5'; save them as"),
        (lambda d: d["nodes"][0].update(features=3), "is no construction file of GraphStorm"),
        (lambda d: d["nodes"][1].update(files="x*"), r"no file is called x\*; correct it"),
    ],
)
def test_faulty_construction_files_are_named(
    folder: Path, tmp_path: Path, change: Any, message: str
) -> None:
    description = json.loads(json.dumps(GRAPHSTORM))
    change(description)
    (folder / "shop.json").write_text(json.dumps(description))
    with pytest.raises(InputError, match=message):
        converted(folder / "shop.json", tmp_path / "o.h5")
