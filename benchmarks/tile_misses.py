"""Cache misses of the product with tiled columns and with one tile, counted by cachegrind.

``python -m benchmarks.tile_misses --json`` prints one JSON object per case: rows, degree, width,
cache_kib, tiles (chosen or one), misses of the last and first level per product, and references. A
last-level cache of that size is simulated, with a first level of at most 48 KiB, and the product is
told its size. Graphs are uniformly random, so only tiles can make reads local. Counts are the
difference between two products and one. Needs valgrind, a C++ compiler and the built extension.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.columns import Columns, count, print_columns, ratio, text
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json
from hpcgnn.errors import InputError

SOURCE = Path(__file__).with_suffix(".cc")
KERNELS = Path(__file__).parents[1] / "hpcgnn" / "kernels" / "src"
LIBRARY = Path(sys.prefix, "build", "hpcgnn", "hpcgnn", "kernels", "libhpcgnn_kernels.a")
SYMBOL = "_ZN6hpcgnn7kernels19private_cache_bytesEv"
LAST_LEVEL_KIB = 2 << 10
ONE_TILE = 1 << 40
COUNTED = {"references": "D refs", "first_misses": "D1 misses", "last_misses": "LLd misses"}
COLUMNS: Columns = {
    "nodes": ("rows", count),
    "degree": ("degree", text),
    "width": ("width", text),
    "cache KiB": ("cache_kib", count),
    "tiles": ("tiles", text),
    "references": ("references", count),
    "L1 misses": ("first_misses", count),
    "L2 misses": ("last_misses", count),
    "over one tile": ("share", ratio),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.tile_misses", description=__doc__)
    parser.add_argument("--cases", default="8000:20:256,8000:20:512", help="NODES:DEGREE:WIDTH,...")
    caches = f"KiB of the last level (default: {LAST_LEVEL_KIB})"
    parser.add_argument("--caches", default=str(LAST_LEVEL_KIB), metavar="KIB,...", help=caches)
    parser.add_argument("--json", action="store_true", help="print one JSON object per case")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as directory:
        program = build(Path(directory, "products"))
        for case in options.cases.split(","):
            for cache_kib in map(int, options.caches.split(",")):
                results += compare(program, cache_kib, *map(int, case.split(":")))
    if options.json:
        for line in results:
            print_json(line | {"geometry": geometry(line["cache_kib"])})
    else:
        print_columns(COLUMNS, results)


def build(program: Path) -> Path:
    words = ["c++", "-O2", "-std=c++20", "-fopenmp", f"-I{KERNELS}", f"-Wl,--wrap={SYMBOL}"]
    try:
        subprocess.run([*words, str(SOURCE), str(LIBRARY), "-o", str(program)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise InputError(f"{SOURCE.name} does not compile; build the extension first") from error
    return program


def geometry(cache_kib: int) -> tuple[str, ...]:
    """Return the caches: a first level with ways of 4 KiB, no larger than the last level."""
    ways = min(12, cache_kib // 4)
    return "--I1=32768,8,64", f"--D1={ways << 12},{ways},64", f"--LL={cache_kib << 10},16,64"


def compare(
    program: Path, cache_kib: int, rows: int, degree: int, width: int
) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for tiles, believed in (("one", ONE_TILE), ("chosen", cache_kib << 10)):
        shape = {"rows": rows, "degree": degree, "width": width}
        once, twice = (
            misses(program, geometry(cache_kib), *shape.values(), k, believed) for k in (1, 2)
        )
        counted = {name: twice[name] - once[name] for name in COUNTED}
        results.append(shape | {"cache_kib": cache_kib, "tiles": tiles} | counted)
    for each in results:
        each["share"] = each["last_misses"] / results[0]["last_misses"]
    return results


def misses(program: Path, caches: tuple[str, ...], *numbers: int) -> dict[str, int]:
    valgrind = ["valgrind", "--tool=cachegrind", "--cachegrind-out-file=/dev/null", *caches]
    words = [*valgrind, str(program), *map(str, numbers)]
    try:
        done = subprocess.run(words, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise InputError("valgrind does not run; install it") from error
    found = {}
    for name, label in COUNTED.items():
        match = re.search(rf"{label}: ([\d,]+)", re.sub(" +", " ", done.stderr))
        assert match is not None, done.stderr
        found[name] = int(match[1].replace(",", ""))
    return found


if __name__ == "__main__":
    run_command("tile_misses", main)
