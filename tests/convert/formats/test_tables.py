"""Tables of edges and nodes: names, headers, labels, splits, features, types; faulty tables."""

import gzip
from dataclasses import replace
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse

from hpcgnn.commands.command import find_command
from hpcgnn.convert import ConvertOptions, convert, detect, from_scipy
from hpcgnn.convert.read import tables
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore, Split
from tests.support.graph_files import contents, convert_to

CONVERT = find_command("convert")

NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Z"), exclude_characters='",;#%'), min_size=1
)
NODES = "id,label,a,b,split,note\nu3,cat,1,2.5,train,x\nu1,dog,3,4,valid,y\nu2,,5,6,none,z\n"
EDGES = "source\ttarget\nu1\tu2\nu2\tu3\nu3\tu1\n"


def write(path: Path, text: str) -> Path:
    data = text.encode("utf-8", "surrogateescape")
    if text == "\ufffe":
        data = "id,a\nu1,1\n".encode("utf-16")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def names_of(path: Path) -> list[str]:
    with GraphStore.open(path) as store:
        return list(store.names(np.arange(store.num_nodes)))


def build(tmp_path: Path, nodes: str = NODES, edges: str = EDGES, **options: Any) -> Any:
    table = write(tmp_path / "nodes.csv", nodes)
    path = write(tmp_path / "edges.tsv", edges)
    return convert_to(tmp_path / "out.h5", path, "edge-list", nodes=(str(table),), **options)


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    edges=st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=30),
    memory=st.sampled_from([6000, 1 << 30]),
)
def test_names_of_any_kind_are_sorted_and_kept(
    tmp_path: Path, edges: list[tuple[str, str]], memory: int
) -> None:
    hypothesis.assume(
        not edges[0][0].lower().startswith(("src", "source", "from", "head", "subject"))
    )
    path = write(tmp_path / "edges.tsv", "src\tdst\n" + "".join(f"{a}\t{b}\n" for a, b in edges))
    options = ConvertOptions(names=True, memory_bytes=memory)
    convert(path, tmp_path / "out.h5", format_name="edge-list", options=options)
    expected = sorted({name for edge in edges for name in edge}, key=str.encode)
    assert names_of(tmp_path / "out.h5") == expected
    found = contents(tmp_path / "out.h5")
    pairs = {(expected[j], expected[i]) for i, j in np.argwhere(found.matrix).tolist()}
    assert pairs == set(edges)


def test_names_may_have_blanks_and_numbers_do_not_need_them(tmp_path: Path) -> None:
    path = write(tmp_path / "g.tsv.gz", "/m/027rn\tNew York\nNew York\tuser 1\n")
    convert(path, tmp_path / "out.h5", format_name="edge-list")
    assert names_of(tmp_path / "out.h5") == ["/m/027rn", "New York", "user 1"]


