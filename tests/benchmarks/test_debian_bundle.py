import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.debian import __main__ as command
from benchmarks.debian.archive import Archive, read_archive, read_virtual
from benchmarks.debian.bundle import (
    build_bundle,
    description_features,
    encode_virtual,
    quantise,
    tfidf,
    words,
)
from benchmarks.debian.index import parse_stanzas, read_index
from hpcgnn.errors import InputError
from hpcgnn.gallery.debian import RELATIONS, decode_packages, decode_virtual

TEXT = """\
Package: web-server
Source: web (1.2)
Section: httpd
Depends: libweb1 (>= 1), mailer | sendmail, only-virtual, missing
Pre-Depends: libweb1
Recommends: web-server
Conflicts: mailer, sendmail
Replaces: only-virtual

Package: libweb1
Source: web
Section: non-free/libs
Provides: only-virtual (= 1)

Package: postfix
Section: mail
Provides: mailer, twice (= 1), twice (= 2)
Suggests: twice

Package: exim
Section: mail
Provides: mailer
Enhances: postfix | libweb1 | mailer

Package: sendmail
Section: mail
Breaks: exim

Package: web
Depends: twice

Package: exim
Section: misc
Depends: web
"""


@pytest.fixture(scope="module")
def archive() -> Archive:
    return read_archive(parse_stanzas(TEXT.splitlines(), Path("Packages")))


def edges_of(archive: Archive, relation: str) -> set[tuple[str, str]]:
    src, dst = archive.edges[relation]
    return {(archive.names[s], archive.names[d]) for s, d in zip(src, dst, strict=True)}


def test_nodes_are_sorted_names_and_classes_are_sections(archive: Archive) -> None:
    assert archive.names == ("exim", "libweb1", "postfix", "sendmail", "web", "web-server")
    assert archive.classes == ("httpd", "libs", "mail")
    assert archive.labels.tolist() == [2, 1, 2, 2, -1, 0]


@pytest.mark.parametrize(
    ("relation", "expected"),
    [
        ("depends", {("web-server", "libweb1")}),
        ("pre-depends", {("web-server", "libweb1")}),
        ("recommends", set()),
        ("suggests", set()),
        ("enhances", {("exim", "postfix")}),
        ("breaks", {("sendmail", "exim")}),
        ("conflicts", {("web-server", "sendmail")}),
        ("replaces", set()),
        ("alternative", {("web-server", "sendmail"), ("exim", "libweb1")}),
        (
            "provided-by",
            {("web-server", "exim"), ("web-server", "postfix"), ("exim", "postfix")}
            | {("web", "postfix")},
        ),
        ("same-source", {("web-server", "web"), ("libweb1", "web")}),
    ],
)
def test_edges_follow_their_definitions(
    archive: Archive, relation: str, expected: set[tuple[str, str]]
) -> None:
    assert edges_of(archive, relation) == expected


def test_virtual_packages_are_nodes(archive: Archive) -> None:
    virtual = read_virtual(parse_stanzas(TEXT.splitlines(), Path("Packages")))
    assert virtual.names == ("mailer", "only-virtual", "twice")
    found = [
        {(archive.names[node], virtual.names[number]) for node, number in zip(*ends, strict=True)}
        for ends in (virtual.needs, virtual.provides)
    ]
    assert found[0] == {
        ("exim", "mailer"), ("web-server", "mailer"), ("web-server", "only-virtual"),
        ("postfix", "twice"), ("web", "twice"),
    }  # fmt: skip
    assert found[1] == {
        ("exim", "mailer"), ("postfix", "mailer"), ("postfix", "twice"), ("libweb1", "only-virtual")
    }  # fmt: skip
    names, edges = decode_virtual(encode_virtual(virtual, 6))
    assert names == virtual.names
    assert np.array_equal(edges["needs"], virtual.needs)
    assert np.array_equal(edges["provides"], virtual.provides)


def test_own_name_and_plurals_are_left_out() -> None:
    assert words("libfoo-games", "Games of foo: 3 libraries for libfoo's class") == [
        "of",
        "foo",
        "library",
        "for",
        "class",
    ]


