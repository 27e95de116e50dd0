"""Cache misses of the product with its columns in tiles against one tile, counted by cachegrind.

``python -m benchmarks.tile_misses --json`` prints one JSON object a case: rows, degree, width,
tiles (chosen or one), misses of the last level and of the first a product, and references. The
cache is simulated with the geometry given; the product believes in it. A graph is random and
uniform: nothing but tiles can make its reads local. Counts are the difference between two products
and one. Needs valgrind, a C++ compiler and the built extension.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.columns import Columns, count, print_columns, ratio, text
from hpcgnn.console import print_json, run_command
from hpcgnn.errors import InputError

SOURCE = Path(__file__).with_suffix(".cc")
KERNELS = Path(__file__).parents[1] / "hpcgnn" / "kernels" / "src"
LIBRARY = Path(sys.prefix, "build", "hpcgnn", "hpcgnn", "kernels", "libhpcgnn_kernels.a")
SYMBOL = "_ZN6hpcgnn7kernels19private_cache_bytesEv"
LAST_LEVEL = 2 << 20
GEOMETRY = ("--I1=32768,8,64", "--D1=49152,12,64", f"--LL={LAST_LEVEL},16,64")
ONE_TILE = 1 << 40
COUNTED = {"references": "D refs", "first_misses": "D1 misses", "last_misses": "LLd misses"}
COLUMNS: Columns = {
    "nodes": ("rows", count),
    "degree": ("degree", text),
    "width": ("width", text),
    "tiles": ("tiles", text),
    "references": ("references", count),
    "L1 misses": ("first_misses", count),
    "L2 misses": ("last_misses", count),
    "over one tile": ("share", ratio),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.tile_misses", description=__doc__)
    parser.add_argument("--cases", default="8000:20:256,8000:20:512", help="NODES:DEGREE:WIDTH,...")
    parser.add_argument("--json", action="store_true", help="print one JSON object a case")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as directory:
        program = build(Path(directory, "products"))
        for case in options.cases.split(","):
            results += compare(program, *map(int, case.split(":")))
    if options.json:
        for line in results:
            print_json(line | {"geometry": GEOMETRY})
    else:
        print_columns(COLUMNS, results)


def build(program: Path) -> Path:
    words = ["c++", "-O2", "-std=c++20", "-fopenmp", f"-I{KERNELS}", f"-Wl,--wrap={SYMBOL}"]
    try:
        subprocess.run([*words, str(SOURCE), str(LIBRARY), "-o", str(program)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise InputError(f"{SOURCE.name} does not compile; build the extension first") from error
    return program


def compare(program: Path, rows: int, degree: int, width: int) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for tiles, believed in (("one", ONE_TILE), ("chosen", LAST_LEVEL)):
        shape = {"rows": rows, "degree": degree, "width": width, "tiles": tiles}
        once, twice = (misses(program, rows, degree, width, k, believed) for k in (1, 2))
        results.append(shape | {name: twice[name] - once[name] for name in COUNTED})
    for each in results:
        each["share"] = each["last_misses"] / results[0]["last_misses"]
    return results


def misses(program: Path, *numbers: int) -> dict[str, int]:
    valgrind = ["valgrind", "--tool=cachegrind", "--cachegrind-out-file=/dev/null", *GEOMETRY]
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
