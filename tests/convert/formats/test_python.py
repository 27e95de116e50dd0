"""The Python entry points, with stand-ins for torch-geometric and DGL."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from hpcgnn.commands.command import find_command
from hpcgnn.convert import ConvertOptions, from_dgl, from_scipy, from_torch_geometric
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore
from tests.support.graph_files import Little, contents

COMMAND = find_command("convert")

SRC, DST = torch.tensor([0, 3, 1]), torch.tensor([1, 0, 1])
EXPECTED = [[0, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
MASKS = {
    "train_mask": torch.tensor([True, False, False, False]),
    "val_mask": torch.tensor([False, True, False, False]),
    "test_mask": torch.tensor([False, False, False, True]),
}


def node_data() -> dict[str, Any]:
    features = torch.arange(8.0).reshape(4, 2).requires_grad_()
    return {"x": features, "y": torch.tensor([[1], [0], [-1], [2]]), **MASKS}


def check(path: Path) -> None:
    found = contents(path)
    assert found.nodes.features.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert found.nodes.labels.tolist() == [1, 0, -1, 2]
    assert found.nodes.split.tolist() == [1, 2, 0, 3]
    assert found.store.num_nodes == 4


def data(**more: Any) -> Any:
    fields = {"num_nodes": 4, "edge_index": torch.stack([SRC, DST]), **node_data()}
    return SimpleNamespace(**{**fields, **more})


def test_data_of_torch_geometric(tmp_path: Path) -> None:
    path = tmp_path / "out.h5"
    report = from_torch_geometric(data(), path)
    assert report.edges == {"": 3}
    assert contents(path).matrix.tolist() == EXPECTED
    check(path)
    weights = torch.tensor([[0.5], [2.0], [0.25]])
    from_torch_geometric(data(edge_weight=weights), path, options=ConvertOptions(undirected=True))
    assert contents(path).matrix.tolist() == [
        [0, 0.5, 0, 2],
        [0.5, 0.25, 0, 0],
        [0, 0, 0, 0],
        [2, 0, 0, 0],
    ]


def test_what_a_store_has_no_place_for_is_listed(tmp_path: Path) -> None:
    more = {"edge_attr": torch.ones(3, 2), "z": torch.ones(4, 3)}
    report = from_torch_geometric(data(**more), tmp_path / "out.h5")
    assert report.ignored == ("z",)
    assert report.columns[""].num_features == 2
    options = ConvertOptions(split="0")
    with pytest.raises(InputError, match="--split: has no effect on data"):
        from_torch_geometric(data(), tmp_path / "out.h5", options=options)


@pytest.mark.parametrize("dtype", [None, "float64"])
def test_whole_numbers_of_edges_are_rounded_only_by_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dtype: Any
) -> None:
    times = torch.tensor([[1607664516], [1607664517], [3]])
    path, options = tmp_path / "out.h5", ConvertOptions(dtype=dtype)
    from_torch_geometric(data(edge_attr=times), path, options=options)
    with GraphStore.open(path) as store:
        found = store.read_edge_data(0, 4).features[:, 0]
    expected = np.sort(times.numpy().ravel()).astype(dtype or np.float32)
    np.testing.assert_array_equal(np.sort(found), expected)
    assert found.dtype == expected.dtype
    assert ("is rounded from 1607664516 to 1607664512" in caplog.text) == (dtype is None)


def test_pos_of_a_graph_is_its_positions(tmp_path: Path) -> None:
    path, points = tmp_path / "out.h5", torch.arange(8.0).view(4, 2)
    assert not from_torch_geometric(data(pos=points), path).ignored
    with GraphStore.open(path) as store:
        np.testing.assert_array_equal(store.read_positions(0, 4), points.numpy())
    several = from_torch_geometric([data(pos=points), data(pos=points)], path)
    assert several.ignored == ("pos",)
    for faulty in (torch.ones(4), torch.ones(3, 2)):
        with pytest.raises(InputError, match="pos"):
            from_torch_geometric(data(pos=faulty), tmp_path / "faulty.h5")


class Hetero:
    """The interface of `HeteroData`, for one type of nodes."""

    node_types = ("paper",)
    edge_types = (("paper", "cites", "paper"), ("paper", "like", "paper"))

    def __init__(self) -> None:
        self.stores: dict[Any, Any] = {
            "paper": SimpleNamespace(num_nodes=4, **node_data()),
            self.edge_types[0]: SimpleNamespace(edge_index=torch.stack([SRC, DST])),
            self.edge_types[1]: SimpleNamespace(edge_index=torch.zeros((2, 0), dtype=torch.int64)),
        }

    def __getitem__(self, key: Any) -> Any:
        return self.stores[key]


def test_hetero_data_becomes_relations(tmp_path: Path) -> None:
    from_torch_geometric(Hetero(), tmp_path / "out.h5")
    found = contents(tmp_path / "out.h5")
    assert found.store.relations == ("cites", "like")
    assert found.adjacency["cites"].tolist() == EXPECTED
    check(tmp_path / "out.h5")


def test_what_hetero_data_holds_besides_is_listed(tmp_path: Path) -> None:
    graph = Hetero()
    graph["paper"].year = torch.ones(4)
    graph[graph.edge_types[0]].time = torch.ones(3)
    report = from_torch_geometric(graph, tmp_path / "out.h5")
    assert report.ignored == ("paper: year", "cites: time")


class Graph:
    """The interface of a DGL graph, for one type of nodes."""

    ntypes = ("_N",)

    def __init__(self, *etypes: str) -> None:
        self.canonical_etypes = [("_N", name, "_N") for name in etypes]
        self.ndata = {"feat": node_data()["x"], "label": node_data()["y"], **MASKS}
        data = {"w": torch.tensor([0.5, 2.0, 0.25])}
        self._edata = {etype: SimpleNamespace(data=data) for etype in self.canonical_etypes}

    def num_nodes(self) -> int:
        return 4

    @property
    def edges(self) -> Any:
        edata = self._edata

        class View:
            def __call__(self, *, order: str, etype: Any) -> Any:
                assert order == "eid"
                assert etype in edata
                return SRC, DST

            def __getitem__(self, etype: Any) -> Any:
                return edata[etype]

        return View()


def test_graphs_of_dgl(tmp_path: Path) -> None:
    path = tmp_path / "out.h5"
    graph = Graph("_E")
    graph.ndata["year"] = torch.ones(4)
    assert from_dgl(graph, path).ignored == ("edata w", "ndata year")
    assert contents(path).matrix.tolist() == EXPECTED
    check(path)
    from_dgl(Graph("a", "b"), path, weight="w")
    found = contents(path)
    assert found.store.relations == ("a", "b")
    assert found.adjacency["b"].tolist() == [[0, 0, 0, 2], [0.5, 0.25, 0, 0], [0] * 4, [0] * 4]
    with pytest.raises(InputError, match="edata has no 'u'; give the name of its weights"):
        from_dgl(Graph("_E"), path, weight="u")


@pytest.mark.parametrize("form", ["csr", "coo", "csc", "lil", "dia"])
@pytest.mark.parametrize("kind", [scipy.sparse.csr_matrix, scipy.sparse.csr_array])
def test_scipy_matrices(tmp_path: Path, form: str, kind: Any) -> None:
    path = tmp_path / "out.h5"
    dense = np.array([[0, 2.5, 0], [0, 1, 0], [-1, 0, 0]])
    report = from_scipy(kind(dense).asformat(form), path)
    found = contents(path)
    np.testing.assert_array_equal(found.matrix, dense.T)
    assert (report.header.name, report.header.undirected) == ("matrix", False)
    from_scipy(kind(dense != 0).asformat(form), path)
    assert not contents(path).store.weighted("")


def test_a_scipy_matrix_with_node_data(tmp_path: Path) -> None:
    little, path = Little(), tmp_path / "out.h5"
    from_scipy(
        little.matrix,
        path,
        features=little.features,
        labels=little.labels,
        split=little.split,
        class_names=("a", "b", "c"),
        options=ConvertOptions(name="little"),
    )
    found = contents(path)
    np.testing.assert_array_equal(found.nodes.features, little.features)
    np.testing.assert_array_equal(found.nodes.labels, little.labels)
    np.testing.assert_array_equal(found.nodes.split, little.split)
    assert (found.store.name, found.store.undirected) == ("little", True)
    assert found.store.class_names == ("a", "b", "c")


FAULTY: list[tuple[Any, str]] = [
    (lambda p: from_scipy(np.eye(3), p), "matrix: is a ndarray; give a SciPy sparse matrix"),
    (lambda p: from_scipy(scipy.sparse.csr_matrix((3, 4)), p), r"matrix: has shape \(3, 4\)"),
    (lambda p: from_scipy(scipy.sparse.csr_matrix((3, 3)), p), "matrix: the graph has no edges"),
    (
        lambda p: from_scipy(scipy.sparse.eye_array(3), p, features=np.ones((2, 2))),
        "matrix: features, row 2: there are only 2 feature rows for 3 nodes",
    ),
    (
        lambda p: from_scipy(scipy.sparse.eye_array(3), p, labels=[0, 1]),
        "matrix: labels has 2 rows for 3 nodes",
    ),
    (
        lambda p: from_scipy(scipy.sparse.eye_array(3), p, features=[[object()]]),
        "matrix: features has dtype object; give numbers",
    ),
    (
        lambda p: from_scipy(scipy.sparse.eye_array(3), p, features=[[1], [2, 3]]),
        "matrix: features is no array",
    ),
    (lambda p: from_dgl([data()], p), "graph: is a list; give a DGL graph"),
    (lambda p: from_torch_geometric(data(num_nodes=None), p), "data: has no num_nodes"),
    (lambda p: from_torch_geometric(data(edge_index=None), p), "data: has no edge_index"),
    (lambda p: from_torch_geometric(data(edge_index=SRC), p), r"edge_index has shape \(3,\)"),
    (
        lambda p: from_torch_geometric(data(edge_index=torch.ones(2, 3)), p),
        "data: edges, entry 0: source ids have dtype float32",
    ),
    (lambda p: from_torch_geometric(data(num_nodes=3), p), "edges, entry 1: source id 3 is outs"),
    (
        lambda p: from_torch_geometric(data(edge_weight=torch.ones(2)), p),
        r"data: edges: arrays have the shapes \[\(3,\), \(3,\), \(2,\)\]",
    ),
    (
        lambda p: from_torch_geometric(data(x=torch.full((4, 2), torch.inf)), p),
        "data: features, row 0: the feature in column 1 is inf",
    ),
    (
        lambda p: from_torch_geometric(data(y=torch.tensor([1, 0, 1, -4])), p),
        "data: labels: node 3 has label -4",
    ),
]


@pytest.mark.parametrize(("call", "message"), FAULTY)
def test_faulty_values_are_named(tmp_path: Path, call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(tmp_path / "out.h5")
    assert list(tmp_path.iterdir()) == []


class Planetoid:
    """A data set like those of torch-geometric, in a folder and with a name."""

    def __init__(self, root: str, name: str, split: str = "public") -> None:
        assert (root, split) == ("there", "public")
        if name not in ("Cora", "two"):
            raise ValueError(f"no {name}\nhere")
        self._graphs = [data()] * (2 if name == "two" else 1)

    def __len__(self) -> int:
        return len(self._graphs)

    def __getitem__(self, number: int) -> Any:
        return self._graphs[number]

    def indices(self) -> range:
        return range(len(self))


class Karate(Planetoid):
    def __init__(self) -> None:
        super().__init__("there", "Cora")


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(Planetoid=Planetoid, Karate=Karate)
    monkeypatch.setitem(sys.modules, "torch_geometric", SimpleNamespace(datasets=module))
    monkeypatch.setitem(sys.modules, "torch_geometric.datasets", module)


@pytest.mark.usefixtures("datasets")
def test_a_data_set_by_name(tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    COMMAND.call(["pyg:Planetoid/Cora", "--root", "there", "-o", str(out)])
    found = contents(out)
    assert found.matrix.tolist() == EXPECTED
    assert found.store.name == "Cora"
    assert found.store.provenance["format"] == "torch-geometric"
    COMMAND.call(["pyg:Karate", "-o", str(out)])
    assert contents(out).store.fingerprint == found.store.fingerprint


@pytest.mark.usefixtures("datasets")
def test_a_data_set_of_several_graphs_is_one_store(tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    COMMAND.call(["pyg:Planetoid/two", "--root", "there", "-o", str(out)])
    found, size = contents(out), len(EXPECTED)
    assert found.matrix[:size, :size].tolist() == EXPECTED
    assert found.matrix[size:, size:].tolist() == EXPECTED
    assert found.nodes.graph.tolist() == [0] * size + [1] * size
    assert found.nodes.split[:size].tolist() == found.nodes.split[size:].tolist()
    assert found.nodes.split.any()


@pytest.mark.usefixtures("datasets")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pyg:Planetoid/Cora"], "pyg:Planetoid/Cora: give the folder .* --root DIR"),
        (["pyg:Planetoid", "--root", "there"], "several data sets; give pyg:Planetoid/NAME"),
        (["pyg:Karate/x"], "Karate takes no name; give pyg:Karate"),
        (["pyg:Karate", "--root", "there"], "--root: has no effect on pyg:Karate; leave it out"),
        (["pyg:Planetiod/Cora"], "has no 'Planetiod'; did you mean Planetoid"),
        (["pyg:Planetoid/x", "--root", "there"], r"cannot load it \(ValueError no x here\)"),
    ],
)
def test_faulty_names_of_data_sets_are_refused(
    tmp_path: Path, words: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        COMMAND.call([*words, "-o", str(tmp_path / "out.h5")])


def test_without_torch_geometric_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch_geometric", "torch_geometric.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"pyg:Karate: needs torch-geometric .* pip install"):
        COMMAND.call(["pyg:Karate", "-o", str(tmp_path / "out.h5")])


def test_data_sets_of_torch_geometric_itself(tmp_path: Path) -> None:
    import torch_geometric.datasets as library
    from torch_geometric.data import Batch, Data

    COMMAND.call(["pyg:KarateClub", "-o", str(tmp_path / "out.h5")])
    found, graph = contents(tmp_path / "out.h5"), library.KarateClub()[0]
    expected = np.zeros((34, 34))
    expected[graph.edge_index[1], graph.edge_index[0]] = 1
    np.testing.assert_array_equal(found.matrix, expected)
    np.testing.assert_array_equal(found.nodes.labels, graph.y)
    np.testing.assert_array_equal(found.nodes.features, graph.x)
    from_torch_geometric(library.KarateClub(), tmp_path / "set.h5")
    assert contents(tmp_path / "set.h5").store.fingerprint == found.store.fingerprint
    pair = [Data(x=graph.x, y=graph.y, edge_index=graph.edge_index[:, :n]) for n in (20, 30)]
    for name, graphs in (("list", pair), ("batch", Batch.from_data_list(pair))):
        from_torch_geometric(graphs, tmp_path / f"{name}.h5")
    stores = [contents(tmp_path / f"{name}.h5").store for name in ("list", "batch")]
    assert stores[0].fingerprint == stores[1].fingerprint
    torch.manual_seed(3)
    graph = library.FakeHeteroDataset(num_graphs=1, avg_num_nodes=20)[0]
    report = from_torch_geometric(graph, tmp_path / "out.h5")
    assert [kind.num_nodes for kind in report.node_types] == [
        graph[name].num_nodes for name in graph.node_types
    ]
    assert report.input_edges == sum(graph[kind].num_edges for kind in graph.edge_types)
