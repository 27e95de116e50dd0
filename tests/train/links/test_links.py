"""Link prediction: the same for any number of ranks, without leaks, with exact metrics."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpcgnn.comm import CollectiveInputError, ProcessGrid, RowMap
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.kernels.mixing import uniform
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.sparse import HiddenEdges
from hpcgnn.storage import EdgeData, GraphArrays, GraphStore, Split, store_from_arrays
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.links import objective, ranking
from hpcgnn.train.links.edges import LinkEdges, Links, mixed
from hpcgnn.train.links.negatives import NEGATIVES, NodePool
from hpcgnn.train.links.objective import LinkObjective
from hpcgnn.train.links.ranking import (
    KnownTargets,
    LinkScores,
    Queries,
    area_under_curve,
    rank_metrics,
)
from tests.support.training import (
    MOVED,
    Graph,
    StopAfter,
    assert_same,
    lasting,
    make_config,
    make_graph,
    train,
    train_alone,
    write_store,
)

WORDS = (
    "train.task=links",
    "train.dtype=float64",
    "train.epochs=3",
    "links.train=0.3",
    "links.valid=0.2",
    "links.test=0.2",
    "links.ranked=20",
    "model.dropout=0.3",
)


def figures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return lines of metrics without values that depend on the ranks."""
    return [{k: v for k, v in lasting(row).items() if k not in MOVED} for row in rows]


@pytest.mark.several_ranks
@pytest.mark.parametrize(
    "setting",
    [
        ("model.name=sage", "links.scorer=dot", "exchange.method=joint"),
        (
            "model.name=rgcn",
            "links.scorer=distmult",
            "links.relations=['cites', 'names']",
            "links.negatives=relation",
        ),
        ("model.name=gat", "links.scorer=mlp", "links.loss=margin", "links.negatives=degree"),
        ("model.name=gcn", "links.scorer=complex", "links.width=6", "graph.undirected=true"),
        (
            "model.name=gcnii",
            "links.loss=cross_entropy",
            "links.num_negatives=3",
            "links.negatives=batch",
        ),
        ("types", "model.name=sage", "links.negatives=degree", "links.ranking=all"),
        (
            "types",
            "model.name=rgcn",
            "links.ends=both",
            "links.disjoint=false",
            "links.scorer=distmult",
        ),
    ],
    ids=lambda setting: setting[0],
)
def test_losses_and_metrics_do_not_depend_on_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, setting: tuple[str, ...]
) -> None:
    graph = make_graph(weighted=True).with_relations()
    if setting[0] == "types":
        graph, setting = graph.with_types(), setting[1:]
    graph = replace(graph, ids=np.random.default_rng(5).permutation(len(graph.ids)) * 7 - 30)
    words = (*WORDS, *setting, "run.save_predictions=false")
    random = write_store(comm, comm_tmp_path, graph)
    block = write_store(comm, comm_tmp_path, graph, method="block")
    together = train(comm, make_config(random, comm_tmp_path / "run", *words)).metrics
    alone = train_alone(comm, make_config(block, comm_tmp_path / "alone", *words)).metrics
    for mine, theirs in zip(figures(together), figures(alone), strict=True):
        assert mine.keys() == theirs.keys() > {"valid_mrr", "test_hits10", "test_auc", "valid_loss"}
        for name, value in mine.items():
            assert value == pytest.approx(theirs[name], rel=1e-9), name


def test_run_resumes_and_writes_embeddings(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    graph = make_graph(weighted=True)
    store = write_store(comm, comm_tmp_path, graph)
    words = (*WORDS, "run.checkpoint_every=1", "links.scorer=distmult")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *words))
    config = make_config(store, comm_tmp_path / "parts", *words)
    train(comm, config, StopAfter(2))
    parts = train(comm, config)
    assert_same(whole, parts)
    found = whole.predictions()
    assert found["embeddings"].shape == (len(graph.ids), 5)
    np.testing.assert_array_equal(found["node_id"], graph.ids)
    assert whole.summary["metric"] == "mrr"
    assert set(whole.summary["links"]) == {"train", "valid", "test"}


