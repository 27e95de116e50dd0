"""Make the files of the bundled debian-packages graph from a ``Packages`` index.

The bundled ones were made from that of Debian 12 (bookworm), main, amd64, by::

    python -m benchmarks.debian Packages.xz -o hpcgnn/gallery/data/debian-packages.npz.xz \
        --virtual hpcgnn/gallery/data/debian-virtual.npz.xz
"""

from pathlib import Path

from benchmarks.debian.archive import read_virtual
from benchmarks.debian.bundle import DEBIAN_FEATURES, build_bundle, encode_virtual
from benchmarks.debian.index import read_index
from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.launch import run_command
from hpcgnn.console import report
from hpcgnn.storage import check_output, write_whole


def main() -> None:
    """Build bundle files from an index."""
    cli = CommandParser("debian", "Make the files of the bundled graph.")
    cli.add_argument("index", type=Path, help="Packages index: plain, .gz or .xz")
    cli.add_argument("-o", "--output", type=Path, required=True, help="bundle to write")
    text = f"columns (default: {DEBIAN_FEATURES})"
    cli.add_argument("--features", type=int, default=DEBIAN_FEATURES, help=text)
    cli.add_argument("--virtual", type=Path, help="also write the virtual packages to this file")
    options = cli.parse_args()
    for path in (options.output, options.virtual):
        if path is not None:
            check_output(path)
    stanzas = read_index(options.index)
    bundle = build_bundle(stanzas, options.features)
    files = {options.output: bundle.encode()}
    if options.virtual is not None:
        files[options.virtual] = encode_virtual(read_virtual(stanzas), len(bundle.archive.names))
    for path, content in files.items():
        write_whole(path, content)
        report(f"{path}: {len(content)} bytes")


if __name__ == "__main__":
    run_command("debian", main)
