"""Scores of given pairs, and the best targets of nodes, from a run directory."""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from pyarrow import parquet

from hpcgnn.comm import CollectiveInputError, ProcessGrid
from hpcgnn.graph.context import Context
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import GraphArrays, GraphStore, store_from_arrays
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.links import ranking
from hpcgnn.train.links.objective import LinkObjective
from hpcgnn.train.links.predictions import best_targets
from hpcgnn.train.links.requested_pairs import share_of
from hpcgnn.train.run.saved_model import open_saved_model
from tests.support import training

NUM_NODES = 40
Scores = Callable[[int, int], np.ndarray]


@pytest.fixture(scope="module")
def finished() -> dict[int, training.Run]:
    """Keep the runs by number of ranks, so that each is trained only once."""
    return {}


@pytest.fixture
def run(
    comm: MPI.Intracomm, tmp_path_factory: pytest.TempPathFactory, finished: dict[int, training.Run]
) -> training.Run:
    """Return a finished run on a graph whose nodes have names, with two relations."""
    if comm.size not in finished:
        directory = Path(comm.bcast(str(tmp_path_factory.mktemp("finished")), root=0))
        finished[comm.size] = train(comm, directory)
        comm.Barrier()
    return finished[comm.size]


def train(comm: MPI.Intracomm, directory: Path) -> training.Run:
    graph = training.make_graph(num_nodes=NUM_NODES).with_relations()
    path = directory / "named.h5"
    if comm.rank == 0:
        edges = {}
        for name in ("cites", "names"):
            rows, columns = graph.relations[name].nonzero()
            edges[name] = (columns, rows)
        store_from_arrays(
            directory / "plain.h5",
            GraphArrays(
                name="named",
                num_nodes=NUM_NODES,
                edges=edges,
                features=graph.features,
                names=[f"node {number:02}" for number in range(NUM_NODES)],
            ),
        )
        parts = max(4, comm.size)
        draw = np.random.default_rng(4).integers(0, parts, NUM_NODES)
        part = Partition(draw.astype(np.int32), parts)
        with GraphStore.open(directory / "plain.h5") as store:
            write_partitioned(store, path, part, method="block", seed=0)
    comm.Barrier()
    words = ("train.task=links", "train.epochs=3", "model.name=rgcn", "links.scorer=distmult")
    return training.train(comm, training.make_config(path, directory / "run", *words))


