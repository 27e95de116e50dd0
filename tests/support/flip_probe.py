"""Flip bytes of a store, one at a time, and record how its reader reacts.

Run as a process of its own, so that a crash or an endless loop inside HDF5 does not end the suite:
`python -m tests.support.flip_probe STORE SCRATCH FIRST STRIDE MASK` prints a JSON object of counts
and of faults.
"""

import json
import sys
from pathlib import Path
from typing import Any

from hpcgnn.errors import StorageFormatError
from hpcgnn.storage import GraphStore


def contents(path: Path) -> list[Any]:
    """Return all contents of a store, in comparable form."""
    with GraphStore.open(path) as store:
        store.verify()
        n = store.num_nodes
        said: list[Any] = [store.name, n, store.num_classes, store.multi_label, store.undirected]
        said += [store.fingerprint, store.provenance, store.class_names, store.partition_info]
        said += [store.relations, store.row_starts.tolist()]
        said += [[(t.name, t.num_nodes, t.num_features, str(t.dtype)) for t in store.node_types]]
        nodes = vars(store.read_nodes(0, n))
        arrays = [*nodes.pop("type_features"), *nodes.values()]
        for relation in store.relations:
            arrays += vars(store.read_adjacency(0, n, relation)).values()
    return said + [getattr(array, "tolist", lambda a=array: a)() for array in arrays]


def probe(path: Path, expected: list[Any]) -> str:
    """Return "refused", "identical", or a description of a fault."""
    try:
        found = contents(path)
    except StorageFormatError as error:
        text = str(error)
        whole = text.startswith(f"{path}: ") and "\n" not in text and ("; " in text)
        return "refused" if whole else f"unclear message: {text}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "identical" if found == expected else "wrong values"


def main() -> None:
    store, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    first, stride, mask = (int(argument) for argument in sys.argv[3:])
    expected = contents(store)
    good = store.read_bytes()
    counts: dict[str, int] = {}
    faults: dict[int, str] = {}
    for position in range(first, len(good), stride):
        flipped = bytearray(good)
        flipped[position] ^= mask
        scratch.write_bytes(flipped)
        outcome = probe(scratch, expected)
        counts[outcome] = counts.get(outcome, 0) + 1
        if outcome not in ("refused", "identical"):
            faults[position] = outcome
    print(json.dumps({"size": len(good), "counts": counts, "faults": faults}))


if __name__ == "__main__":
    main()
