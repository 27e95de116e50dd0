"""From one file of Python to compiled instances."""

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn.convert.programs.compile import compile_graph
from hpcgnn.convert.programs.graph import ProgramGraph, build_graph
from hpcgnn.convert.programs.holes import Hole, draw, find_holes
from hpcgnn.convert.programs.labels import buckets_of
from hpcgnn.convert.programs.options import ProgramOptions
from hpcgnn.convert.programs.source_file import SourceFile, read_source_file
from hpcgnn.convert.programs.uses import Uses
from hpcgnn.storage import CANDIDATE_DTYPE, GRAPH_DTYPE, InstanceBatch
from hpcgnn.typing import Array

__all__ = ["FileInstances", "file_instances", "pack_instance"]


@dataclass(frozen=True, eq=False)
class FileInstances:
    """The instances of a file.

    Parameters
    ----------
    batch
        The graphs, with `file` and `split` still 0.
    snippets
        (g, 2) uint64: what the snippet and the function of each say, hashed.
    dropped
        Graphs with too many nodes.
    """

    batch: InstanceBatch
    snippets: Array
    dropped: int


def file_instances(path: Path, name: str, options: ProgramOptions) -> FileInstances:
    """Return the instances of the file at `path`; raises one of `READ_ERRORS`.

    `name` stands for the file wherever chance decides, so that a moved folder gives equal graphs.
    """
    source = read_source_file(path)
    uses = Uses(source)
    batches, snippets = [InstanceBatch.empty()], []
    texts: dict[ast.AST, int] = {}
    outcome: Counter[str] = Counter()
    for hole in find_holes(source, uses, name, options):
        root = {"function": hole.function, "definition": hole.unit, "file": source.tree}[
            options.granularity
        ]
        batch = _instance(source, uses, root, hole, options)
        if batch is None:
            outcome["dropped"] += 1
            continue
        batches.append(batch)
        for part in (root, hole.function):
            if part not in texts:
                texts[part] = draw(ast.dump(part))
        snippets.append((texts[root], texts[hole.function]))
    hashes = np.array(snippets, np.uint64).reshape(-1, 2)
    return FileInstances(InstanceBatch.join(batches), hashes, outcome["dropped"])


def _instance(
    source: SourceFile, uses: Uses, root: ast.AST, hole: Hole, options: ProgramOptions
) -> InstanceBatch | None:
    graph = build_graph(source, uses, root, hole.use, hole.candidates)
    return pack_instance(
        graph,
        flip=hole.flip,
        label=hole.label,
        line=hole.use.node.lineno,
        num_uses=hole.num_uses,
        distances=hole.distances,
        options=options,
    )


def pack_instance(
    graph: ProgramGraph,
    *,
    flip: bool,
    label: int,
    line: int,
    num_uses: Sequence[int],
    distances: Sequence[int],
    options: ProgramOptions,
) -> InstanceBatch | None:
    """Compile a graph, its order turned round or not, and pack it.

    Returns None where more than `max_nodes` nodes are left.
    """
    compiled = compile_graph(
        len(graph.labels), graph.edges, graph.candidates, options.steps, flip=flip
    )
    if len(compiled.nodes) > options.max_nodes:
        return None
    buckets = [buckets_of(graph.labels[node], options.num_buckets) for node in compiled.nodes]
    position = np.full(len(graph.labels), -1, np.int32)
    position[compiled.nodes] = np.arange(len(compiled.nodes), dtype=np.int32)
    candidates = np.zeros(len(graph.candidates), CANDIDATE_DTYPE)
    candidates["node"] = position[graph.candidates]
    candidates["num_uses"], candidates["distance"] = num_uses, distances
    subtokens = np.array([bucket for each in buckets for bucket in each], np.uint16)
    index = np.zeros(1, GRAPH_DTYPE)
    index["num_nodes"], index["num_edges"] = len(compiled.nodes), len(compiled.edges)
    index["num_subtokens"], index["num_candidates"] = len(subtokens), len(candidates)
    index["label"], index["line"] = label, line
    index["bandwidth"], index["original_nodes"] = compiled.bandwidth, len(graph.labels)
    return InstanceBatch(
        index,
        np.array([len(each) for each in buckets], np.uint8),
        subtokens,
        compiled.edges[:, 0].astype(np.uint8),
        np.ascontiguousarray(compiled.edges[:, 1:]),
        candidates,
    )