@pytest.fixture
def predict(
    comm: MPI.Intracomm,
    run: training.Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> training.Predict:
    # Pieces of seven nodes and blocks of two queries.
    monkeypatch.setattr(ranking, "_PIECE_ROWS", 7)
    monkeypatch.setattr(ranking, "BLOCK_BYTES", 7 * 2 * 4)
    return training.predict_with(comm, run, monkeypatch, capsys)


def expected(comm: MPI.Intracomm, run: training.Run) -> tuple[np.ndarray, set[Any]]:
    """Return scores (sources, relations, targets) by original id, and the edges of the graph."""
    saved = open_saved_model(run.path)
    with ProcessGrid(comm) as grid, torch.no_grad():
        links, _ = LinkObjective.load(Context.open(grid, saved.config, TraceRecorder.off()))
        model = saved.model(grid, links.make_model)
        rows = run.predictions()["embeddings"]
        ids, every = links.graph.products.node_ids, links.links.every
        ids_of = np.concatenate(comm.allgather(ids))
        edges = zip(ids_of[every.sources], ids_of[every.targets], every.relations, strict=True)
        known = {tuple(map(int, edge)) for edge in edges}
    x = torch.from_numpy(rows)
    relations = torch.arange(2)
    scores = model.scorer(x[:, None, None], x[None, None], relations[None, :, None])
    return scores.detach().numpy(), set().union(*comm.allgather(known))


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_scores_of_given_pairs(
    comm: MPI.Intracomm, comm_tmp_path: Path, run: training.Run, predict: training.Predict
) -> None:
    pairs = [(3, 7, 1), (7, 3, 0), (3, 3, 0), (3, 7, 1), (39, 0, 0)]
    table = comm_tmp_path / "pairs.csv"
    if comm.rank == 0:
        lines = [f"{('cites', 'names')[r]},node {s:02},node {d:02}" for s, d, r in pairs]
        table.write_text("\n".join(["relation,source,target", *lines, ""]))
    comm.Barrier()
    said = predict(comm_tmp_path / "out.csv", "--pairs", table)
    for ending in ("h5", "npy", "parquet"):
        predict(comm_tmp_path / f"out.{ending}", "--pairs", table)
    scores, _ = expected(comm, run)
    found = read_csv(comm_tmp_path / "out.csv")
    assert [(int(e["source"]), int(e["target"])) for e in found] == [p[:2] for p in pairs]
    assert [e["source_name"] for e in found] == [f"node {s:02}" for s, _, _ in pairs]
    assert [e["relation"] for e in found] == [("cites", "names")[r] for _, _, r in pairs]
    np.testing.assert_allclose(
        [float(e["score"]) for e in found], [scores[s, r, d] for s, d, r in pairs], rtol=1e-4
    )
    with h5py.File(comm_tmp_path / "out.h5") as file:
        assert file["relations"][:].tolist() == [b"cites", b"names"]
        assert file["relation"][:].tolist() == [r for _, _, r in pairs]
        np.testing.assert_allclose(file["score"][:], [float(e["score"]) for e in found], rtol=1e-6)
    if comm.rank == 0:
        assert said["rows"] == len(pairs)
    np.testing.assert_array_equal(np.load(comm_tmp_path / "out.ids.npy"), pairs)
    scores_in_npy = np.load(comm_tmp_path / "out.npy")
    np.testing.assert_allclose(scores_in_npy, [float(e["score"]) for e in found], rtol=1e-6)
    rows = parquet.read_table(comm_tmp_path / "out.parquet").to_pylist()
    assert [{k: str(v) for k, v in row.items() if k != "score"} for row in rows] == [
        {k: v for k, v in row.items() if k != "score"} for row in found
    ]


@pytest.mark.parametrize("with_known", [False, True])
def test_best_targets_of_nodes(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    run: training.Run,
    predict: training.Predict,
    with_known: bool,
) -> None:
    more = ("--with-known",) if with_known else ()
    chosen = ("--nodes", "node 05,node 00,node 11", "--top", 4, "--relation", "names", *more)
    predict(comm_tmp_path / "out.csv", *chosen)
    predict(comm_tmp_path / "all.csv", "--top", NUM_NODES, "--relation", "names", *more)
    scores, known = expected(comm, run)
    found, every = read_csv(comm_tmp_path / "out.csv"), read_csv(comm_tmp_path / "all.csv")
    assert [int(each["source"]) for each in found] == [5] * 4 + [0] * 4 + [11] * 4
    assert [int(each["source"]) for each in every] == sorted(int(e["source"]) for e in every)
    for source in range(NUM_NODES):
        left = scores[source, 1].copy()
        left[source] = -np.inf
        if not with_known:
            left[[d for s, d, r in known if (s, r) == (source, 1)]] = -np.inf
        best = np.sort(left[left > -np.inf])[::-1]
        mine = [each for each in every if int(each["source"]) == source]
        np.testing.assert_allclose([float(e["score"]) for e in mine], best, rtol=1e-4, atol=1e-6)
        ends = [int(each["target"]) for each in mine]
        np.testing.assert_allclose(left[ends], best, rtol=1e-4, atol=1e-6)
    # The same ends; a product of fewer rows may be rounded differently.
    of_every = {(each["source"], each["target"]): float(each["score"]) for each in every}
    for each in found:
        wanted = of_every[each["source"], each["target"]]
        assert float(each["score"]) == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("undirected", [False, True])
def test_best_targets_are_of_the_types_that_edges_lead_to(
    comm: MPI.Intracomm, comm_tmp_path: Path, undirected: bool
) -> None:
    graph = training.make_graph(num_nodes=NUM_NODES, directed=True).with_types()
    assert graph.types is not None
    sources, targets = np.flatnonzero(graph.types == 0), np.flatnonzero(graph.types == 1)
    ends = np.resize(targets, len(sources)), sources
    matrix = sp.csr_array((np.ones(len(sources)), ends), (NUM_NODES, NUM_NODES))
    store = training.write_store(comm, comm_tmp_path, replace(graph, relations={"buys": matrix}))
    words = ("train.task=links", "model.name=sage", f"graph.undirected={undirected}".lower())
    config = training.make_config(store, comm_tmp_path / "run", *words)
    with ProcessGrid(comm) as grid:
        links, _ = LinkObjective.load(Context.open(grid, config, TraceRecorder.off()))
        model = links.make_model(1)
        rows = best_targets(links, model, None, 0, NUM_NODES, with_known=True)
    pairs = {(int(graph.ids[s]), int(graph.ids[d])) for s in sources for d in targets}
    if undirected:
        pairs |= {(d, s) for s, d in pairs}
    found = comm.allgather([tuple(ends) for ends in rows.ids[:, :2].tolist()])
    assert sorted(each for part in found for each in part) == sorted(pairs)


def test_ranks_score_alike_many_pairs(comm: MPI.Intracomm) -> None:
    with ProcessGrid(comm) as grid:
        shares = comm.allgather(range(11)[share_of(grid, 11)])
    assert [pair for share in shares for pair in share] == list(range(11))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_embeddings_are_those_of_the_run(
    comm_tmp_path: Path, run: training.Run, predict: training.Predict
) -> None:
    predict(comm_tmp_path / "out.npy")
    np.testing.assert_array_equal(
        np.load(comm_tmp_path / "out.npy"), run.predictions()["embeddings"]
    )


def test_another_store_is_aggregated_over_whole(
    comm: MPI.Intracomm, comm_tmp_path: Path, run: training.Run, predict: training.Predict
) -> None:
    # The graph that the run aggregates over, as a separate store: predictions must be the same.
    saved = open_saved_model(run.path)
    with ProcessGrid(comm) as grid:
        links, _ = LinkObjective.load(Context.open(grid, saved.config, TraceRecorder.off()))
        ids = np.concatenate(comm.allgather(links.graph.products.node_ids))
        hidden = {
            frozenset(ids[list(ends)].tolist())
            for share in links.links.shares.values()
            for pairs in comm.allgather(np.stack([share.sources, share.targets]))
            for ends in pairs.T.tolist()
        }
    other, table = comm_tmp_path / "other.h5", comm_tmp_path / "pairs.csv"
    graph = training.make_graph(num_nodes=NUM_NODES).with_relations()
    if comm.rank == 0:
        edges = {}
        for name in ("cites", "names"):
            rows, columns = graph.relations[name].nonzero()
            kept = [frozenset(ends) not in hidden for ends in zip(rows, columns, strict=True)]
            edges[name] = (columns[kept], rows[kept])
        store_from_arrays(
            comm_tmp_path / "plain.h5",
            GraphArrays(
                name="other",
                num_nodes=NUM_NODES,
                edges=edges,
                features=graph.features,
            ),
        )
        parts = max(4, comm.size)
        draw = np.random.default_rng(6).integers(0, parts, NUM_NODES)
        part = Partition(draw.astype(np.int32), parts)
        with GraphStore.open(comm_tmp_path / "plain.h5") as store:
            write_partitioned(store, other, part, method="block", seed=0)
        table.write_text("relation,source,target\ncites,3,7\nnames,30,2\ncites,5,5\n")
    comm.Barrier()
    predict(comm_tmp_path / "out.csv", "--store", other, "--pairs", table)
    predict(comm_tmp_path / "e.npy", "--store", other)
    scores, _ = expected(comm, run)
    wanted = [scores[3, 0, 7], scores[30, 1, 2], scores[5, 0, 5]]
    found = [float(each["score"]) for each in read_csv(comm_tmp_path / "out.csv")]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    rows = np.load(comm_tmp_path / "e.npy")
    np.testing.assert_allclose(rows, run.predictions()["embeddings"], rtol=1e-4, atol=1e-6)
    predict(comm_tmp_path / "top.csv", "--store", other, "--top", "1", "--relation", "cites")
    sources = [int(each["source"]) for each in read_csv(comm_tmp_path / "top.csv")]
    assert sources == list(range(NUM_NODES))
    asked = ("--top", "1", "--relation", "cites", "--nodes", "3,77,90,91,92")
    with pytest.raises(CollectiveInputError, match=r"no node 77, 90, 91 and 1 more; give"):
        predict(comm_tmp_path / "none.csv", "--store", other, *asked)


def test_a_store_with_more_relations_does_not_fit_weights_of_one(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    graph = training.make_graph(num_nodes=NUM_NODES)
    several = graph.with_relations()
    one = replace(graph, relations={"cites": several.relations["cites"]})
    stores = comm_tmp_path / "one", comm_tmp_path / "other"
    if comm.rank == 0:
        for store in stores:
            store.mkdir()
    comm.Barrier()
    store, other = (
        training.write_store(comm, *each) for each in zip(stores, (one, several), strict=True)
    )
    words = ("train.task=links", "train.epochs=1", "links.scorer=distmult", "model.name=sage")
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *words))
    predict = training.predict_with(comm, run, monkeypatch, capsys)
    asked = ("--store", other, "--top", 1, "--relation", "cites")
    with pytest.raises(CollectiveInputError, match=r"predicted relations 3, but .* with 1"):
        predict(comm_tmp_path / "out.csv", *asked)