def random_graph(num_nodes: int, degree: int) -> Graph:
    """Return a graph whose edges nothing predicts: features and edges are independent."""
    rng = np.random.default_rng(7)
    rows = rng.integers(0, num_nodes, num_nodes * degree)
    columns = rng.integers(0, num_nodes, num_nodes * degree)
    adjacency = sp.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(num_nodes,) * 2)
    adjacency.data[:] = 1
    features = rng.normal(size=(num_nodes, 16)).astype(np.float32)
    graph = make_graph(num_nodes=num_nodes)
    return replace(graph, adjacency=adjacency, features=features)


@pytest.mark.max_ranks(2)
def test_edges_without_a_pattern_are_not_found(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(comm, comm_tmp_path, random_graph(900, 3))
    words = (
        *WORDS,
        "train.epochs=40",
        "train.evaluate_every=40",
        "model.hidden=16",
        "model.num_layers=1",
        "model.dropout=0",
        "run.save_predictions=false",
    )
    honest = train(comm, make_config(store, comm_tmp_path / "honest", *words)).metrics[-1]
    assert honest["test_auc"] == pytest.approx(0.5, abs=0.05)
    # The mean of 1 / rank among 21 is 0.174 by chance.
    assert honest["test_mrr"] == pytest.approx(0.174, abs=0.04)
    # The same run finds them if they stay in the graph, so the test would notice a leak.
    monkeypatch.setattr(HiddenEdges, "drop", lambda _self, pattern: pattern)
    leaking = train(comm, make_config(store, comm_tmp_path / "leaking", *words)).metrics[-1]
    assert leaking["test_auc"] > 0.7


def test_no_edge_of_a_pair_remains(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    graph = make_graph().with_relations()
    store = write_store(comm, comm_tmp_path, graph)
    words = (*WORDS, "links.relations=['cites']", "model.name=rgcn", "train.epochs=1")
    run = train(comm, make_config(store, comm_tmp_path / "run", *words))
    links = run.summary["links"]
    cites = graph.relations["cites"].tocoo()
    pairs = {(s, d) for s, d in zip(cites.col, cites.row, strict=True) if s != d}
    draw = {p: float(uniform(mixed(1, min(p), max(p)))[0]) for p in pairs}
    assert links["train"] == sum(value < 0.3 for value in draw.values())
    assert links["test"] == sum(0.5 <= value < 0.7 for value in draw.values())
    hidden = {frozenset(pair) for pair, value in draw.items() if value < 0.7}
    left = 0
    for matrix in graph.relations.values():
        entries = matrix.tocoo()
        left += sum(
            frozenset((s, d)) not in hidden
            for s, d in zip(entries.col.tolist(), entries.row.tolist(), strict=True)
        )
    # Each relation also has its reverse.
    assert run.summary["graph"]["num_edges"] == 2 * left


@pytest.mark.parametrize("undirected", [False, True])
def test_both_ends_are_predicted(
    comm: MPI.Intracomm, comm_tmp_path: Path, undirected: bool
) -> None:
    graph = make_graph().with_relations()
    store = write_store(comm, comm_tmp_path, graph)
    names = ("cites", "names")
    words = (
        *WORDS,
        "links.relations=['cites', 'names']",
        f"graph.undirected={str(undirected).lower()}",
    )
    found = {}
    for ends in ("target", "both"):
        config = make_config(store, comm_tmp_path / ends, *words, f"links.ends={ends}")
        with ProcessGrid(comm) as grid:
            task, hidden = LinkObjective.load(Context.open(grid, config, TraceRecorder.off()))
            row_map, ids = task.graph.row_map, task.graph.products.node_ids
            assert all(row_map.is_local(part.targets).all() for part in task.links.shares.values())
            ids = np.concatenate(comm.allgather(ids))
        parts = {**task.links.shares, "every": task.links.every}
        found[ends] = {
            name: sorted(
                row
                for rows in comm.allgather(
                    [ids[edges.sources], ids[edges.targets], edges.relations, edges.words]
                )
                for row in np.stack(rows, axis=1).tolist()
            )
            for name, edges in parts.items()
        }
        found[ends]["hidden"] = comm.allgather(hidden)
        shift = 0 if undirected else len(names)
        more = tuple(f"{name} reversed" for name in names if ends == "both" and not undirected)
        assert task.links.names == (*names, *more)
    for name in ("train", "valid", "test", "every"):
        edges, both = (np.array(found[ends][name]) for ends in ("target", "both"))
        assert len(edges) > 20
        assert len(np.unique(both[:, 3])) == len(both) == 2 * len(edges)
        reverses = edges[:, [1, 0, 2]] + [0, 0, shift]
        expected = np.concatenate([edges[:, :3], reverses])
        assert sorted(both[:, :3].tolist()) == sorted(expected.tolist())


def test_names_of_reversed_relations_are_new(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    graph = make_graph().with_relations()
    names = {"cites": "cites", "names": "cites reversed"}
    graph = replace(graph, relations={new: graph.relations[old] for old, new in names.items()})
    store = write_store(comm, comm_tmp_path, graph)
    words = (*WORDS, "links.ends=both", "train.epochs=1")
    with pytest.raises(CollectiveInputError, match="names reversed relations as some of"):
        train(comm, make_config(store, comm_tmp_path / "run", *words))
    train(comm, make_config(store, comm_tmp_path / "run", *words, "links.relations=['cites']"))


def test_training_edges_stay_in_the_graph(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    graph = make_graph()
    store = write_store(comm, comm_tmp_path, graph)
    words = ("links.disjoint=false", "links.train=0.8", "links.valid=0.1", "links.test=0.1")
    config = make_config(store, comm_tmp_path / "run", *WORDS, *words, "train.epochs=1")
    run = train(comm, config)
    entries = graph.adjacency.tocoo()
    pairs = np.stack([entries.row, entries.col])
    low, high = np.sort(graph.ids[pairs] if graph.ids is not None else pairs, axis=0)
    stays = (uniform(mixed(1, low, high)) < 0.8) | (low == high)
    assert run.summary["graph"]["num_edges"] == np.count_nonzero(stays)
    with pytest.raises(InputError, match=r"must be at most 1"):
        make_config(
            store, comm_tmp_path / "run", *WORDS, *words, "links.test=0.11", "links.stored=false"
        )
    with pytest.raises(InputError, match=r"must be below 1"):
        make_config(store, comm_tmp_path / "run", *WORDS, *words[1:], "links.stored=false")


def test_metrics_are_exact(comm: MPI.Intracomm) -> None:
    rng = np.random.default_rng(11)
    edges = rng.integers(0, 6, 40) / 2
    wrong = rng.integers(-3, 5, (40, 7)) / 2
    wrong[0, 0] = -0.0
    mine = np.arange(40) % comm.size == comm.rank
    with ProcessGrid(comm) as grid:
        scores = LinkScores.of(grid, edges[mine], wrong[mine], "float64")
        found = {**rank_metrics(grid, scores.ranks()), "auc": area_under_curve(grid, scores)}
        nothing = rank_metrics(grid, scores.ranks()[:0])
    with ProcessGrid(MPI.COMM_SELF) as alone:
        assert LinkScores.of(alone, edges, wrong, "float64").size == scores.size
    ranks = 1 + (wrong > edges[:, None]).sum(1) + (wrong == edges[:, None]).sum(1) / 2
    flat = wrong.reshape(-1)
    wins = (edges[:, None] > flat).sum() + (edges[:, None] == flat).sum() / 2
    expected = {
        "mrr": np.mean(1 / ranks),
        "hits1": np.mean(ranks <= 1),
        "hits10": np.mean(ranks <= 10),
        "auc": wins / (40 * 40 * 7),
    }
    assert found == pytest.approx(expected, rel=1e-12)
    assert nothing == {}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_node_with_a_huge_score_leaves_the_other_metrics_alone(
    comm: MPI.Intracomm, dtype: str
) -> None:
    rng = np.random.default_rng(5)
    edges, wrong = rng.normal(size=300) + 1, rng.normal(size=(300, 20))
    wrong[17, 3] = 1e9
    mine = np.arange(300) % comm.size == comm.rank
    with ProcessGrid(comm) as grid:
        scores = LinkScores.of(grid, edges[mine], wrong[mine], dtype)
        found = {**rank_metrics(grid, scores.ranks()), "auc": area_under_curve(grid, scores)}
    ranks = 1 + (wrong > edges[:, None]).sum(1)
    expected = {"mrr": np.mean(1 / ranks), "auc": np.greater.outer(edges, wrong).mean()}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e20])
def test_scores_that_differ_by_rounding_tie(comm: MPI.Intracomm, size: float) -> None:
    rounding = 1 + 1e-7 * np.random.default_rng(6).uniform(-1, 1, (40, 9))
    scores = size * np.repeat([-3.0, 0.0, 1e-3, 2.0], 10)[:, None] * rounding
    mine = np.arange(40) % comm.size == comm.rank
    with ProcessGrid(comm) as grid:
        found = LinkScores.of(grid, scores[mine, 0], scores[mine, 1:], "float32")
    np.testing.assert_array_equal(found.ranks(), np.full(mine.sum(), 5.0))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("links.relations=['cite']",), r"links.relations: .* has no relation 'cite'; did"),
        (("links.relations=['cites','cites']",), "links.relations = .*: must be different"),
        (("graph.relations=['cites','cites']",), "graph.relations = .*: must be different"),
        (("links.train=1e-9", "links.valid=0"), "no edge to train on among links.relations"),
        (("links.train=0.95",), r"links.train \+ links.valid \+ links.test = .* must be below 1"),
        (
            ("links.negatives=batch", "links.num_negatives=9999"),
            r"links.num_negatives = 9999: a batch has \d+ edges",
        ),
        (
            ("links.valid=0", "train.patience=3"),
            "train.patience = 3, but no edge chooses the model",
        ),
        (("links.scorer=complex", "model.hidden=5"), "needs an even links.width, not 5"),
        (("train.learning_rate=1e200",), "training diverges in epoch 0"),
    ],
)
def test_faults_are_one_line(
    comm: MPI.Intracomm, comm_tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph().with_relations())
    with pytest.raises(CollectiveInputError, match=message):
        train(comm, make_config(store, comm_tmp_path / "run", *WORDS, *words))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), None),
        (("sampling.budget=10",), "sampling.budget = 10: of 31 edges the last batch has one"),
        (("sampling.budget=10", "sampling.steps=4"), "the last batch has one"),
        (("sampling.budget=10", "sampling.steps=3"), None),
        (("sampling.budget=10", "links.negatives=uniform"), None),
        (("sampling.budget=10", "links.sampled=false"), None),
        (("sampling.budget=2",), "the last batch has one"),
        (("sampling.budget=3",), "the last batch has one"),
        (("sampling.budget=4",), None),
        (("sampling.budget=1",), "a batch has 1 edges, so that there are 0 other targets"),
    ],
)
def test_every_edge_of_a_batch_has_another(words: tuple[str, ...], message: str | None) -> None:
    sampled = ("links.sampled=true", "sampling.sampler=neighbour", "sampling.fan_outs=[2, 2]")
    batch = ("links.negatives=batch", "links.num_negatives=1", *words)
    config = make_config(Path("g.h5"), Path("run"), *WORDS, *sampled, *batch)
    fault = objective._fault(config, {"train": 31, "valid": 5})
    assert (message or "None") in str(fault)