def test_names_that_outgrow_memory_give_the_store_of_those_that_do_not(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    paths = []
    for number in range(3):
        ids = draw.integers(0, 30_000, (20_000, 2)).tolist()
        text = "".join(f"user {i}\titem{j}\t{i % 7 + 1}\n" for i, j in ids)
        paths.append(write(tmp_path / f"{number}.tsv", text))
    prints = set()
    for memory in (1 << 19, 1 << 30):
        options = ConvertOptions(memory_bytes=memory, more_inputs=tuple(map(str, paths[1:])))
        report = convert(paths[0], tmp_path / "o.h5", format_name="edge-list", options=options)
        with GraphStore.open(tmp_path / "o.h5") as store:
            prints.add(store.fingerprint)
            last = list(store.names(np.arange(store.num_nodes - 2, store.num_nodes)))
    assert len(prints) == 1
    assert last == ["user 9998", "user 9999"]
    assert report.input_edges == 60_000


def check(found: Any, path: Path) -> None:
    assert names_of(path) == ["u1", "u2", "u3"]
    assert found.nodes.features.tolist() == [[3, 4], [5, 6], [1, 2.5]]
    assert found.store.class_names == ("cat", "dog")
    assert found.nodes.labels.tolist() == [1, -1, 0]
    assert found.nodes.split.tolist() == [2, 0, 1]
    assert np.argwhere(found.matrix).tolist() == [[0, 2], [1, 0], [2, 1]]


def test_a_table_of_nodes_gives_labels_splits_and_features(tmp_path: Path) -> None:
    nodes = NODES
    found = build(tmp_path, nodes)
    check(found, tmp_path / "out.h5")
    crlf = "\ufeff" + nodes.replace("\n", "\r\n")
    check(build(tmp_path, crlf), tmp_path / "out.h5")
    check(build(tmp_path, nodes.replace("x\n", '"x, ""y"""\n')), tmp_path / "out.h5")
    # As pandas writes them: columns without names, an index as ids, an index beside ids.
    check(build(tmp_path, nodes.replace(",a,b,", ",0,1,")), tmp_path / "out.h5")
    for index in ("", '""', "Unnamed: 0", "__index_level_0__"):
        check(build(tmp_path, nodes.replace("id", index, 1)), tmp_path / "out.h5")
    numbered = [f"{place},{line}" for place, line in enumerate(nodes.splitlines(keepends=True))]
    check(build(tmp_path, "".join(numbered).removeprefix("0")), tmp_path / "out.h5")
    report = convert(
        tmp_path / "edges.tsv",
        tmp_path / "out.h5",
        format_name="edge-list",
        options=ConvertOptions(nodes=(str(tmp_path / "nodes.csv"),)),
    )
    assert report.ignored == ("header in line 1", "nodes.csv: column 1", "nodes.csv: note")


def test_numbers_of_columns_are_a_header(tmp_path: Path) -> None:
    edges = "0 1\n1 0\n"
    found = build(tmp_path, "0,1,2\n0.5,1,2\n3,4,5\n", edges)
    assert found.nodes.features.tolist() == [[0.5, 1, 2], [3, 4, 5]]
    found = build(tmp_path, "0,1,2\n3,4,5\n", edges)
    assert found.nodes.features.tolist() == [[0, 1, 2], [3, 4, 5]]
    found = build(tmp_path, "a,b,\n3,4,\n5,6,\n", edges)
    assert found.nodes.features.tolist() == [[3, 4], [5, 6]]
    # For edges the first line decides: names with numbers as column names, and weights.
    for lines in ("a b 0\nc 5 1\n", "0 1 2\n1 2 0.5\n"):
        path = write(tmp_path / "edges.tsv", lines)
        assert convert(path, tmp_path / "out.h5", format_name="edge-list").input_edges == 2


def test_a_first_line_that_has_the_given_names_is_a_header(tmp_path: Path) -> None:
    # Words above words: only the names that are given tell the header.
    found = build(
        tmp_path,
        nodes="Who,Team\nu1,cat\nu2,dog\nu3,cat\n",
        node_columns=("id=Who", "label=Team"),
    )
    assert names_of(tmp_path / "out.h5") == ["u1", "u2", "u3"]
    np.testing.assert_array_equal(found.nodes.labels, [0, 1, 0])


def test_a_relation_without_edges_keeps_its_columns_of_features(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    described = ""
    for relation, lines in (("pays", "a,b,3,1.5\n"), ("owes", "")):
        write(folder / f"{relation}.csv", f"from,to,amount,day\n{lines}")
        described += (
            f'[edges."firm,{relation},firm"]\nfiles = ["{relation}.csv"]\n'
            'features = ["amount", "day"]\n'
        )
    write(folder / "graph.toml", described)
    convert(folder, tmp_path / "out.h5", format_name="tables")
    with GraphStore.open(tmp_path / "out.h5") as store:
        assert [store.edge_features(name)[0] for name in store.relations] == [2, 2]


def test_a_first_line_of_names_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "edges.csv", "user,item\nann,pen\n")
    assert convert(path, tmp_path / "out.h5", format_name="edge-list").input_edges == 2
    assert "line 1 counts as an edge: user item; if it is a header" in capsys.readouterr().err


@pytest.mark.parametrize("label", ["0", ""])
def test_one_class_may_be_all(tmp_path: Path, label: str) -> None:
    found = build(tmp_path, f"id,label\nu1,0\nu2,0\nu3,{label}\n")
    assert found.store.num_classes == 1
    assert found.nodes.labels.tolist() == [0, 0, int(label or -1)]


@pytest.mark.parametrize("name", ["cat", "7"])
def test_a_column_may_hold_several_labels(tmp_path: Path, name: str) -> None:
    nodes = f"id,label\nu3,\nu1,{name}\nu2, zoo; {name};\n"
    found = build(tmp_path, nodes, label_separator=";", random_split=(50, 50, 0))
    assert found.store.class_names == (name, "zoo")
    assert found.nodes.labels.tolist() == [[1, 0], [1, 1], [0, 0]]
    assert sorted(found.nodes.split.tolist()) == [0, 1, 2]
    assert found.nodes.split[2] == Split.NONE


def test_numbers_without_a_separator_are_several_labels_too(tmp_path: Path) -> None:
    found = build(tmp_path, "id,label\nu1,3\nu2,5\nu3,3\n", label_separator=",")
    assert found.store.class_names == ("3", "5")
    assert found.nodes.labels.tolist() == [[1, 0], [0, 1], [1, 0]]


def test_masks_in_the_words_of_any_program_are_a_split(tmp_path: Path) -> None:
    nodes = "train_mask,id,val_mask,test_mask\nTrue,u1,False,0\n0.0,u2,1.0,\nfalse,u3,0,TRUE\n"
    assert build(tmp_path, nodes).nodes.split.tolist() == [1, 2, 3]


def test_parquet_gives_the_store_of_text(tmp_path: Path) -> None:
    nodes = NODES
    build(tmp_path, nodes)
    expected = contents(tmp_path / "out.h5").store.fingerprint
    for name in ("nodes.csv", "edges.tsv"):
        separator = pa.csv.ParseOptions(delimiter="\t" if name == "edges.tsv" else ",")
        table = pa.csv.read_csv(tmp_path / name, parse_options=separator)
        pa.parquet.write_table(table, (tmp_path / name).with_suffix(".parquet"), row_group_size=2)
    edges, nodes = str(tmp_path / "edges.parquet"), str(tmp_path / "nodes.parquet")
    CONVERT.call([edges, "--nodes", nodes, "-o", str(tmp_path / "two.h5")])
    found = contents(tmp_path / "two.h5")
    check(found, tmp_path / "two.h5")
    assert found.store.fingerprint == expected


def test_decimals_are_features(tmp_path: Path) -> None:
    prices = pa.array([Decimal("1.5"), Decimal(-2), Decimal(3)])
    pa.parquet.write_table(pa.table({"id": [0, 1, 2], "price": prices}), tmp_path / "n.parquet")
    path = write(tmp_path / "e.tsv", "0\t1\n")
    found = convert_to(tmp_path / "o.h5", path, "edge-list", nodes=(str(tmp_path / "n.parquet"),))
    assert found.nodes.features.tolist() == [[1.5], [-2], [3]]


def test_vectors_are_features(tmp_path: Path) -> None:
    nodes = 'id,vec\nu2,"[3, 4]"\nu3,5 6\nu1,1;2\n'
    found = build(tmp_path, nodes, features=("vec",))
    assert found.nodes.features.tolist() == [[1, 2], [3, 4], [5, 6]]
    for kind in (pa.list_(pa.float64()), pa.list_(pa.float32(), 2)):
        vectors = pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], kind)
        table = pa.table({"id": ["u1", "u2", "u3"], "vec": vectors})
        pa.parquet.write_table(table, tmp_path / "nodes.parquet")
        options = {"nodes": (str(tmp_path / "nodes.parquet"),), "features": ("vec",)}
        found = convert_to(tmp_path / "o.h5", tmp_path / "edges.tsv", "edge-list", **options)
        assert found.nodes.features.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_columns_by_name_several_files_and_several_splits(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", "when,user,item\n1,x,y\n")
    write(tmp_path / "b.csv", "when,user,item\n1,y,z\n")
    nodes = write(
        tmp_path / "n.csv", "key,kind,split_0,split_1\nx,0,train,test\ny,1,test,train\nz,0,valid,\n"
    )
    out = tmp_path / "out.h5"
    columns = ["--columns", "src=user,dst=item", "--node-columns", "id=key,label=kind"]
    CONVERT.call(
        [str(first), str(tmp_path / "b.csv"), "-o", str(out), "--nodes", str(nodes), *columns]
    )
    found = contents(out)
    assert np.argwhere(found.matrix).tolist() == [[1, 0], [2, 1]]
    assert found.store.splits == ("0", "1")
    assert found.nodes.split.tolist() == [1, 3, 2]
    assert found.nodes.labels.tolist() == [0, 1, 0]


def test_numbers_are_relabelled_by_the_table_of_nodes(tmp_path: Path) -> None:
    found = build(tmp_path, "id,a\n70,1\n5,2\n9,3\n", "70 5\n5 5\n")
    assert found.nodes.original_id.tolist() == [5, 9, 70]
    assert found.nodes.features.ravel().tolist() == [2, 3, 1]
    found = build(tmp_path, "id,a\n2,1\n0,2\n1,3\n", "2 0\n")
    assert found.nodes.original_id.tolist() == [0, 1, 2]
    assert found.nodes.features.ravel().tolist() == [2, 3, 1]


def test_nodes_of_edges_only_are_admitted_when_asked(tmp_path: Path) -> None:
    found = build(tmp_path, edges=EDGES + "u9\tu1\n", nodes_from_edges=True, features=("a",))
    assert names_of(tmp_path / "out.h5") == ["u1", "u2", "u3", "u9"]
    assert found.nodes.features.ravel().tolist() == [3, 5, 1, 0]
    assert found.nodes.labels.tolist() == [1, -1, 0, -1]


def test_a_matrix_of_features_and_files_of_splits(tmp_path: Path) -> None:
    path = write(tmp_path / "e.txt", "0 1\n1 2\n")
    np.save(tmp_path / "x.npy", np.arange(8.0).reshape(4, 2))
    parts = {"a.txt": "0\n3\n", "b.txt": "1\n", "c.txt": "2\n"}
    files = ",".join(str(write(tmp_path / name, text)) for name, text in parts.items())
    nodes, out = str(tmp_path / "x.npy"), str(tmp_path / "o.h5")
    CONVERT.call([str(path), "-o", out, "--nodes", nodes, "--split-file", files])
    found = contents(tmp_path / "o.h5")
    assert found.nodes.features.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert found.nodes.split.tolist() == [1, 2, 3, 1]


def test_files_of_splits_are_neither_dropped_nor_replaced(tmp_path: Path) -> None:
    folder, path = shop(tmp_path / "shop"), write(tmp_path / "e.txt", "0 1\n1 2\n")
    files = ",".join(str(write(tmp_path / name, "0\n")) for name in ("a", "b", "c"))
    out = ["-o", str(tmp_path / "o.h5")]
    with pytest.raises(InputError, match=r"--split-file: has no effect on .*shop; leave it out"):
        CONVERT.call([str(folder), *out, "--split-file", files])
    options = ConvertOptions(split_files=(files,))
    with pytest.raises(InputError, match="--split-file: has no effect"):
        from_scipy(scipy.sparse.eye(3), tmp_path / "o.h5", options=options)
    np.savez(tmp_path / "g.npz", src=np.array([0, 1]), dst=np.array([1, 2]))
    with pytest.raises(InputError, match="more than one INPUT: has no effect"):
        CONVERT.call([str(tmp_path / "g.npz"), str(path), *out])
    one = ",".join([str(tmp_path / "a"), *(str(write(tmp_path / n, n)) for n in "12")])
    words = ["--split-file", f"x={one}", "--split-file", f"x={one}"]
    with pytest.raises(InputError, match="there is already a split 'x'"):
        CONVERT.call([str(path), *out, "--num-nodes", "3", *words])


def test_rows_that_are_all_shorter_than_the_header_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "src,dst\n1\n2\n")
    with pytest.raises(InputError, match=r"e\.csv: line 2 has 1 fields where 2 are expected"):
        CONVERT.call([str(path), "-o", str(tmp_path / "o.h5")])