@pytest.mark.parametrize("ends", ["target", "both"])
def test_relations_of_another_store_in_another_order(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    ends: str,
) -> None:
    graph = training.make_graph(num_nodes=NUM_NODES).with_relations()
    backwards = replace(graph, relations=dict(reversed(graph.relations.items())))
    store, other = comm_tmp_path / "one", comm_tmp_path / "other"
    if comm.rank == 0:
        store.mkdir()
        other.mkdir()
    store = training.write_store(comm, store, graph)
    other = training.write_store(comm, other, backwards)
    # The encoder does not distinguish relations, but the scorer does.
    words = ("train.task=links", "train.epochs=3", "links.scorer=distmult", "model.name=sage")
    words += (f"links.ends={ends}", "train.learning_rate=0.1")
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *words))
    predict, table = training.predict_with(comm, run, monkeypatch, capsys), comm_tmp_path / "p.csv"
    if comm.rank == 0:
        last = "names reversed" if ends == "both" else "names"
        table.write_text(f"relation,source,target\ncites,3,7\n{last},3,7\n")
    comm.Barrier()
    found = []
    for path in (store, other):
        predict(comm_tmp_path / "out.csv", "--store", path, "--pairs", table)
        found.append([float(each["score"]) for each in read_csv(comm_tmp_path / "out.csv")])
    np.testing.assert_allclose(*found, rtol=1e-4)
    assert abs(found[0][0] - found[0][1]) > 1e-3 * abs(found[0][0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--top", 3), "--relation: several are predicted; give one of cites, names"),
        (("--top", 3, "--relation", "cite"), "unknown predicted relation: 'cite'; did you"),
        (("--top", 0, "--relation", "cites"), "--top = 0: give a number from 1 on"),
        (("--pairs", "nowhere.csv"), "--pairs nowhere.csv: No such file or directory"),
        (
            ("--what", "probabilities"),
            "--what probabilities does not work .* links have scores",
        ),
        (("--with-known",), "--with-known does not work with predicting nodes: .* give .*--top"),
        (("--relation", "cites"), "--relation does not work with predicting nodes: each node has"),
        (("--pairs", "p.csv", "--top", 3), "--top does not work with --pairs: they are the pairs"),
        (("--pairs", "p.csv", "--nodes", "1"), "--nodes does not work with --pairs: it has both"),
        (("--pairs", "p.csv", "--what", "embeddings"), "it has a row for each pair"),
    ],
    ids=lambda value: str(value)[:20],
)
@pytest.mark.max_ranks(2)
def test_faults_are_one_line(
    comm_tmp_path: Path, predict: training.Predict, options: tuple[object, ...], message: str
) -> None:
    with pytest.raises(CollectiveInputError, match=message):
        predict(comm_tmp_path / "out.csv", *options)