def test_a_stored_split_is_the_split(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    graph = make_graph(num_nodes=120)
    path = comm_tmp_path / "g.h5"
    coo = graph.adjacency.tocoo()
    loops = coo.row == coo.col
    roles = np.random.default_rng(3).choice(4, coo.nnz, p=[0.1, 0.6, 0.1, 0.2]).astype(np.uint8)
    if comm.rank == 0:
        first = np.arange(coo.nnz) < 200
        store_from_arrays(
            comm_tmp_path / "plain.h5",
            GraphArrays(
                name="g",
                num_nodes=120,
                edges={
                    "a/b": (coo.col[first], coo.row[first]),
                    "c": (coo.col[~first], coo.row[~first]),
                },
                edge_data={"a/b": EdgeData(split=roles[first]), "c": EdgeData(split=roles[~first])},
                features=graph.features,
            ),
        )
        parts = max(4, comm.size)
        draw = np.random.default_rng(4).integers(0, parts, 120)
        part = Partition(draw.astype(np.int32), parts)
        with GraphStore.open(comm_tmp_path / "plain.h5") as store:
            write_partitioned(store, path, part, method="block", seed=0)
    comm.Barrier()
    words = (*WORDS, "model.name=rgcn", "run.save_predictions=false", "graph.reverse=false")
    run = train(comm, make_config(path, comm_tmp_path / "run", *words))
    links = run.summary["links"]
    assert links["valid"] == np.count_nonzero((roles == Split.VALID) & ~loops)
    assert links["test"] == np.count_nonzero((roles == Split.TEST) & ~loops)
    assert 0.1 < links["train"] / np.count_nonzero(roles == Split.TRAIN) < 0.5
    alone = train_alone(comm, make_config(path, comm_tmp_path / "alone", *words)).metrics
    for mine, theirs in zip(figures(run.metrics), figures(alone), strict=True):
        for name, value in mine.items():
            assert value == pytest.approx(theirs[name], rel=1e-9), name
    # Test edges of a relation that is not predicted are removed from the graph as well.
    one = train(comm, make_config(path, comm_tmp_path / "one", *words, "links.relations=['c']"))
    tested = {(a, b) for a, b, r in zip(coo.row, coo.col, roles, strict=True) if r >= Split.VALID}
    most = sum((a, b) not in tested for a, b in zip(coo.row, coo.col, strict=True))
    left = most - one.summary["links"]["train"]
    # Few edges have a reverse, which is removed with them.
    assert 0.9 * left < one.summary["graph"]["num_edges"] <= left
    drawn = train(comm, make_config(path, comm_tmp_path / "drawn", *words, "links.stored=false"))
    assert drawn.summary["links"] != links
    # The shares of validation and test edges have no effect here.
    most_edges = (*words, "links.train=0.95", "links.test=0.9")
    many = train(comm, make_config(path, comm_tmp_path / "many", *most_edges)).summary["links"]
    assert many["train"] > 2 * links["train"]
    assert (many["valid"], many["test"]) == (links["valid"], links["test"])
    with pytest.raises(InputError, match=r"links.train \+ links.valid .* must be below 1"):
        make_config(path, comm_tmp_path / "drawn", *most_edges, "links.stored=false")


@pytest.mark.parametrize(
    "setting",
    [
        ("model.name=rgcn", "links.scorer=distmult", "links.relations=['cites', 'names']"),
        ("model.name=sage", "links.scorer=mlp", "graph.undirected=true"),
        ("model.name=sage", "links.scorer=complex", "links.width=6"),
        ("types", "model.name=sage"),
        ("types", "model.name=sage", "links.scorer=complex", "links.width=6", "links.ends=both"),
    ],
    ids=lambda setting: setting[0],
)
def test_ranks_among_all_nodes_are_exact(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: tuple[str, ...],
) -> None:
    # Blocks of two queries and pieces of three nodes.
    monkeypatch.setattr(ranking, "_PIECE_ROWS", 3)
    monkeypatch.setattr(ranking, "BLOCK_BYTES", 3 * 2 * 8)
    graph = replace(make_graph(), ids=np.random.default_rng(5).permutation(61) * 7 - 30)
    graph = graph.with_relations()
    if setting[0] == "types":
        graph, setting = graph.with_types(), setting[1:]
    store = write_store(comm, comm_tmp_path, graph)
    words = (*WORDS, *setting, "links.ranking=all", "run.save_predictions=false")
    config = make_config(store, comm_tmp_path / "run", *words)
    with ProcessGrid(comm) as grid, torch.no_grad():
        links, _ = LinkObjective.load(Context.open(grid, config, TraceRecorder.off()))
        model = links.make_model(3)
        found = links.evaluate(model).values
        embeddings = model(links.graph.view, links.graph.features, None)
        # All edges on every rank, in the order of the rows.
        shares = comm.allgather((embeddings, links.links.every, links.links.shares["test"]))
        ids_of = np.concatenate(comm.allgather(links.graph.products.node_ids))
    # By original ids, independently of the task's rows.
    kinds = np.zeros(61) if graph.types is None else graph.types[np.argsort(graph.ids)]
    kinds = kinds[np.searchsorted(np.sort(graph.ids), ids_of)]
    rows = torch.cat([each[0] for each in shares])
    names = ("sources", "targets", "relations")
    every, tested = (
        [np.concatenate([getattr(each[place], name) for each in shares]) for name in names]
        for place in (1, 2)
    )
    known = set(zip(*every, strict=True))
    if "graph.undirected=true" in setting:
        known |= {(d, s, r) for s, d, r in known}
    ranks: dict[str, list[float]] = {"": [], "raw_": []}
    for s, d, r in zip(*tested, strict=True):
        relation = torch.tensor(r)
        scores = model.scorer(rows[s], rows, relation).detach().numpy()
        step = 1e-9
        for prefix, mine in ranks.items():
            others = [
                scores[n]
                for n in range(61)
                if n not in (s, d) and (prefix or (s, n, r) not in known) and kinds[n] == kinds[d]
            ]
            wins = np.sum(np.array(others) > scores[d] + step)
            ties = np.sum(np.abs(np.array(others) - scores[d]) <= step)
            mine.append(1 + wins + ties / 2)
    for prefix, mine in ranks.items():
        assert found[f"test_{prefix}mrr"] == pytest.approx(np.mean(1 / np.array(mine)), rel=1e-12)
        assert found[f"test_{prefix}hits10"] == np.mean(np.array(mine) <= 10)
    assert found["test_mrr"] > found["test_raw_mrr"]


def test_no_reverse_of_a_test_edge_is_trained(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    # Training edges i -> i + 1; every third has its reverse for testing, in a or in b.
    sources = np.arange(59)
    back = sources[::3]
    same, train_role, test_role = back % 2 == 0, np.uint8(Split.TRAIN), np.uint8(Split.TEST)
    a = np.append(sources, back[same] + 1), np.append(sources + 1, back[same])
    roles = np.append(np.full(59, train_role), np.full(same.sum(), test_role))
    if comm.rank == 0:
        of_b = EdgeData(split=np.full((~same).sum(), test_role))
        edges = {"a": a, "b": (back[~same] + 1, back[~same])}
        data = {"a": EdgeData(split=roles), "b": of_b}
        features = np.random.default_rng(2).normal(size=(60, 3)).astype(np.float32)
        graph = GraphArrays(name="g", num_nodes=60, edges=edges, edge_data=data, features=features)
        store_from_arrays(comm_tmp_path / "plain.h5", graph)
        parts = max(4, comm.size)
        part = np.random.default_rng(4).integers(0, parts, 60).astype(np.int32)
        with GraphStore.open(comm_tmp_path / "plain.h5") as store:
            write_partitioned(
                store, comm_tmp_path / "g.h5", Partition(part, parts), method="block", seed=0
            )
    comm.Barrier()
    words = (*WORDS, "train.epochs=1", "links.train=0.999", "links.valid=0", "links.test=0")
    for undirected, count in (("true", 59 - same.sum()), ("false", 59)):
        config = make_config(
            comm_tmp_path / "g.h5",
            comm_tmp_path / undirected,
            *words,
            f"graph.undirected={undirected}",
            "run.save_predictions=false",
        )
        assert train(comm, config).summary["links"] == {
            "train": count,
            "valid": 0,
            "test": len(back),
        }


def test_a_known_target_counts_once(comm: MPI.Intracomm) -> None:
    # A stored split of an undirected graph may hold both 0 -> 1 and 1 -> 0.
    row_map = RowMap(np.append(np.arange(comm.size) * 3 // comm.size, 3), comm.rank)
    owned = np.array([row_map.start <= target < row_map.stop for target in (1, 0, 2)])
    ends = [np.array(ends)[owned] for ends in ([0, 1, 0], [1, 0, 2])]
    nothing = np.zeros(len(ends[0]), np.int64)
    links = Links(("r",), LinkEdges(*ends, nothing, nothing), {}, both_ways=True, types=None)
    with ProcessGrid(comm) as grid:
        queries = Queries(np.array([0, 1]), np.zeros(2, np.int64))
        known_targets = KnownTargets.of(grid, row_map, links, queries)
    query_of, targets = known_targets.between(slice(0, 2), 0, 3)
    assert list(zip(query_of.tolist(), targets.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 0)]


@pytest.mark.parametrize("name", ["uniform", "degree", "relation"])
def test_wrong_ends_are_of_the_type_of_the_right_one(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str
) -> None:
    graph = make_graph().with_relations().with_types()
    store = write_store(comm, comm_tmp_path, graph)
    config = make_config(store, comm_tmp_path / "run", *WORDS, f"links.negatives={name}")
    with ProcessGrid(comm) as grid:
        links, _ = LinkObjective.load(Context.open(grid, config, TraceRecorder.off()))
        pairs = links.pairs.trained(1, 0)
        tested = [each.pairs for each in links.pairs.tested.values()]
        found = [pairs, *tested]
        ids_of = np.concatenate(comm.allgather(links.graph.products.node_ids))
    for needed in found if name == "uniform" else tested:
        # Ranked against itself, the best edge would not be the first.
        assert (needed.wrong != needed.targets[:, None]).all()
    types = dict(zip(graph.ids.tolist(), graph.types.tolist(), strict=True))
    seen = set()
    for needed in found:
        kinds = np.array([types[each] for each in ids_of[needed.rows].tolist()] or [0])
        assert (kinds[needed.wrong] == kinds[needed.targets][:, None]).all()
        seen |= {(int(a), int(b)) for a, b in zip(needed.targets, needed.wrong[:, 0], strict=True)}
    assert comm.allreduce(sum(a != b for a, b in seen)) > 0


@pytest.mark.parametrize("name", ["relation", "batch"])
def test_wrong_ends_are_of_their_kind(comm: MPI.Intracomm, comm_tmp_path: Path, name: str) -> None:
    store = write_store(comm, comm_tmp_path, make_graph().with_relations())
    config = make_config(store, comm_tmp_path / "run", *WORDS, f"links.negatives={name}")
    with ProcessGrid(comm) as grid:
        links, _ = LinkObjective.load(Context.open(grid, config, TraceRecorder.off()))
        trained, graph = links.links.shares["train"], links.graph
        ends = NodePool(
            comm,
            graph.row_map,
            graph.products.node_ids,
            trained,
            len(links.links.names),
            links.links.types,
        )
        wrong = NEGATIVES[name](ends).draw(trained, 3, (1, 0))
        again = NEGATIVES[name](ends).draw(trained, 3, (1, 1))
    gathered = comm.allgather((trained.targets, trained.relations, wrong))
    targets, relations, drawn = (np.concatenate(each) for each in zip(*gathered, strict=True))
    assert drawn.shape == (len(targets), 3)
    for relation in np.unique(relations):
        there = np.unique(targets[relations == relation])
        inside = np.isin(drawn[relations == relation], there)
        assert inside.all() if name == "relation" else not inside.all()
    if name == "batch":
        # Each end is used about three times: edges of a batch exchange theirs.
        times = np.bincount(drawn.reshape(-1), minlength=61)
        expected = 3 * np.bincount(targets, minlength=61)
        assert np.abs(times - expected).sum() <= 2 * 3 * 3
    assert comm.allreduce(int((wrong != again).sum())) > 0


def test_a_run_that_took_the_higher_id_as_target_does_not_go_on(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(directed=False))
    config = make_config(store, comm_tmp_path / "run", *WORDS)
    with monkeypatch.context() as earlier:
        facts_of = objective.link_facts
        earlier.setattr(
            objective, "link_facts", lambda *each: replace(facts_of(*each), directions="")
        )
        train(comm, config, StopAfter(2))
    with pytest.raises(CollectiveInputError, match="took the higher id of an undirected edge"):
        train(comm, config)
