"""A model of node types with other stores: it requires the same types, and keeps its scale."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError
from tests.support.training import Graph, make_config, make_graph, predict_with, train, write_store

GRAPH = make_graph(weighted=True).with_types()


def narrow(graph: Graph) -> Graph:
    part = graph.type_features["plain"]
    return replace(graph, type_features={**graph.type_features, "plain": part[:, :4]})


def renamed(graph: Graph) -> Graph:
    return replace(graph, type_features={f"my {k}": v for k, v in graph.type_features.items()})


def untyped(graph: Graph) -> Graph:
    return replace(graph, types=None, type_features={})


def labelled(graph: Graph) -> Graph:
    return replace(graph, labels=np.where(graph.types == 1, 0, graph.labels).astype(np.int32))


FITS = r"does not fit the model: "
OTHERS: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "narrow": (narrow, FITS + r"node types with features \(\('plain', 4\).*\('plain', 5\)"),
    "renamed": (renamed, FITS + r"node types .*'my plain'"),
    "untyped": (untyped, FITS + "features a node 7, .* trained with 0"),
    "labelled": (labelled, FITS + "labelled node types .*'bare'"),
}


def test_models_are_for_their_node_types(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = write_store(comm, comm_tmp_path, GRAPH)
    words = ("train.epochs=2", "train.label_augmentation=0.5", "graph.normalize_features=standard")
    run = train(comm, make_config(store, comm_tmp_path / "run", *words))
    predict = predict_with(comm, run, monkeypatch, capsys)
    predict(comm_tmp_path / "same.h5", "--what", "embeddings")
    for name, (change, message) in OTHERS.items():
        (comm_tmp_path / name).mkdir(exist_ok=True)
        wrong = write_store(comm, comm_tmp_path / name, change(GRAPH))
        with pytest.raises(CollectiveInputError, match=message):
            predict(comm_tmp_path / "other.h5", "--store", wrong)


def test_a_model_sees_another_graph_by_its_own_scale(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Scales are kept by names of types, which may look like paths.
    graph = replace(GRAPH, type_features={f"a/{k}.b": v for k, v in GRAPH.type_features.items()})
    store = write_store(comm, comm_tmp_path, graph)
    config = make_config(store, comm_tmp_path / "run", "graph.normalize_features=standard")
    run = train(comm, config)
    (comm_tmp_path / "shifted").mkdir(exist_ok=True)
    shifted = {k: v if v is None else v + 5 for k, v in graph.type_features.items()}
    other = write_store(comm, comm_tmp_path / "shifted", replace(graph, type_features=shifted))
    predict = predict_with(comm, run, monkeypatch, capsys)
    found = [comm_tmp_path / f"{name}.npy" for name in ("same", "other")]
    predict(found[0])
    predict(found[1], "--store", other, "--format", "npy")
    same, moved = (np.load(each) for each in found)
    np.testing.assert_allclose(same, run.predictions()["probabilities"], rtol=1e-6)
    assert abs(same - moved).max() > 0.01
