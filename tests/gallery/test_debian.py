import hashlib
from importlib import resources

import numpy as np

from hpcgnn import gallery
from hpcgnn.gallery.debian import RELATIONS

DIGEST = "b0334dbedceb00e7838522a0106820d58002daab3d994d99110ec5ad3d0531f3"


def test_the_bundled_graph_is_whole() -> None:
    file = resources.files("hpcgnn.gallery") / "data" / "debian-packages.npz.xz"
    content = file.read_bytes()
    assert len(content) < 12_000_000
    assert hashlib.sha256(content).hexdigest() == DIGEST
    graph = gallery.debian_packages()
    assert graph.num_nodes == len(graph.node_names) == 63_436
    assert len(graph.class_names) == 58
    sizes = [src.size for src, _ in graph.edges.values()]
    assert tuple(graph.edges) == RELATIONS
    assert sizes == [263100, 961, 27938, 21787, 1755, 5739, 1509, 3607, 5820, 24619, 29267]
    assert graph.features.shape == (63_436, 256)
    assert graph.features.dtype == np.float32
    assert np.bincount(graph.split).tolist() == [0, 38_061, 12_687, 12_688]


def test_the_bundled_graph_with_virtual_packages() -> None:
    graph, plain = gallery.debian_packages(virtual=True), gallery.debian_packages()
    assert np.bincount(graph.types).tolist() == [63_436, 4_823]
    assert graph.features is None
    assert graph.type_features["package"].shape == (63_436, 256)
    assert graph.type_features["virtual"] is None
    assert set(graph.edges) == {*RELATIONS, "needs", "provides"} - {"provided-by"}
    assert [graph.edges[name][0].size for name in ("needs", "provides")] == [35_255, 6_345]
    for relation in ("needs", "provides"):
        src, dst = graph.edges[relation]
        assert set(graph.types[src]) == {0}
        assert set(graph.types[dst]) == {1}
    provides = set(zip(*graph.edges["provides"], strict=True))
    name_of = dict(enumerate(graph.node_names))
    providers = {name_of[p] for p, v in provides if name_of[v] == "mail-transport-agent"}
    assert {"postfix", "exim4-daemon-light"} <= providers
    assert np.array_equal(graph.labels[:63_436], plain.labels)
    assert set(graph.labels[63_436:]) == {-1}
    assert set(graph.split[63_436:]) == {0}
