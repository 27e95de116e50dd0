#!/bin/bash
# A software bill of materials (CycloneDX 1.6, JSON) of an environment that holds hpcgnn:
#
#   bash packaging/sbom.sh PYTHON OUTPUT.json
#
# Needs cyclonedx-py on PATH (pip install cyclonedx-bom), which also validates it.
set -euo pipefail
(($# == 2)) || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(cd -- "$(dirname -- "$0")/.." && pwd)
cyclonedx-py environment --pyproject "$root/pyproject.toml" --spec-version 1.6 --validate \
    --output-reproducible --output-format JSON --output-file "$2" "$1"