def test_tfidf_rows_have_length_one_or_zero() -> None:
    matrix = tfidf([["a", "a", "b"], ["b", "rare"], [], ["a", "b"]], 2)
    assert matrix.shape == (4, 2)
    lengths = np.sqrt(matrix.multiply(matrix).sum(axis=1))
    assert np.asarray(lengths).ravel() == pytest.approx([1, 1, 0, 1])
    assert matrix[0, 0] > matrix[0, 1]


def descriptions(count: int) -> tuple[list[str], list[str]]:
    generator = np.random.default_rng(313)
    vocabulary = [f"word{letter}x" for letter in "abcdefghijklmno"]
    texts = [" ".join(generator.choice(vocabulary, 5)) for _ in range(count)]
    return [f"package{number}" for number in range(count)], texts


def test_features_are_the_leading_directions_with_fixed_signs() -> None:
    names, texts = descriptions(80)
    features = description_features(names, texts, 6, seed=4)
    again = description_features(names, texts, 6, seed=99)
    assert np.allclose(features, again, atol=1e-9)
    dense = tfidf([words(*pair) for pair in zip(names, texts, strict=True)], 5).toarray()
    expected = np.linalg.svd(dense, compute_uv=False)[:6]
    assert np.linalg.norm(features, axis=0) == pytest.approx(expected)


def test_too_many_features_are_one_line() -> None:
    with pytest.raises(InputError, match="15 features need more than 20 packages with 11 common"):
        description_features(*descriptions(20), 15, seed=4)
    with pytest.raises(InputError, match="0 features: give at least 1"):
        description_features(*descriptions(20), 0, seed=4)


def test_quantised_features_are_close_and_of_unit_size() -> None:
    features = np.random.default_rng(8).standard_normal((500, 4)) * [8, 4, 2, 1]
    features[:, 3] = 0
    levels, steps = quantise(features)
    restored = levels * steps
    assert restored.dtype == np.float32
    assert np.sqrt(np.mean(restored**2)) == pytest.approx(1, abs=0.01)
    scale = np.sqrt(np.mean(features**2))
    assert np.all(np.abs(restored * scale - features) <= 0.5001 * steps * scale)


def test_an_index_becomes_a_bundle_and_comes_back(tmp_path: Path) -> None:
    names, texts = descriptions(60)
    stanzas = [
        f"Package: {name}\nSection: s{number % 3}\nDescription: {text}\nDepends: package0"
        for number, (name, text) in enumerate(zip(names, texts, strict=True))
    ]
    index = tmp_path / "Packages"
    index.write_text("\n\n".join(stanzas))
    bundle = build_bundle(read_index(index), 5)
    back, archive = decode_packages(bundle.encode()), bundle.archive
    assert np.array_equal(back.features, bundle.levels * bundle.steps)
    assert np.array_equal(back.labels, archive.labels)
    assert back.node_names == archive.names == tuple(sorted(names))
    assert tuple(back.edges) == tuple(archive.edges) == RELATIONS
    for relation in RELATIONS:
        assert np.array_equal(back.edges[relation], archive.edges[relation])
    assert back.edges["depends"][0].size == 59
    assert bundle.encode() == bundle.encode()


def test_the_command_builds_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, texts = descriptions(40)
    index, out, virtual = (tmp_path / name for name in ("Packages", "p.npz.xz", "v.npz.xz"))
    index.write_text(
        "\n\n".join(
            f"Package: {name}\nSection: s\nDescription: {text}\nProvides: v\nDepends: v"
            for name, text in zip(names, texts, strict=True)
        )
    )
    words = ["debian", str(index), "-o", str(out), "--features", "4", "--virtual", str(virtual)]
    monkeypatch.setattr(sys, "argv", words)
    command.main()
    assert decode_packages(out.read_bytes()).features.shape == (40, 4)
    found, edges = decode_virtual(virtual.read_bytes())
    assert found == ("v",)
    assert [ends[0].tolist() for ends in edges.values()] == [list(range(40))] * 2
