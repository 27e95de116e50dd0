"""The same small graph in every format gives the same store."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.graph_files import Contents, Little, contents, convert_to, python2_pickle

WRITERS: dict[str, tuple[str, Callable[[Little, Path], Path]]] = {
    "planetoid": ("planetoid", lambda g, p: g.write_planetoid(p)),
    "planetoid of Python 2": ("planetoid", lambda g, p: g.write_planetoid(p, python2_pickle)),
    "graphsaint": ("graphsaint", lambda g, p: g.write_graphsaint(p)),
    "ogb text": ("ogb", lambda g, p: g.write_ogb(p)),
    "ogb binary": ("ogb", lambda g, p: g.write_ogb_binary(p)),
    "npz": ("npz", lambda g, p: g.write_npz(p.with_suffix(".npz"))),
    "matrix market": ("matrix-market", lambda g, p: g.write_matrix_market(p)),
    "metis": ("metis", lambda g, p: g.write_metis(p)),
}
WITHOUT_NODES = ("matrix market", "metis")


@pytest.fixture
def little() -> Little:
    return Little()


@pytest.mark.parametrize("form", WRITERS)
def test_each_form_gives_the_graph(form: str, little: Little, tmp_path: Path) -> None:
    format_name, write = WRITERS[form]
    found = convert_to(tmp_path / "out.h5", write(little, tmp_path / "in"), format_name)
    np.testing.assert_array_equal(found.matrix, little.matrix.toarray())
    assert found.store.undirected
    assert not found.store.weighted("")
    if form not in WITHOUT_NODES:
        check_nodes(found, little)


def check_nodes(found: Contents, little: Little) -> None:
    assert found.nodes.features.dtype == np.float32
    np.testing.assert_array_equal(found.nodes.features, little.features)
    np.testing.assert_array_equal(found.nodes.labels, little.labels)
    np.testing.assert_array_equal(found.nodes.split, little.split)
    assert (found.store.num_classes, found.store.multi_label) == (3, False)


def test_forms_have_one_fingerprint(little: Little, tmp_path: Path) -> None:
    prints = set()
    for form, (format_name, write) in WRITERS.items():
        if form not in WITHOUT_NODES:
            source = write(little, tmp_path / form)
            prints.add(convert_to(tmp_path / "out.h5", source, format_name).store.fingerprint)
    assert len(prints) == 1


def test_provenance_names_format_files_and_options(little: Little, tmp_path: Path) -> None:
    source = little.write_graphsaint(tmp_path / "in")
    convert_to(tmp_path / "out.h5", source, "graphsaint", self_loops="add", dtype="float16")
    found = contents(tmp_path / "out.h5")
    assert found.store.provenance == {
        "command": "convert",
        "format": "graphsaint",
        "inputs": ["adj_full.npz", "feats.npy", "class_map.json", "role.json"],
        "options": {"self_loops": "add", "dtype": "float16"},
    }
    assert found.nodes.features.dtype == np.float16
    np.testing.assert_array_equal(np.diag(found.matrix), np.ones(12))