def test_a_description_of_another_name_is_read_itself(tmp_path: Path) -> None:
    folder = shop(tmp_path / "shop")
    write(folder / "mine.toml", '[edges."a,b,a"]\nfile = "knows.tsv"\n')
    write(folder / "knows.tsv", "0\t1\n")
    CONVERT.call([str(folder / "mine.toml"), "--format", "tables", "-o", str(tmp_path / "o.h5")])
    assert np.argwhere(contents(tmp_path / "o.h5").matrix).tolist() == [[1, 0]]


def test_a_table_of_nodes_beside_another_format(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", src=np.array([0, 1]), dst=np.array([1, 2]))
    nodes = write(tmp_path / "n.csv", "id,label,a\n2,x,1\n0,y,2\n1,x,3\n")
    found = convert_to(tmp_path / "o.h5", tmp_path / "g.npz", "npz", nodes=(str(nodes),))
    assert found.nodes.labels.tolist() == [1, 0, 0]
    assert found.nodes.features.ravel().tolist() == [2, 3, 1]


@pytest.mark.parametrize(
    ("edges", "tables", "words"),
    [
        ("a b\nb a\n", ["x.npy"], []),
        ("70 5\n5 9\n", ["ids.csv", "x.npy"], []),
        ("70 5\n5 9\n", ["rows.csv"], ["--relabel"]),
        ("70 5\n5 9\n", ["x.npy"], ["--relabel"]),
        ("0 1\n", ["numbers.csv", "rows.csv"], []),
        ("a b\n", ["names.csv", "rows.csv"], []),
    ],
)
def test_rows_without_ids_are_refused_where_nodes_have_their_own(
    tmp_path: Path, edges: str, tables: list[str], words: list[str]
) -> None:
    path = write(tmp_path / "e.txt", edges)
    np.save(tmp_path / "x.npy", np.arange(3.0)[:, None])
    write(tmp_path / "ids.csv", "id,label\n70,1\n5,0\n9,0\n")
    write(tmp_path / "numbers.csv", "id,label\n1,1\n0,0\n")
    write(tmp_path / "names.csv", "id,label\na,1\nb,0\n")
    write(tmp_path / "rows.csv", "label,a\n1,2\n0,3\n0,4\n")
    words = [*words, *chain.from_iterable(("--nodes", str(tmp_path / name)) for name in tables)]
    with pytest.raises(InputError, match=rf"{tables[-1]}: its rows are nodes 0, 1, \.\.\., but"):
        CONVERT.call([str(path), "-o", str(tmp_path / "o.h5"), *words])


def test_numbers_of_a_type_become_names_without_its_matrix(tmp_path: Path) -> None:
    folder = shop(
        tmp_path / "shop",
        '[nodes.a]\nfiles = ["a.csv", "x.npy"]\n[edges."a,to,b"]\nfile = "e.csv"\n',
    )
    write(folder / "a.csv", "id\n" + "".join(f"{i}\n" for i in range(12)))
    np.save(folder / "x.npy", np.arange(12.0)[:, None])
    write(folder / "e.csv", "src,dst\n0,u\n2,v\n")
    with pytest.raises(InputError, match=r"x\.npy: its rows are nodes 0, 1"):
        CONVERT.call([str(folder), "-o", str(tmp_path / "o.h5")])


def shop(folder: Path, description: str | None = None) -> Path:
    folder.mkdir()
    write(folder / "users.csv", "name,age,group\nann,20,a\nbob,30,b\n")
    write(folder / "items.csv", "id,price\ni2,1.5\ni1,2.5\ni3,3\n")
    write(folder / "buys.csv", "user,item,times\nann,i1,2\nbob,i3,1\n")
    write(folder / "likes.tsv", "bob\ti2\n")
    write(folder / "knows.tsv", "ann\tbob\n")
    write(folder / "wide.csv", "from_user,to_user,times,day\nann,bob,1,2\n")
    write(
        folder / "graph.toml",
        description
        or """
[nodes.user]
files = ["users.csv"]
label = "group"
[nodes.item]
files = ["items.csv"]
[edges."user,buys,item"]
files = ["buys.csv"]
src = "user"
dst = "item"
weight = "times"
[edges."user,likes,item"]
files = ["likes.tsv"]
[edges."user,knows,user"]
files = ["knows.tsv"]
""",
    )
    return folder


def test_a_folder_describes_types_and_relations(tmp_path: Path) -> None:
    CONVERT.call([str(shop(tmp_path / "shop")), "-o", str(tmp_path / "o.h5")])
    found = contents(tmp_path / "o.h5")
    assert [each.name for each in found.store.node_types] == ["user", "item"]
    assert found.store.relations == ("buys", "likes", "knows")
    assert names_of(tmp_path / "o.h5") == ["ann", "bob", "i1", "i2", "i3"]
    assert np.argwhere(found.adjacency["buys"]).tolist() == [[2, 0], [4, 1]]
    assert found.adjacency["buys"][2, 0] == 2
    assert np.argwhere(found.adjacency["likes"]).tolist() == [[3, 1]]
    assert np.argwhere(found.adjacency["knows"]).tolist() == [[1, 0]]
    assert found.nodes.labels.tolist() == [0, 1, -1, -1, -1]


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ("[nodes", r"graph\.toml: is not valid TOML"),
        ("x = 1", r"'x' is none of edges, name, nodes, undirected"),
        ("[nodes.user]\nfiles = ['users.csv']", r"names no \[edges"),
        ('[edges."user,buys"]\nfiles = ["buys.csv"]', "must be named SOURCE,RELATION,TARGET"),
        ('[edges."a,b,c"]\nfile = "none.csv"', r"none\.csv: no such file"),
        ('[edges."a,b,c"]\n', r"needs files = "),
        ('[edges."a,b,c"]\nfile = "buys.csv"\nsrc = "user"', "names only src: name src and dst"),
        ('[edges."a,b,c"]\nfile = "buys.csv"\nsrc = "usr"\ndst = "item"', "no column 'usr'"),
        (
            '[edges."a,b,c"]\nfile = "wide.csv"',
            r'4 fields; say what they are in .*\.toml: \[edges\."a,b,c"\], src = "NAME" and',
        ),
        *(
            (
                f'{more}\n[edges."a,b,a"]\nfile = "buys.csv"\n{features}',
                message,
            )
            for more, features, message in (
                ("", "features = 3.5", r"features = 3\.5 names no columns"),
                ("", "features = [[]]", r"features = \[\[\]\] names no columns"),
                ('[nodes.a]\nfile = "users.csv"\nlabel = ["age", 1.5]', "", "label = .* names no"),
                ('[nodes.a]\nfile = "users.csv"\nsplit = [true]', "", "split = .* names no col"),
                ('[nodes.a]\nfile = "users.csv"\nid = "name"\nfeatures = 3.5', "", "features = 3"),
                ('undirected = "false"', "", "undirected = 'false' must be true or false"),
            )
        ),
        ('[edges."a,b,c"]\nfile = "buys.csv"\nfeatures = "day"', r'"a,b,c"\]: .* no column .day'),
        (
            '[nodes.a]\nfile = "buys.csv"\n[edges."a,b,a"]\nfile = "knows.tsv"',
            r'buys\.csv: has no column of ids; name it in .*toml: \[nodes\.a\], id = "NAME"',
        ),
        (
            '[nodes.a]\nfile = "buys.csv"\nid = "key"\n[edges."a,b,a"]\nfile = "knows.tsv"',
            r"\[nodes\.a\]: .*buys\.csv has no column 'key'; it has user, item, times",
        ),
    ],
)
def test_faulty_descriptions_are_named(tmp_path: Path, description: str, message: str) -> None:
    folder = shop(tmp_path / "shop", description)
    with pytest.raises(InputError, match=message):
        CONVERT.call([str(folder), "-o", str(tmp_path / "o.h5")])


