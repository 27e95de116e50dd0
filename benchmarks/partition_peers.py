"""Distributed peer partitioners: PT-Scotch, and Zoltan's hypergraph partitioner.

Their shared libraries (Debian: libptscotch-7.0, libscotch-7.0, libtrilinos-zoltan-13.2) are called
through ctypes, and must be on the loader's path (LD_LIBRARY_PATH). They may be built with another
Open MPI than the running one if it has the same ABI, libmpi.so.40. Packages need not be installed;
extracting them with ``dpkg-deb -x`` is enough.
"""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_long, c_uint32, c_void_p
from typing import Any

from mpi4py import MPI

import numpy as np

from hpcgnn.comm import Communicator
from hpcgnn.partition.pattern import BlockRow

# From zoltan.h.
_COMPRESSED_EDGE, _ZOLTAN_OK = 1, 0
_ZOLTAN_PARAMETERS = {
    "LB_METHOD": "HYPERGRAPH",
    "HYPERGRAPH_PACKAGE": "PHG",
    "LB_APPROACH": "PARTITION",
    "PHG_CUT_OBJECTIVE": "CONNECTIVITY",
    "OBJ_WEIGHT_DIM": "1",
    "RETURN_LISTS": "PARTS",
    "NUM_LID_ENTRIES": "0",
    "DEBUG_LEVEL": "0",
}

Peer = Callable[[Communicator, BlockRow, np.ndarray, int, int, float], np.ndarray]


def library(name: str) -> Any:
    """Load a library, which then uses the MPI library that is already loaded."""
    ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)


def handle(comm: Communicator) -> c_void_p:
    """Return the communicator as C passes it."""
    return c_void_p.from_address(MPI._addressof(comm))


def ptscotch(
    comm: Communicator, rows: BlockRow, weights: np.ndarray, parts: int, seed: int, imbalance: float
) -> np.ndarray:
    """Return the part of each own row of a symmetric pattern, minimising cut edges."""
    for name in ("libscotcherr-7.0.so", "libscotch-7.0.so", "libptscotcherr-7.0.so"):
        library(name)
    lib = library("libptscotch-7.0.so")
    number, kind = (c_int, np.int32) if lib.SCOTCH_numSizeof() == 4 else (c_long, np.int64)
    array = np.ctypeslib.ndpointer(kind, flags="C")
    graph, strategy = (ctypes.create_string_buffer(1 << 12) for _ in range(2))
    assert max(lib.SCOTCH_dgraphSizeof(), lib.SCOTCH_stratSizeof()) <= 1 << 12
    row_map = rows.row_map
    apart = np.repeat(np.arange(row_map.start, row_map.stop), np.diff(rows.indptr)) != rows.columns
    before = np.concatenate([[0], np.cumsum(apart)])
    offsets = before[rows.indptr].astype(kind)
    edges = rows.columns[apart].astype(kind)
    load = weights.astype(kind)
    part = np.empty(row_map.num_local, kind)
    lib.SCOTCH_randomSeed(number(seed))
    checked(lib.SCOTCH_dgraphInit(graph, handle(comm)))
    lib.SCOTCH_dgraphBuild.argtypes = (
        [c_void_p, number, number, number, array, c_void_p, array, c_void_p]
        + [number, number, array]
        + 2 * [c_void_p]
    )
    size, count = row_map.num_local, len(edges)
    checked(
        lib.SCOTCH_dgraphBuild(
            graph, 0, size, size, offsets, None, load, None, count, count, edges, None, None
        )
    )
    checked(lib.SCOTCH_stratInit(strategy))
    lib.SCOTCH_stratDgraphMapBuild.argtypes = [c_void_p, number, number, number, c_double]
    checked(lib.SCOTCH_stratDgraphMapBuild(strategy, 0, comm.size, parts, imbalance))
    lib.SCOTCH_dgraphPart.argtypes = [c_void_p, number, c_void_p, array]
    checked(lib.SCOTCH_dgraphPart(graph, parts, strategy, part))
    lib.SCOTCH_stratExit(strategy)
    lib.SCOTCH_dgraphExit(graph)
    return part.astype(np.int32)


