"""``python -m hpcgnn.gallery``: build the bundled debian-packages file from a Packages index.

Users do not need it: ``python -m hpcgnn.generate debian-packages`` writes a store of the bundled
graph, or of another index.
"""

import argparse
from pathlib import Path

from hpcgnn.console import report, run_command
from hpcgnn.errors import InputError
from hpcgnn.gallery.debian_bundle import DEBIAN_FEATURES, build_bundle
from hpcgnn.storage import check_output


def main() -> None:
    """Build a bundle file from an index."""
    cli = argparse.ArgumentParser(
        prog="python -m hpcgnn.gallery", description="Build the bundled debian-packages file."
    )
    cli.add_argument("index", type=Path, help="Packages index: plain, .gz or .xz")
    cli.add_argument("-o", "--output", type=Path, required=True, help="bundle to write")
    text = f"columns (default: {DEBIAN_FEATURES})"
    cli.add_argument("--features", type=int, default=DEBIAN_FEATURES, help=text)
    options = cli.parse_args()
    check_output(options.output)
    content = build_bundle(options.index, options.features).encode()
    try:
        options.output.write_bytes(content)
    except OSError as error:
        raise InputError(f"{options.output}: cannot be written ({error.strerror})") from error
    report(f"{options.output}: {len(content)} bytes")


if __name__ == "__main__":
    run_command("gallery", main)