@pytest.mark.parametrize(
    ("nodes", "edges", "options", "message"),
    [
        (NODES, EDGES + "u1\tu7\n", {}, r"edges\.tsv: line 5: target id 'u7' is not in the table"),
        (NODES + "u1,cat,1,2,,\n", EDGES, {}, r"nodes\.csv: line 5: the id occurs twice.*line 3"),
        (NODES + "u4,cat,1\n", EDGES, {}, r"nodes\.csv: line 5 has 3 fields where 6 are expected"),
        (
            NODES + "u4,cat,1,x,,\n",
            EDGES,
            {},
            r"line 5, column 4 holds 'x' where a number is expected",
        ),
        (
            "id,a,label\nu1,NA,1\nu2,2,0\nu3,2,0\n",
            EDGES,
            {},
            r"line 2, column 2 holds 'NA' where a number",
        ),
        ("id,label\nu1,NA\nu2,1\n", EDGES, {}, r"line 2, column 2 holds 'NA' where a number is"),
        ("id,a\n1,2\n", "src\tdst\n1\tnan\n1\t2\n", {}, r"line 2, column 2 holds 'nan' where"),
        (NODES + "u4,cat,1,,,\n", EDGES, {}, r"line 5: the feature in column 2 is nan"),
        (NODES + "u4,cat,1,2,often,\n", EDGES, {}, r"line 5, column 5 holds 'often' where train,"),
        (NODES + ",cat,1,2,,\n", EDGES, {}, r"line 5, column 1: the id is empty"),
        (NODES + 'u4,"cat,1,2,,\n', EDGES, {}, r"line 5 has a quote that is not closed"),
        (NODES, EDGES, {"features": ("c",)}, r"--features: .*nodes\.csv has no column 'c'; it has"),
        (
            "id,label\nu1,;\nu2,\n",
            EDGES,
            {"label_separator": ";"},
            r"label: holds no label; name",
        ),
        (NODES, EDGES, {"node_columns": ("label=c",)}, r"--node-columns: .* no column 'c'"),
        (NODES, EDGES, {"node_columns": ("colour=c",)}, r"'colour' is none of id, graph, label"),
        (NODES, EDGES, {"columns": ("src=a", "dst=b")}, r"--columns: .* no column 'a'"),
        (
            "id,v\nu1,1 2\nu2,3\nu3,4 5\n",
            EDGES,
            {"features": ("v",)},
            r"line 3: the vector has 1 n",
        ),
        (
            "id;v\nu1;1,5\nu2;2,5\n",
            EDGES,
            {"features": ("v",)},
            r"line 2, column 2 holds '1,5'; write numbers with a decimal point, or a vector in br",
        ),
        (
            "id,v\nu1,1 2\nu2,x y\n",
            EDGES,
            {"features": ("v",)},
            r"line 3, column 2 holds 'x'",
        ),
        ("a,b\n1,2\n", EDGES, {}, r"nodes\.csv: has no column of ids; name it with --node-col"),
        ("id,a\nu\x072,1\n", EDGES, {}, r"s\.csv: line 2, column 1: the id b'u\\x072' has unprint"),
        ("id,a\nu1,1\nu\udce9,2\n", EDGES, {}, r"line 3, column 1: the id b'u\\xe9' is not UTF-8"),
        ('id,a\nu1,"x\ny",1\n', EDGES, {}, r"line 2 has a quote that is not closed"),
        ("id,a\nu1,1\nu\r2,2\n", 'a\tb\n"c"\r\r"d"\te\n', {}, r"line 2 is not a valid CSV line"),
        ("\ufffe", EDGES, {}, r"nodes\.csv: is text in UTF-16; save it as UTF-8"),
        ("PAR1", EDGES, {}, r"nodes\.csv: is a Parquet file; give it the ending \.parquet"),
        ("PK\x03\x04", EDGES, {}, r"nodes\.csv: is a zip archive or a workbook"),
        ("BZh91AY&SY", EDGES, {}, r"nodes\.csv: is packed by bzip2; unpack it"),
        ("", EDGES, {}, r"nodes\.csv: holds nothing but comments"),
        (",".join(map(str, range(10**6))) + "\n", EDGES, {}, r"line 1 has 1000000 fields; at most"),
    ],
)
def test_bad_tables_are_named_in_one_line(
    tmp_path: Path, nodes: str, edges: str, options: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        build(tmp_path, nodes, edges, **options)
    assert len(str(caught.value)) < 500
    assert not (tmp_path / "out.h5").exists()


def test_tables_of_other_columns_are_joined_by_id(tmp_path: Path) -> None:
    one = build(tmp_path).store.fingerprint
    path = write(tmp_path / "edges.tsv", EDGES)
    features = write(tmp_path / "features.csv", "key,a,b\nu2,5,6\nu1,3,4\nu3,1,2.5\n")
    labels = write(tmp_path / "labels.csv", "id,label\nu1,dog\nu3,cat\n")
    split = write(tmp_path / "split.csv", "name,split\nu3,train\nu1,valid\n")

    def convert_joined(**options: Any) -> Any:
        options |= {"nodes": tuple(map(str, (features, labels, split)))}
        options |= {"node_columns": ("id=key",), "features": ("a", "b")}
        return convert_to(tmp_path / "out.h5", path, "edge-list", **options)

    assert convert_joined().store.fingerprint == one
    write(labels, "id,label\nu1,dog\nu3,cat\nu9,cat\n")
    with pytest.raises(InputError, match=r"features\.csv: has features of 3 nodes, .* list 1 more"):
        convert_joined()
    assert convert_joined(nodes_from_edges=True).nodes.features[-1].tolist() == [0, 0]
    write(labels, "id,label,a\nu1,dog,4\nu3,cat,4\n")
    with pytest.raises(
        InputError, match=r"labels\.csv: line 2: .* first in .*features\.csv: line 3"
    ):
        convert_joined()


@pytest.mark.parametrize(
    ("labels", "expected", "classes"),
    [
        (("nan", "", "b", "-1", "a"), [-1, -1, 1, -1, 0], ("a", "b")),
        (("NA", "b", "NA", "a", "a"), [0, 2, 0, 1, 1], ("NA", "a", "b")),
        (("NaN", "3", "0", "", "-1"), [-1, 3, 0, -1, -1], ()),
        (("1", "-1", "-1", "1", "1"), [1, -1, -1, 1, 1], ()),
    ],
)
def test_words_for_missing_labels(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    labels: tuple[str, ...],
    expected: list[int],
    classes: tuple[str, ...],
) -> None:
    rows = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
    found = build(tmp_path, f"id,label\n{rows}", "src\tdst\n0\t4\n")
    assert found.nodes.labels.tolist() == expected
    assert tuple(found.store.class_names) == classes
    told = capsys.readouterr().err
    assert ("'NA' is read as a class; leave missing" in told) == ("NA" in classes)
    signs = "2 nodes with -1, nan or nothing have no label, and all others are of class 1; if -1"
    assert (signs in told) == (labels[0] == "1")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ((0, 1000000, 0, -1, 0), "labels go up to 1,000,000, but only 2 of the 1,000,001 classes"),
        ((0, 12, -1, -1, 5), "labels go up to 12, but only 3 of the 13 classes occur"),
        ((0, 2, 4, 6, 8), ""),
        ((0, 7, -1, -1, 0), ""),
    ],
)
def test_gaps_between_classes_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], labels: tuple[int, ...], said: str
) -> None:
    rows = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
    build(tmp_path, f"id,label\n{rows}", "src\tdst\n0\t4\n")
    told = capsys.readouterr().err
    assert ("labels go up to" in told) == bool(said)
    assert said in told


