"""Turn a Python file into compiled instances, without the nodes that reach no candidate."""

import ast
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import dijkstra, reverse_cuthill_mckee

from hpcgnn.convert.programs.graph import ProgramGraph, buckets_of, build_graph
from hpcgnn.convert.programs.holes import find_holes
from hpcgnn.convert.programs.options import ProgramOptions, draw
from hpcgnn.convert.programs.sources import SourceFile
from hpcgnn.convert.programs.variables import Uses
from hpcgnn.storage import CANDIDATE_DTYPE, GRAPH_DTYPE, InstanceBatch
from hpcgnn.typing import Array, LocalIndices


@dataclass(frozen=True)
class Compiled:
    """A reduced and reordered graph.

    `nodes` (n,) int32 are the old numbers of the remaining nodes; `edges` (e, 3) int32 are type,
    source, target in new numbers, sorted; `candidates` (c,) int32 are new numbers.
    """

    nodes: LocalIndices
    edges: Array
    candidates: LocalIndices

    @property
    def bandwidth(self) -> int:
        """The largest ``|source - target|``, or 0 without edges."""
        return int(np.abs(self.edges[:, 1] - self.edges[:, 2]).max(initial=0))


def compile_graph(
    num_nodes: int, edges: Array, candidates: LocalIndices, steps: int, *, flip: bool
) -> Compiled:
    """Keep the nodes that reach a candidate in `steps` steps, in reverse Cuthill-McKee order.

    Messages pass along edges in both directions, so these are the nodes around candidates. Time is
    nearly linear in nodes and edges. `edges` (e, 3) int32 are type, source, target; `candidates`
    (c,) are nodes. `flip` reverses the order, with the same bandwidth: Cuthill-McKee goes by
    degree, so that frequently used nodes come late, and a random flip keeps positions from
    revealing this.
    """
    ones = np.ones(len(edges), np.int8)
    pattern = sp.coo_array((ones, (edges[:, 1], edges[:, 2])), (num_nodes, num_nodes))
    both = sp.csr_array(pattern + pattern.T)
    distances = dijkstra(both, indices=candidates, unweighted=True, limit=steps, min_only=True)
    nodes = np.flatnonzero(np.isfinite(distances)).astype(np.int32)
    order = reverse_cuthill_mckee(sp.csr_matrix(both[nodes][:, nodes]), symmetric_mode=True)
    nodes = nodes[order[::-1] if flip else order]
    position = np.full(num_nodes, -1, np.int32)
    position[nodes] = np.arange(len(nodes), dtype=np.int32)
    moved = np.column_stack([edges[:, 0], position[edges[:, 1]], position[edges[:, 2]]])
    moved = moved[(moved[:, 1:] >= 0).all(axis=1)]
    moved = moved[np.lexsort((moved[:, 2], moved[:, 1], moved[:, 0]))]
    return Compiled(nodes, np.ascontiguousarray(moved, np.int32), position[candidates])


@dataclass(frozen=True, eq=False)
class Part:
    """The instances of a file or of a batch of files; their column `file` is the index in it.

    `snippets` (g, 2) uint64 are hashes of the code of each graph's snippet and of its function;
    `dropped` counts graphs with too many nodes; `failures` are (file, reason) of unreadable files.
    """

    batch: InstanceBatch
    snippets: Array
    dropped: int
    failures: tuple[tuple[int, str], ...] = ()


def file_instances(path: Path, name: str, options: ProgramOptions) -> Part:
    """Return the instances of the file at `path`; raises one of `READ_ERRORS`.

    Random choices depend on `name` and not on `path`, so that a moved folder gives equal graphs.
    """
    with tokenize.open(path) as stream:
        source = SourceFile(stream.read())
    uses = Uses(source)
    batches, snippets = [InstanceBatch.empty()], []
    texts: dict[ast.AST, int] = {}
    dropped = 0
    for hole in find_holes(source, uses, name, options):
        root = {"function": hole.function, "definition": hole.unit, "file": source.tree}[
            options.granularity
        ]
        batch = pack_instance(
            build_graph(source, uses, root, hole.use, hole.candidates),
            flip=hole.flip,
            label=hole.label,
            line=hole.use.node.lineno,
            num_uses=hole.num_uses,
            distances=hole.distances,
            options=options,
        )
        if batch is None:
            dropped += 1
            continue
        batches.append(batch)
        for part in (root, hole.function):
            if part not in texts:
                texts[part] = draw(ast.dump(part))
        snippets.append((texts[root], texts[hole.function]))
    hashes = np.array(snippets, np.uint64).reshape(-1, 2)
    return Part(InstanceBatch.join(batches), hashes, dropped)


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
    """Compile a graph, its order reversed if `flip`, and pack it; None above `max_nodes` nodes."""
    compiled = compile_graph(
        len(graph.labels), graph.edges, graph.candidates, options.steps, flip=flip
    )
    if len(compiled.nodes) > options.max_nodes:
        return None
    buckets = [buckets_of(graph.labels[node], options.num_buckets) for node in compiled.nodes]
    candidates = np.zeros(len(graph.candidates), CANDIDATE_DTYPE)
    candidates["node"] = compiled.candidates
    candidates["num_uses"], candidates["distance"] = num_uses, distances
    subtokens = np.array([bucket for numbers in buckets for bucket in numbers], np.uint16)
    index = np.zeros(1, GRAPH_DTYPE)
    index["num_nodes"], index["num_edges"] = len(compiled.nodes), len(compiled.edges)
    index["num_subtokens"], index["num_candidates"] = len(subtokens), len(candidates)
    index["label"], index["line"] = label, line
    index["bandwidth"], index["original_nodes"] = compiled.bandwidth, len(graph.labels)
    return InstanceBatch(
        index,
        np.array([len(numbers) for numbers in buckets], np.uint8),
        subtokens,
        compiled.edges[:, 0].astype(np.uint8),
        np.ascontiguousarray(compiled.edges[:, 1:]),
        candidates,
    )
