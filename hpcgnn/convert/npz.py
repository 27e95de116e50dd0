"""Graphs in one .npz file: edge arrays or a sparse matrix, with or without node data.

Edges are looked for in this order:

- the layout of `scipy.sparse.save_npz` (csr, csc or coo): entry (i, j) is the edge i -> j;
- `adj_indptr`, `adj_indices`, `adj_data`, or `indptr`, `indices`, `data`: a CSR matrix, likewise;
- `edge_index` [2, E]: row 0 holds the sources, row 1 the targets;
- `src`, `dst` or `row`, `col` or `source`, `target`.

Edge arrays may have `weights`, and for a typed graph `etype`, the numbers of the edges' relations,
and `etypes`, the relations' names. `npz_nodes` finds the node data.
"""

from pathlib import Path

from hpcgnn.convert.coordinates import (
    CoordinateEdges,
    Pairs,
    check_vector,
    has_weights,
    index_pairs,
    vector_pairs,
)
from hpcgnn.convert.npy import ArrayFile, Npz, decode_texts
from hpcgnn.convert.npz_nodes import read_nodes
from hpcgnn.convert.source import CHUNK_EDGES, ConvertOptions, GraphSource
from hpcgnn.convert.sparse import CompressedMatrix
from hpcgnn.errors import InputError

__all__ = ["find_edges", "read"]

_ENDS = (("src", "dst"), ("row", "col"), ("source", "target"))
_WEIGHTS = ("weights", "weight", "edge_weight", "data")
_LAYOUTS = "indptr and indices, edge_index, or src and dst"


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the graph of an .npz file; raises `InputError`."""
    npz = Npz(path)
    edges = find_edges(npz)
    known: dict[str, int] = {}
    relations: tuple[str, ...] = ("",)
    if isinstance(edges, CompressedMatrix):
        known[edges.indices.where] = edges.num_nodes
        weighted = edges.data is not None
    else:
        relations, weighted = edges.relations, edges.weights is not None
        if (shape := npz.get("shape")) is not None:
            known[shape.where] = _square(shape)
    num_nodes, nodes = read_nodes(npz, known, options)
    return GraphSource(
        path=path,
        edges=edges.chunks,
        inputs=(path,),
        relations=relations,
        num_nodes=num_nodes,
        weighted=weighted,
        nodes=nodes,
        ignored=npz.unused(),
    )


def find_edges(npz: Npz, *, major_is_src: bool = True) -> CompressedMatrix | CoordinateEdges:
    """Return the edges of an .npz file in any known layout; raises `InputError`.

    `major_is_src` False reads entry (i, j) of a matrix as the edge j -> i.
    """
    kind = _scipy_format(npz)
    if kind in ("csr", "csc"):
        return CompressedMatrix.read(npz, major_is_src=(kind == "csr") == major_is_src)
    if kind == "coo":
        ends = ("row", "col") if major_is_src else ("col", "row")
        return _vectors(npz, *ends)
    for prefix in ("adj_", ""):
        if f"{prefix}indptr" in npz and f"{prefix}indices" in npz:
            return CompressedMatrix.read(npz, prefix, major_is_src=major_is_src)
    index = npz.get("edge_index")
    if index is not None:
        pairs = index_pairs(index)
        return _with_extras(npz, index, pairs, index.shape[1])
    for ends in _ENDS:
        if ends[0] in npz and ends[1] in npz:
            return _vectors(npz, *ends)
    raise InputError(f"{npz.path}: holds no edges; name the arrays {_LAYOUTS}")


def _scipy_format(npz: Npz) -> str | None:
    if "format" not in npz or "shape" not in npz:
        return None
    kind = npz.need("format").load().item()
    text = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    if text not in ("csr", "csc", "coo"):
        raise InputError(
            f"{npz.path}: format is {text!r}; save the matrix as csr, csc or coo (matrix.tocsr())"
        )
    return text


def _vectors(npz: Npz, src_name: str, dst_name: str) -> CoordinateEdges:
    src, dst = npz.need(src_name), npz.need(dst_name)
    return _with_extras(npz, src, vector_pairs(src, dst), src.shape[0])


def _with_extras(npz: Npz, ends: ArrayFile, pairs: Pairs, num_edges: int) -> CoordinateEdges:
    weights = npz.get(*_WEIGHTS)
    if weights is not None:
        _check_per_edge(weights, "biuf", ends, num_edges)
        weights = weights if has_weights(weights) else None
    relation_ids = npz.get("etype", "edge_type")
    relations: tuple[str, ...] = ("",)
    if relation_ids is not None:
        _check_per_edge(relation_ids, "iu", ends, num_edges)
        relations = _relation_names(npz, relation_ids)
    return CoordinateEdges(npz.path, ends.where, num_edges, pairs, weights, relation_ids, relations)


def _check_per_edge(array: ArrayFile, kinds: str, ends: ArrayFile, num_edges: int) -> None:
    check_vector(array, kinds)
    if array.shape[0] != num_edges:
        raise InputError(
            f"{array.where} has {array.shape[0]} values for the {num_edges} edges of "
            f"{ends.member}; give one an edge"
        )


def _relation_names(npz: Npz, relation_ids: ArrayFile) -> tuple[str, ...]:
    names = npz.get("etypes", "edge_types")
    if names is None:
        blocks = relation_ids.flat(0, relation_ids.shape[0], CHUNK_EDGES)
        highest = max((int(block.max()) for block in blocks), default=0)
        return tuple(str(number) for number in range(highest + 1))
    check_vector(names, "SU")
    texts = decode_texts(names.load(), names.where)
    if len(set(texts)) != len(texts):
        raise InputError(f"{names.where}: a relation is named twice; give each its own name")
    return tuple(texts)


def _square(shape: ArrayFile) -> int:
    sides = shape.load().ravel().tolist()
    if len(sides) != 2 or sides[0] != sides[1]:
        raise InputError(
            f"{shape.where} is {sides}; an adjacency is square: save it with one row and one "
            "column a node"
        )
    return int(sides[0])