@pytest.mark.parametrize("keep", [0, 40, 500])
def test_a_broken_parquet_file_is_named(tmp_path: Path, keep: int) -> None:
    table = pa.table({"src": list(range(300)), "dst": list(range(300))})
    path = tmp_path / "e.parquet"
    pa.parquet.write_table(table, path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"e\.parquet: is no valid Parquet file"):
        CONVERT.call([str(path), "-o", str(tmp_path / "o.h5")])


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (pa.array([[1.0, 2.0], None, [3.0, 4.0]]), "row 2: the vector has 0 numbers where the fi"),
        (pa.array([[1.0, 2.0], [3.0], [5.0, 6.0]]), "row 2: the vector has 1 numbers where the fi"),
        (pa.array([[], [], []], pa.list_(pa.float64())), "row 1: the vector has 0 numbers"),
        (pa.array(["1 2", None, "3 4"]), "row 2: the vector has 0 numbers"),
        (pa.array([None] * 3), "row 1: the vector has 0 numbers"),
        (
            pa.array([2**60 + 1] * 3),
            "where a number is expected .*; save it as that, or leave it out",
        ),
        (pa.array([["a"], ["b"], ["c"]]), "row 1, column 2 holds list<.*> where vectors of numb"),
        (pa.array([[1.0, None], [3.0, 4.0], [5.0, 6.0]]), "row 1: the feature in column 2 is nan"),
    ],
)
def test_bad_vectors_of_parquet_are_named(tmp_path: Path, vectors: Any, message: str) -> None:
    table = pa.table({"id": ["u1", "u2", "u3"], "vec": vectors})
    pa.parquet.write_table(table, tmp_path / "n.parquet")
    path = write(tmp_path / "e.tsv", EDGES)
    options = {"nodes": (str(tmp_path / "n.parquet"),), "features": ("vec",)}
    with pytest.raises(InputError, match=message):
        convert_to(tmp_path / "o.h5", path, "edge-list", **options)