def zoltan(
    comm: Communicator, rows: BlockRow, weights: np.ndarray, parts: int, seed: int, imbalance: float
) -> np.ndarray:
    """Return the part of each own row of a symmetric pattern, minimising total rows.

    The hyperedge of a node holds its neighbours and itself: its readers, and its owner.
    """
    lib = library("libtrilinos_zoltan.so.13.2")
    row_map = rows.row_map
    own = np.arange(row_map.start, row_map.stop)
    ids, pins, sizes = POINTER(c_uint32), POINTER(c_uint32), POINTER(c_int)

    def num_objects(_: Any, error: Any) -> int:
        error[0] = _ZOLTAN_OK
        return row_map.num_local

    def objects(
        _: Any, __: int, ___: int, names: Any, ____: Any, _____: int, w: Any, e: Any
    ) -> None:
        fill(names, own)
        fill(w, weights)
        e[0] = _ZOLTAN_OK

    def size(_: Any, lists: Any, num_pins: Any, form: Any, error: Any) -> None:
        lists[0], num_pins[0] = row_map.num_local, len(rows.columns) + row_map.num_local
        form[0], error[0] = _COMPRESSED_EDGE, _ZOLTAN_OK

    def edges(
        _: Any, __: int, n: int, ____: int, ___: int, e: Any, at: Any, p: Any, error: Any
    ) -> None:
        fill(e, own)
        # A node, then its row.
        fill(at, rows.indptr[:-1] + np.arange(n))
        fill(p, np.insert(rows.columns, rows.indptr[:-1], own))
        error[0] = _ZOLTAN_OK

    fault = POINTER(c_int)
    calls = (
        ("Num_Obj", ctypes.CFUNCTYPE(c_int, c_void_p, fault)(num_objects)),
        (
            "Obj_List",
            ctypes.CFUNCTYPE(
                None, c_void_p, c_int, c_int, ids, ids, c_int, POINTER(c_float), fault
            )(objects),
        ),
        ("HG_Size_CS", ctypes.CFUNCTYPE(None, c_void_p, sizes, sizes, sizes, fault)(size)),
        (
            "HG_CS",
            ctypes.CFUNCTYPE(None, c_void_p, c_int, c_int, c_int, c_int, ids, sizes, pins, fault)(
                edges
            ),
        ),
    )
    version = c_float()
    checked(lib.Zoltan_Initialize(0, None, byref(version)))
    lib.Zoltan_Create.restype = c_void_p
    problem = c_void_p(lib.Zoltan_Create(handle(comm)))
    wanted = {"NUM_GLOBAL_PARTS": parts, "IMBALANCE_TOL": 1 + imbalance, "SEED": seed}
    for key, value in (_ZOLTAN_PARAMETERS | wanted).items():
        checked(
            lib.Zoltan_Set_Param(problem, c_char_p(key.encode()), c_char_p(str(value).encode()))
        )
    for name, call in calls:
        checked(getattr(lib, f"Zoltan_Set_{name}_Fn")(problem, call, None))
    changes, widths, counts = c_int(), (c_int * 2)(), (c_int * 2)()
    lists = [c_void_p() for _ in range(8)]
    checked(
        lib.Zoltan_LB_Partition(
            problem,
            byref(changes),
            byref(widths, 0),
            byref(widths, 4),
            byref(counts, 0),
            *map(byref, lists[:4]),
            byref(counts, 4),
            *map(byref, lists[4:]),
        )
    )
    # With RETURN_LISTS=PARTS every own object is listed as exported.
    found = np.full(row_map.num_local, -1, np.int32)
    names = np.ctypeslib.as_array(ctypes.cast(lists[4], ids), (counts[1],)).astype(np.int64)
    found[names - row_map.start] = np.ctypeslib.as_array(ctypes.cast(lists[7], sizes), (counts[1],))
    assert found.min(initial=0) >= 0, "every row has a part"
    return found


def fill(pointer: Any, values: np.ndarray) -> None:
    if len(values):
        np.ctypeslib.as_array(pointer, (len(values),))[:] = values


def checked(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"a peer's call ended with status {status}")


PEERS: dict[str, Peer] = {"ptscotch": ptscotch, "zoltan": zoltan}
