"""The binary packages of a Debian archive as a labelled, typed graph.

Nodes are the package names of one ``Packages`` index, in the order of their names; the first stanza
of a name counts. A node's class is its Section without the area (``contrib/net`` is ``net``); edges
run from a package to the package it refers to, in eleven relations:

depends, pre-depends, recommends, suggests, enhances, breaks, conflicts, replaces
    The first alternative of each entry of that field, where it is a package. A virtual name that
    is provided once stands for its provider, except in the last three fields, where a virtual name
    refers to nothing.
alternative
    The further alternatives (``a | b``: b) of any of those fields that are packages.
provided-by
    The providers of a virtual name: for a first alternative that is provided several times (by
    one package in two versions, too) and for a further alternative.
same-source
    From a package to the one with the shortest name (of equals, the first) among those built from
    the same source.

Versions, architectures and profiles are ignored, edges are unique, and none is a loop. The features
come from the one-line descriptions (`benchmarks.debian.bundle`).

Virtual packages may stand after them, as nodes of a type of their own: names that packages provide
and none has, such as ``mail-transport-agent``. Nodes are those virtual names that a package refers
to in a field other than Breaks, Conflicts and Replaces; they have no description, so no features,
and no section. Two relations join packages to them: ``needs``, for every reference to the name, as
first or further alternative, and ``provides``. They say what the relation provided-by of the
untyped graph says of pairs of packages, which is left out beside them; a first alternative that one
package alone provides still stands for that package in its field's relation too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.debian.index import Stanza, names_in
from hpcgnn.gallery.debian import RELATIONS

FIELDS = (
    "Depends",
    "Pre-Depends",
    "Recommends",
    "Suggests",
    "Enhances",
    "Breaks",
    "Conflicts",
    "Replaces",
)
NEGATIVE_FIELDS = frozenset({"Breaks", "Conflicts", "Replaces"})
Pairs: TypeAlias = set[tuple[int, int]]
Edges: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Archive:
    """What the graph takes from an index.

    Attributes
    ----------
    names, descriptions
        Name and one-line description of each package.
    classes
        Names of the sections, sorted.
    labels
        int32[n] position of each package's section in `classes`, -1 for none.
    edges
        Relation to (src, dst), int64, sorted by src, then dst.
    """

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    edges: Mapping[str, Edges]


def read_archive(stanzas: Iterable[Stanza]) -> Archive:
    """Return the graph of the packages in `stanzas`, in any order."""
    packages = first_of_names(stanzas)
    names, ordered = list(packages), list(packages.values())
    sections = [stanza.get("Section", "").rpartition("/")[2] for stanza in ordered]
    classes = sorted(set(sections) - {""})
    number = {section: label for label, section in enumerate(classes)} | {"": -1}
    pairs = _References(names, ordered).collect()
    pairs["same-source"] = _same_source(names, ordered)
    return Archive(
        names=tuple(names),
        descriptions=tuple(stanza.get("Description", "") for stanza in ordered),
        classes=tuple(classes),
        labels=np.array([number[section] for section in sections], np.int32),
        edges={relation: edge_arrays(pairs[relation]) for relation in RELATIONS},
    )


def first_of_names(stanzas: Iterable[Stanza]) -> dict[str, Stanza]:
    """Return the first stanza of every package by its name, in the order of the names."""
    packages: dict[str, Stanza] = {}
    for stanza in stanzas:
        packages.setdefault(stanza["Package"], stanza)
    return {name: packages[name] for name in sorted(packages)}


class _References:
    """Collects the edges that the packages' fields mean."""

    def __init__(self, names: list[str], stanzas: list[Stanza]) -> None:
        self._node = {name: node for node, name in enumerate(names)}
        self._stanzas = stanzas
        self._pairs: dict[str, Pairs] = {relation: set() for relation in RELATIONS}
        self._providers: dict[str, list[int]] = {}
        for node, stanza in enumerate(stanzas):
            for provided in names_in(stanza.get("Provides", "")):
                self._providers.setdefault(provided[0], []).append(node)

    def collect(self) -> dict[str, Pairs]:
        """Return the edges of every relation but same-source."""
        for node, stanza in enumerate(self._stanzas):
            for field in FIELDS:
                for first, *others in names_in(stanza.get(field, "")):
                    self._refer(node, field, first)
                    for name in others:
                        self._refer_further(node, field, name)
        return {
            relation: {(node, other) for node, other in pairs if node != other}
            for relation, pairs in self._pairs.items()
        }

    def _refer(self, node: int, field: str, name: str) -> None:
        """Add what a first alternative means."""
        targets = self._targets(field, name)
        relation = field.lower() if len(targets) == 1 else "provided-by"
        self._pairs[relation].update((node, target) for target in targets)

    def _refer_further(self, node: int, field: str, name: str) -> None:
        """Add what an alternative after the first means."""
        relation = "alternative" if name in self._node else "provided-by"
        self._pairs[relation].update((node, target) for target in self._targets(field, name))

    def _targets(self, field: str, name: str) -> list[int]:
        if name in self._node:
            return [self._node[name]]
        return [] if field in NEGATIVE_FIELDS else self._providers.get(name, [])


def _same_source(names: list[str], stanzas: list[Stanza]) -> Pairs:
    """Return the edges that join the packages of each source to one of them."""
    members: dict[str, list[int]] = {}
    for node, stanza in enumerate(stanzas):
        # "Source: name (version)" where the version differs; absent where the name is the same.
        source = stanza.get("Source", names[node]).split("(")[0].strip()
        members.setdefault(source, []).append(node)
    pairs: Pairs = set()
    for nodes in members.values():
        hub = min(nodes, key=lambda node: (len(names[node]), names[node]))
        pairs.update((node, hub) for node in nodes if node != hub)
    return pairs


def edge_arrays(pairs: Iterable[tuple[int, int]]) -> Edges:
    """Return the pairs, sorted, as two arrays."""
    both = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return both[:, 0].copy(), both[:, 1].copy()


@dataclass(frozen=True)
class VirtualPackages:
    """The virtual names, sorted, and the edges (package, virtual name) of both relations."""

    names: tuple[str, ...]
    needs: Edges
    provides: Edges


def read_virtual(stanzas: Iterable[Stanza]) -> VirtualPackages:
    """Return the virtual packages among `stanzas`, whose packages are numbered by their names."""
    packages = first_of_names(stanzas)
    providers: dict[str, set[int]] = {}
    users: dict[str, set[int]] = {}
    for node, stanza in enumerate(packages.values()):
        for provided in names_in(stanza.get("Provides", "")):
            providers.setdefault(provided[0], set()).add(node)
        for field in FIELDS:
            if field not in NEGATIVE_FIELDS:
                for name in (n for group in names_in(stanza.get(field, "")) for n in group):
                    users.setdefault(name, set()).add(node)
    names = sorted((providers.keys() & users.keys()) - packages.keys())

    def edges(of: dict[str, set[int]]) -> Edges:
        return edge_arrays((node, number) for number, name in enumerate(names) for node in of[name])

    return VirtualPackages(tuple(names), edges(users), edges(providers))