def test_a_parquet_file_with_two_columns_of_a_name_is_named(tmp_path: Path) -> None:
    columns = [pa.array([0, 1]), pa.array([1, 2]), pa.array([0, 0])]
    pa.parquet.write_table(pa.table(columns, ["src", "dst", "src"]), tmp_path / "e.parquet")
    with pytest.raises(InputError, match=r"e\.parquet: two columns are called 'src'; rename one"):
        CONVERT.call([str(tmp_path / "e.parquet"), "-o", str(tmp_path / "o.h5")])


def test_a_file_without_line_feeds_is_refused_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_LONGEST_LINE_BYTES", 1 << 17)
    path = write(tmp_path / "e.tsv", "x" * (1 << 18))
    with pytest.raises(InputError, match="line 1 does not end within 0 MiB"):
        CONVERT.call([str(path), "-o", str(tmp_path / "o.h5")])


def test_quotes_around_every_field_are_none_of_theirs(tmp_path: Path) -> None:
    path = write(tmp_path / "e.tsv", '"src"\t"dst"\n"a, b"\t"c"\nc\td\n')
    CONVERT.call([str(path), "-o", str(tmp_path / "o.h5")])
    assert names_of(tmp_path / "o.h5") == ["a, b", "c", "d"]


def test_triples_load_with_names_and_relations(tmp_path: Path) -> None:
    text = "/m/027rn\tform of government\t/m/06cx9\n/m/06cx9\tfilm\t/m/027rn\n"
    path = write(tmp_path / "train.txt", text)
    out = tmp_path / "o.h5"
    CONVERT.call([str(path), "-o", str(out), "--columns", "src,relation,dst"])
    assert names_of(out) == ["/m/027rn", "/m/06cx9"]


def test_numbers_with_zeros_before_them_are_names(tmp_path: Path) -> None:
    # As in WN18RR: as numbers, they would lose their zeros, and most rows would be empty.
    folder = tmp_path / "WN18RR"
    folder.mkdir()
    write(folder / "train.txt", "14854262\t_hypernym\t14847214\n02084071\t_has_part\t00001740\n")
    write(folder / "valid.txt", "00001740\t_hypernym\t14854262\n")
    write(folder / "test.txt", "14847214\t_has_part\t02084071\n")
    CONVERT.call([str(folder), "-o", str(tmp_path / "o.h5")])
    assert names_of(tmp_path / "o.h5") == ["00001740", "02084071", "14847214", "14854262"]
    with GraphStore.open(tmp_path / "o.h5") as store:
        assert store.relations == ("_has_part", "_hypernym")


@pytest.mark.parametrize("word", ["007", '"007"', " 007 "])
def test_zeros_before_numbers_after_the_first_rows_are_refused(tmp_path: Path, word: str) -> None:
    rows = [f"{node},{node + 1},0{node % 9}:30,05" for node in range(150)]
    text = "\n".join(["src,dst,time,place", *rows, f"7,{word},00:30,05", "7,8,00:30,05", ""])
    edges = write(tmp_path / "e.csv", text)
    with pytest.raises(InputError, match=r"line 152, column 2: the id '007' has leading zeros"):
        CONVERT.call([str(edges), "-o", str(tmp_path / "o.h5")])
    write(edges, text.replace(word, "0"))
    CONVERT.call([str(edges), "-o", str(tmp_path / "o.h5")])
    with GraphStore.open(tmp_path / "o.h5") as store:
        assert (store.num_nodes, store.num_edges()) == (151, 151)


def test_a_header_without_rows_makes_no_names(tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{n}.csv", f"from,to\n{rows}") for n, rows in ((1, ""), (2, "0,9\n"))
    ]
    CONVERT.call([*map(str, files), "-o", str(tmp_path / "o.h5")])
    with GraphStore.open(tmp_path / "o.h5") as store:
        assert (store.num_nodes, store.has_names) == (10, False)


def test_triples_in_three_files_are_a_split_of_links(tmp_path: Path) -> None:
    folder = tmp_path / "FB15k-237"
    folder.mkdir()
    rows = {
        "train": [
            ("/m/027rn", "/location/country/form", "/m/06cx9"),
            ("größe von", "100%", "/m/027rn"),
        ],
        "valid": [("/m/06cx9", "/location/country/form", "größe von")],
        "test": [("/m/027rn", "..", "only here"), ("/m/06cx9", "100%", "/m/027rn")],
    }
    for part, triples in rows.items():
        lines = "".join("\t".join(triple) + "\r\n" for triple in triples)
        (folder / f"freebase-{part}.txt").write_text(lines, newline="")
    (folder / "entities.dict").write_text("0\t/m/027rn\n")
    assert detect(folder)[0] == "triples"
    report = convert(folder, tmp_path / "out.h5", format_name="triples")
    assert report.ignored == ("entities.dict",)
    assert report.link_split == {"train": 2, "valid": 1, "test": 2}
    found = set()
    with GraphStore.open(tmp_path / "out.h5") as store:
        names = store.names(np.arange(store.num_nodes))
        for relation in store.relations:
            block = store.read_adjacency(0, store.num_nodes, relation)
            split = store.read_edge_data(0, store.num_nodes, relation).split
            ends = np.repeat(np.arange(store.num_nodes), np.diff(block.indptr))
            for src, dst, part in zip(block.indices, ends, split, strict=True):
                found.add((Split(part).name.lower(), names[src], relation, names[dst]))
    assert found == {(part, *triple) for part, triples in rows.items() for triple in triples}


