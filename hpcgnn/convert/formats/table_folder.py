"""Folders of tables: a `graph.toml` lists node types and relations with their tables."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.comm import RankGroup
from hpcgnn.convert.nodes import edge_ends, join_types, relation_names
from hpcgnn.convert.read.files import MOST_DESCRIPTION_BYTES, read_nested
from hpcgnn.convert.source import (
    ConvertOptions,
    EdgeStream,
    GraphSource,
    TypeRange,
)
from hpcgnn.convert.tables.edges import USUAL, EdgeColumnNames, EdgeFiles, edge_chunks, open_edges
from hpcgnn.convert.tables.ids import Index, Numbers, find_index
from hpcgnn.convert.tables.node_data import count_rows, read_nodes
from hpcgnn.convert.tables.nodes import NodeTables, open_nodes
from hpcgnn.errors import InputError


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the graph described by a file or by the graph.toml of a folder; `InputError`."""
    file = path if path.is_file() else path / "graph.toml"
    tables = read_nested(file, tomllib.loads, "TOML text", MOST_DESCRIPTION_BYTES)
    return Description(file, tables).read(path, options)


@dataclass(frozen=True, slots=True)
class Description:
    """The tables that a `file` describes, in the form of a graph.toml, and what is `ignored`."""

    file: Path
    tables: Mapping[str, Any]
    ignored: tuple[str, ...] = ()

    def read(self, path: Path, options: ConvertOptions) -> GraphSource:
        """Read the graph; `path` is what the user gave. Raises `InputError`."""
        check_keys(self.file, self.tables, {"name", "undirected", "nodes", "edges"})
        edges = [self._edges(name, table) for name, table in self._section("edges").items()]
        if not edges:
            raise InputError(f'{self.file}: names no [edges."SOURCE,RELATION,TARGET"]; add one')
        nodes = {name: self._nodes(name, table) for name, table in self._section("nodes").items()}
        for edge in edges:
            for name in (edge.kind[0], edge.kind[2]):
                nodes.setdefault(name, NodeTables())
        indices = self._indices(nodes, edges, options, as_names=False)
        if len(nodes) > 1 and any(
            index.named or index.nodes().original_id is not None for index in indices.values()
        ):
            # The store has one list of ids, where numbers of several types would be ambiguous.
            indices = self._indices(nodes, edges, options, as_names=True)
        named = {name: index.named for name, index in indices.items()}
        nodes = {name: tables.with_ids(named=named[name]) for name, tables in nodes.items()}
        edges = [edge.with_ids(named=named[edge.kind[0]]) for edge in edges]
        counts = {name: len(index) for name, index in indices.items()}
        relations = relation_names(edge.kind for edge in edges)
        by_name = {relations[edge.kind]: edge for edge in edges}
        parts = {name: read_nodes(tables, indices[name], options) for name, tables in nodes.items()}
        if len(parts) > 1:
            joined = join_types(parts, counts, str(self.file))
        else:
            (joined,) = parts.values()
        inputs = [file.table.path for edge in edges for file in edge.files]
        inputs += [path for tables in nodes.values() for path in tables.paths]
        ignored = [*self.ignored]
        ignored += [
            f"{name}: {column}" for name, edge in by_name.items() for column in edge.ignored()
        ]
        for tables in nodes.values():
            ignored += tables.ignored()
        plain = len(counts) == len(by_name) == 1
        if not isinstance(graph_name := self.tables.get("name", ""), str):
            raise InputError(f"{self.file}: name = {graph_name!r} must be a text")
        if not isinstance(undirected := self.tables.get("undirected", False), bool):
            raise InputError(f"{self.file}: undirected = {undirected!r} must be true or false")
        return GraphSource(
            path=path,
            edges=partial(
                _typed_stream,
                by_name,
                indices,
                edge_ends(relations, counts),
                options.ranks,
            ),
            inputs=(self.file, *inputs),
            relations=("",) if plain else tuple(by_name),
            num_nodes=sum(counts.values()),
            counted=True,
            columns={("" if plain else name): edge.columns for name, edge in by_name.items()},
            name=graph_name,
            undirected=undirected,
            nodes=joined,
            ignored=tuple(ignored),
        )

    def _indices(
        self,
        nodes: Mapping[str, NodeTables],
        edges: Sequence[EdgeFiles],
        options: ConvertOptions,
        *,
        as_names: bool,
    ) -> dict[str, Index]:
        indices: dict[str, Index] = {}
        options = replace(options, names=True) if as_names else options
        for name, tables in nodes.items():
            ends = [end for edge in edges if edge.kind[0] == name for end in edge.ends("src")]
            ends += [end for edge in edges if edge.kind[2] == name for end in edge.ends("dst")]
            if as_names and tables and not tables.ids:
                raise InputError(
                    f"{self.file}: the nodes of {name!r} have no ids where others have names; "
                    "give their table a column id"
                )
            index = find_index(
                tables.ids, ends, options, relabel=not tables, without_ids=tables.lack_of_ids
            )
            if index is None:
                tables = tables.with_ids(named=False)
                rows = count_rows(read_nodes(tables, None, options), tables, options.ranks)
                index = Numbers(np.arange(rows))
            indices[name] = index
        return indices

    def _section(self, name: str) -> dict[str, Any]:
        section = self.tables.get(name, {})
        if not isinstance(section, dict) or not all(isinstance(v, dict) for v in section.values()):
            raise InputError(f"{self.file}: [{name}] must hold tables such as [{name}.NAME]")
        return section

    def _words(
        self, table: Mapping[str, Any], keys: Sequence[str], where: str
    ) -> dict[str, tuple[str, ...]]:
        """Return the values of a table's keys, those of `keys` as column names; `InputError`."""
        check_keys(self.file, table, {"file", "files", *keys}, f" in [{where}]")
        words_of = {}
        for key, value in table.items():
            words = value if isinstance(value, list) else [value]
            if key in keys and not all(type(word) in (str, int) for word in words):
                raise InputError(
                    f'{self.file}: [{where}]: {key} = {value!r} names no columns; give "NAME"'
                )
            words_of[key] = tuple(map(str, words)) if key in keys else tuple(words)
        return words_of

    def _paths(self, words: Mapping[str, tuple[str, ...]], where: str) -> list[Path]:
        """Return the files of a table, whose names may have wildcards."""
        files = words.get("files", words.get("file", ()))
        if not files or not all(isinstance(file, str) for file in files):
            raise InputError(f'{self.file}: [{where}] needs files = ["FILE", ...]')
        paths = []
        for file in files:
            wild = set("*?[") & set(file)
            matches = sorted(self.file.parent.glob(file)) if wild else [self.file.parent / file]
            if not matches:
                raise InputError(f"{self.file}: [{where}]: no file is called {file}; correct it")
            paths += matches
        return paths

    def _edges(self, name: str, table: dict[str, Any]) -> EdgeFiles:
        where = f'edges."{name}"'
        words = self._words(table, ("src", "dst", "weight", "features"), where)
        if name.count(",") != 2 or not all(name.split(",")):
            raise InputError(f"{self.file}: [{where}] must be named SOURCE,RELATION,TARGET")
        source, relation, target = name.split(",")
        named = [f"{role}={words[role][0]}" for role in ("src", "dst", "weight") if role in words]
        if named and not {"src", "dst"} <= set(words):
            roles = " and ".join(role for role in ("src", "dst", "weight") if role in words)
            raise InputError(f"{self.file}: [{where}] names only {roles}: name src and dst")
        paths, section = self._paths(words, where), f"{self.file}: [{where}]"
        features = words.get("features", ())
        more = EdgeColumnNames(features)
        return open_edges((source, relation, target), paths, named or None, USUAL, more, section)

    def _nodes(self, name: str, table: dict[str, Any]) -> NodeTables:
        where = f"nodes.{name}"
        roles = ("id", "label", "class", "split", "ignore")
        words = self._words(table, (*roles, "features"), where)
        columns = {role: "+".join(words[role]) for role in roles if role in words}
        paths, section = self._paths(words, where), f"{self.file}: [{where}]"
        return open_nodes(paths, columns, words.get("features"), section)


def check_keys(file: Path, table: Mapping[str, Any], keys: set[str], section: str = "") -> None:
    """Raise `InputError` for a key of a table that is none of `keys`."""
    for key in table:
        if key not in keys:
            raise InputError(f"{file}: {key!r}{section} is none of {', '.join(sorted(keys))}")


def _typed_stream(
    edges: Mapping[str, EdgeFiles],
    indices: Mapping[str, Index],
    ends: Mapping[str, tuple[TypeRange, TypeRange]],
    ranks: RankGroup,
) -> EdgeStream:
    for relation, table in edges.items():
        source, target = ends[relation]
        is_plain = len(edges) == 1 and len(indices) == 1
        for chunk in edge_chunks(table, indices[source.name], indices[target.name], ranks):
            named = replace(chunk, relation="" if is_plain else relation)
            yield named.between(source, target)
