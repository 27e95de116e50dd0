"""``python -m hpcgnn.gallery``: build the bundled debian files from a Packages index.

Users do not need it: ``python -m hpcgnn.generate debian-packages`` writes a store of the bundled
graph, or of another index.
"""

import argparse
from pathlib import Path

from hpcgnn.console import report, run_command
from hpcgnn.errors import InputError
from hpcgnn.gallery.debian_bundle import DEBIAN_FEATURES, build_bundle
from hpcgnn.gallery.debian_virtual import read_virtual
from hpcgnn.gallery.packages_index import read_index
from hpcgnn.storage import check_output


def main() -> None:
    """Build bundle files from an index."""
    cli = argparse.ArgumentParser(
        prog="python -m hpcgnn.gallery", description="Build the bundled debian files."
    )
    cli.add_argument("index", type=Path, help="Packages index: plain, .gz or .xz")
    cli.add_argument("-o", "--output", type=Path, required=True, help="bundle to write")
    text = f"columns (default: {DEBIAN_FEATURES})"
    cli.add_argument("--features", type=int, default=DEBIAN_FEATURES, help=text)
    cli.add_argument("--virtual", type=Path, help="also write the virtual packages to this file")
    options = cli.parse_args()
    outputs = [path for path in (options.output, options.virtual) if path is not None]
    for path in outputs:
        check_output(path)
    stanzas = read_index(options.index)
    bundle = build_bundle(stanzas, options.features)
    write(options.output, bundle.encode())
    if options.virtual is not None:
        write(options.virtual, read_virtual(stanzas).encode(len(bundle.archive.names)))


def write(path: Path, content: bytes) -> None:
    """Write a file and say so."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    report(f"{path}: {len(content)} bytes")


if __name__ == "__main__":
    run_command("gallery", main)