@pytest.mark.parametrize("ids", [(0, 1, 2), (2, 0, 1)])
def test_whole_numbers_that_float32_rounds(
    tmp_path: Path, ids: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = 1_700_000_000 + np.arange(3)
    nodes = "id,at\n" + "".join(f"{i},{seconds[i]}\n" for i in ids)
    edges = "src,dst,at\n" + "".join(f"{i},{(i + 1) % 3},{seconds[i]}\n" for i in range(3))
    build(tmp_path, nodes, edges, edge_features=("at",))
    told = capsys.readouterr().err
    assert "feature in column 1 is rounded from 170000000" in told
    assert "feature 1 of the edge is rounded from 1700000001 to 1700000000 as float32" in told
    build(tmp_path, nodes, edges, edge_features=("at",), dtype="float64")
    assert "rounded" not in capsys.readouterr().err
    with GraphStore.open(tmp_path / "out.h5") as store:
        np.testing.assert_array_equal(store.read_nodes(0, 3).features[:, 0], seconds)
        np.testing.assert_array_equal(store.read_edge_data(0, 3).features[:, 0], seconds[[2, 0, 1]])
    build(tmp_path, nodes, edges, edge_targets=("at",))
    assert "number 1 of the edge is rounded" in capsys.readouterr().err


def test_columns_of_edges_are_features(tmp_path: Path) -> None:
    path = tmp_path / "paid.csv"
    path.write_text("src,dst,weight,day,note\nb,a,2,7.5,x\na,c,1,-1,y\nc,b,3,4,z\n")
    options = ConvertOptions(edge_features=("day", "weight"))
    report = convert(path, tmp_path / "out.h5", format_name="edge-list", options=options)
    assert any("note" in each for each in report.ignored)
    with GraphStore.open(tmp_path / "out.h5") as store:
        # Rows a, b, c; their sources c? b -> a, c -> b, a -> c.
        features = store.read_edge_data(0, 3).features
        np.testing.assert_array_equal(features, [[7.5, 2], [4, 3], [-1, 1]])
        # As copies of the store have it, for example a partitioned one.
        assert store.header({}).edge_feature_names == ("day", "weight")
        assert store.read_adjacency(0, 3).weights is None
    # An edge of value 0 stays one.
    path.write_text("src,dst,weight,day,note\nb,a,0,7.5,x\na,c,1,-1,y\nc,b,3,4,z\n")
    convert(path, tmp_path / "out.h5", format_name="edge-list", options=options)
    with GraphStore.open(tmp_path / "out.h5") as store:
        features = store.read_edge_data(0, 3).features
        np.testing.assert_array_equal(features, [[7.5, 0], [4, 3], [-1, 1]])
    # Both if it is said.
    both = replace(options, columns=("src", "dst", "weight", "skip", "skip"))
    convert(path, tmp_path / "both.h5", format_name="edge-list", options=both)
    with GraphStore.open(tmp_path / "both.h5") as store:
        np.testing.assert_array_equal(store.read_adjacency(0, 3).weights, [3, 1])
        assert store.header({}).edge_feature_names == ("day", "weight")
    for name, message in (("colour", "has no column 'colour'"), ("note", "column 5 holds 'x'")):
        options = ConvertOptions(edge_features=(name,))
        with pytest.raises(InputError, match=message):
            convert(path, tmp_path / "bad.h5", format_name="edge-list", options=options)
    (tmp_path / "gaps.csv").write_text("src,dst,day\na,b,1\nb,a,\n")
    with pytest.raises(InputError, match=r"gaps\.csv: line 3: feature 1 of the edge is nan"):
        convert(
            tmp_path / "gaps.csv",
            tmp_path / "bad.h5",
            format_name="edge-list",
            options=ConvertOptions(edge_features=("day",)),
        )


def test_files_with_vectors_of_other_widths_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", 'src,dst,v\n0,1,"1 2"\n')
    second = write(tmp_path / "b.csv", 'src,dst,v\n1,2,"3"\n')
    with pytest.raises(InputError, match=r"b\.csv: has 1 columns of features and .*a\.csv has 2"):
        CONVERT.call(
            [str(first), str(second), "--edge-features", "v", "-o", str(tmp_path / "o.h5")]
        )


def test_a_description_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    write(tmp_path / "e.csv", "src,dst\n0,1\n")
    text = '\ufeff[edges."u,k,u"]\nfiles = ["e.csv"]\n'
    path = write(tmp_path / "graph.toml", text)
    assert convert_to(tmp_path / "out.h5", path, "tables").store.num_edges() == 1


def test_a_description_is_named_itself_and_names_the_graph(tmp_path: Path) -> None:
    file = shop(tmp_path / "shop") / "graph.toml"
    assert detect(file) == ("tables", "it is a graph.toml")
    report = convert(file, tmp_path / "o.h5", format_name="tables")
    assert report.header.name == "shop"
    file.write_text('name = "market"\n' + file.read_text())
    assert convert(file, tmp_path / "o.h5", format_name="tables").header.name == "market"
    file.write_text(file.read_text().replace('"market"', "3"))
    with pytest.raises(InputError, match=r"graph\.toml: name = 3 must be a text"):
        convert(file, tmp_path / "o.h5", format_name="tables")


def test_folders_have_features_of_edges_for_each_relation(tmp_path: Path) -> None:
    (tmp_path / "graph.toml").write_text(
        '[edges."user,buys/returns,item"]\nfiles = ["buys.csv"]\nfeatures = ["price"]\n'
        '[edges."user,knows,user"]\nfiles = ["knows.csv"]\n'
    )
    (tmp_path / "buys.csv").write_text("src,dst,price\nu1,i1,3.5\nu2,i1,4\n")
    (tmp_path / "knows.csv").write_text("src,dst,weight\nu1,u2,9\n")
    report = convert(tmp_path, tmp_path / "out.h5", format_name="tables")
    with GraphStore.open(tmp_path / "out.h5") as store:
        assert store.edge_features("buys/returns")[0] == 1
        assert store.edge_features("knows") == (0, None)
        assert (store.weighted("buys/returns"), store.weighted("knows")) == (False, True)
        features = store.read_edge_data(0, store.num_nodes, "buys/returns").features
        assert features.ravel().tolist() == [3.5, 4]
    assert report.columns["buys/returns"].num_features == 1


def test_ids_that_are_lists_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    pa.parquet.write_table(pa.table({"src": [[0], [1]], "dst": [1, 0]}), path)
    with pytest.raises(
        InputError, match=r"row 1, column 1 holds list<.*> where a text is expected"
    ):
        convert_to(tmp_path / "o.h5", path, "edge-list")


def test_a_table_without_rows_has_no_nodes(tmp_path: Path) -> None:
    none = pa.array([], pa.int64())
    for columns in ("label", "train_mask"):
        path = tmp_path / "n.parquet"
        pa.parquet.write_table(pa.table({"id": none, columns: none}), path)
        edges = write(tmp_path / "e.csv", "0,1\n")
        with pytest.raises(InputError, match="id 0 is not in the table of nodes"):
            convert_to(tmp_path / "o.h5", edges, "edge-list", nodes=(str(path),))


@pytest.mark.parametrize("by_line", [False, True])
def test_blanks_at_ends_of_names_are_no_part_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_line: bool
) -> None:
    """The same in text, in quotes and in Parquet; with inner blanks and characters beyond ASCII."""
    if by_line:
        monkeypatch.setattr(tables.TableFile, "_fast", lambda *_: None)
    names = ["lead", "trail", "a  b", "\u00a0wide", "x"]
    written = ["  lead", "trail \t", "a  b", "\u00a0wide", " x "]
    edges = pa.table({"src": written, "dst": written[1:] + written[:1]})
    pyarrow.parquet.write_table(edges, tmp_path / "e.parquet")
    nodes = pa.table({"id": written, "a": list(range(5))})
    pyarrow.parquet.write_table(nodes, tmp_path / "n.parquet")
    quoted = "".join(f'"{s}",{d}\n' for s, d in zip(written, names[1:] + names[:1], strict=True))
    (tmp_path / "e.csv").write_text(f"src,dst\n{quoted}", encoding="utf-8")
    for name in ("e.parquet", "e.csv"):
        options = {"nodes": (str(tmp_path / "n.parquet"),)}
        convert_to(tmp_path / "out.h5", tmp_path / name, "edge-list", **options)
        assert sorted(names_of(tmp_path / "out.h5")) == sorted(names), name


def test_columns_of_lists_are_named_with_their_use(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("0,1\n1,2\n")
    nodes = pa.table({"id": [0, 1, 2], "vec": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "w": ["a"] * 3})
    pyarrow.parquet.write_table(nodes, tmp_path / "n.parquet")
    options = ConvertOptions(nodes=(str(tmp_path / "n.parquet"),))
    report = convert(
        tmp_path / "e.csv", tmp_path / "o.h5", format_name="edge-list", options=options
    )
    hint = "n.parquet: vec (a column of lists; --features vec takes vectors of numbers)"
    assert set(report.ignored) == {hint, "n.parquet: w"}


@pytest.mark.parametrize("order", [1, -1])
def test_lines_that_begin_with_a_hash_are_the_same_for_all_columns(
    tmp_path: Path, order: int
) -> None:
    rows = ["b,1,0\n", "#a,2,1\n", "c,3,1\n"]
    found = build(tmp_path, "id,x,label\n" + "".join(rows[::order]), "#a\tb\nc\t#a\n")
    assert names_of(tmp_path / "out.h5") == ["#a", "b", "c"]
    assert found.nodes.features.tolist() == [[2], [1], [3]]
    assert found.nodes.labels.tolist() == [1, 0, 1]


def test_rows_of_numbers_may_be_commented_out_beside_words(tmp_path: Path) -> None:
    nodes = "id,x,label\n0,1,red\n#5,9,green\n1,2,blue\n2,0,blue\n"
    found = build(tmp_path, nodes, "source\ttarget\trel\n0\t1\tlikes\n#0\t2\tknows\n")
    assert found.store.class_names == ("blue", "red")
    assert found.nodes.labels.tolist() == [1, 0, 0]
    assert found.report.input_edges == 1
    # Words may begin with a hash where ids do not come first.
    nodes = "colour,id,label\n#ff0000,0,1\n#00ff00,1,0\n"
    assert build(tmp_path, nodes, "0\t1\n").nodes.labels.tolist() == [1, 0]


def test_features_of_several_tables_are_told_apart_by_name(tmp_path: Path) -> None:
    more = write(tmp_path / "more.csv", "id,z,x\nb,2,1\n")
    table = write(tmp_path / "nodes.csv", "id,x,z\na,1,2\n")
    edges, files = write(tmp_path / "e.tsv", "a\tb\n"), (str(table), str(more))
    found = convert_to(tmp_path / "out.h5", edges, "edge-list", nodes=files)
    assert found.store.feature_names == ("x", "z")
    assert found.nodes.features.tolist() == [[1, 2], [1, 2]]
    for header in ("id,z,q", "id,x,x"):
        write(more, f"{header}\nb,2,1\n")
        with pytest.raises(InputError, match=r"more\.csv: has the features .*nodes\.csv has 'x'"):
            convert_to(tmp_path / "out.h5", edges, "edge-list", nodes=files)


def test_labels_may_be_names_that_look_like_numbers(tmp_path: Path) -> None:
    nodes = "id,kind,a\nu1,1,3\nu2,10,4\nu3,red,5\n"
    with pytest.raises(InputError, match=r"line 4.*'red'.* --node-columns class=NAME"):
        build(tmp_path, nodes, node_columns=("label=kind",))
    found = build(tmp_path, nodes, node_columns=("class=kind",))
    assert found.store.class_names == ("1", "10", "red")
    assert found.nodes.labels.tolist() == [0, 1, 2]
    assert found.nodes.features.tolist() == [[3], [4], [5]]
    with pytest.raises(InputError, match="label and class name the same"):
        build(tmp_path, nodes, node_columns=("class=kind", "label=kind"))
    with pytest.raises(InputError, match=r"label 1\.5; .* --node-columns class=NAME"):
        build(tmp_path, "id,label\nu1,1.5\nu2,0\nu3,1\n")


def test_features_are_named_as_a_role_too(tmp_path: Path) -> None:
    found = build(tmp_path, node_columns=("features=b",))
    assert found.store.feature_names == ("b",)


def test_columns_that_tell_labels_or_splits_are_no_silent_features(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = "id,label,a,y,split,train_mask\nu1,0,1,0,train,1\nu2,1,2,1,test,0\nu3,1,3,1,valid,0\n"
    found = build(tmp_path, nodes)
    assert found.store.feature_names == ("a", "y")
    assert "nodes.csv: train_mask" in found.report.ignored
    assert "nodes.csv: features are also y; leave out" in capsys.readouterr().err
    assert build(tmp_path, nodes, node_columns=("ignore=y",)).store.feature_names == ("a",)
    assert "features are also" not in capsys.readouterr().err


@pytest.mark.parametrize("label", ["", "-1"])
def test_labels_that_are_all_missing_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], label: str
) -> None:
    found = build(tmp_path, f"id,a,label\nu1,1,{label}\nu2,2,\nu3,3,{label}\n")
    assert not found.store.has_labels
    assert "labels" in found.report.missing
    assert "no node has a label" in capsys.readouterr().err


def test_a_split_without_training_nodes_is_not_ready(tmp_path: Path) -> None:
    found = build(tmp_path, "id,a,label,split\nu1,1,0,none\nu2,2,1,test\nu3,3,1,valid\n")
    assert "no node is in its training set" in found.report.missing["split"]


def test_a_triple_in_two_files_counts_once(tmp_path: Path) -> None:
    for part, text in {"train": "a r b\nb r c\n", "valid": "a r b\n", "test": "c r a\n"}.items():
        write(tmp_path / f"{part}.txt", text.replace(" ", "\t"))
    for undirected in (False, True):
        options = ConvertOptions(undirected=undirected)
        report = convert(tmp_path, tmp_path / "o.h5", format_name="triples", options=options)
        assert report.link_split == {"train": 2, "valid": 0, "test": 1}
