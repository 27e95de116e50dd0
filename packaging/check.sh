#!/bin/bash
# Check the recipes as far as this machine can, and say what was run and what was not:
#
#   bash packaging/check.sh [spack] [easybuild] [conda] [apptainer] [modulefiles] [sbom] [reframe]
#
# Fails where something that could be run failed. Tools are taken from PATH.
# shellcheck disable=SC2329  # the functions of recipes are found by their names
set -uo pipefail
root=$(cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root" || exit
(($#)) || set -- spack easybuild conda apptainer modulefiles sbom reframe
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0

# ran NAME WHAT COMMAND...
ran() {
    if "${@:3}" >"$scratch/log" 2>&1; then
        echo "$1: ran: $2"
    else
        echo "$1: FAILED: $2"
        sed "s/^/$1:     /" "$scratch/log" | tail -n 20
        failed=1
    fi
}

not_run() {
    echo "$1: not run: $2"
}

has() {
    type -P "$1" >/dev/null
}

spack_() {
    ran spack "package.py is Python" python3 -c 'compile(open("packaging/spack/package.py").read(), "package.py", "exec")'
    if [[ -n ${SPACK_PACKAGES:-} ]]; then
        ran spack "each dependency is a package of Spack's, or ours, with a version that fits" \
            python3 packaging/spack/check.py "$SPACK_PACKAGES"
    else
        not_run spack "dependencies: SPACK_PACKAGES names no checkout of Spack's packages"
    fi
    if has spack; then
        mkdir -p "$scratch/repo/packages/py_hpcgnn" "$scratch/repo/packages/py_pymetis"
        cp packaging/spack/py_pymetis.py "$scratch/repo/packages/py_pymetis/package.py"
        cp packaging/spack/package.py "$scratch/repo/packages/py_hpcgnn/"
        printf 'repo:\n  namespace: hpcgnn\n  api: v2.0\n' >"$scratch/repo/repo.yaml"
        printf 'repos:\n  hpcgnn: %s\n' "$scratch/repo" >"$scratch/repos.yaml"
        ran spack "spack spec py-hpcgnn" spack --config-scope "$scratch" spec py-hpcgnn
        not_run spack "spack install (hours)"
    else
        not_run spack "spec and install: no spack"
    fi
}

easybuild_() {
    if has eb; then
        ran easybuild "parsed; each dependency is an easyconfig of EasyBuild's" \
            "$(dirname "$(type -P eb)")/python" packaging/easybuild/check.py
    else
        not_run easybuild "parsing: no eb (pip install easybuild)"
    fi
    not_run easybuild "eb --robot (a day)"
}

conda_() {
    if has conda-build; then
        ran conda "conda build" conda build packaging/conda -c conda-forge
    else
        not_run conda "conda build: no conda-build"
    fi
}

apptainer_() {
    if has apptainer; then
        wheels=(dist/hpcgnn-*.whl)
        ran apptainer "apptainer build" apptainer build --build-arg wheel="${wheels[0]}" \
            "$scratch/hpcgnn.sif" jobs/hpcgnn.def
    else
        not_run apptainer "apptainer build of jobs/hpcgnn.def: no apptainer"
    fi
}

modulefiles_() {
    if has tclsh; then
        ran modulefiles "read with stand-ins for the module tool" tclsh packaging/modulefiles/check.tcl
    else
        not_run modulefiles "no tclsh"
    fi
}

sbom_() {
    if has cyclonedx-py && has python; then
        ran sbom "CycloneDX of python's environment, validated" \
            bash packaging/sbom.sh "$(type -P python)" "$scratch/sbom.json"
    else
        not_run sbom "no cyclonedx-py (pip install cyclonedx-bom)"
    fi
}

reframe_() {
    if has reframe && has hpcgnn && has mpirun; then
        ran reframe "all checks on one host" reframe -C packaging/reframe/settings.py \
            -c packaging/reframe/hpcgnn_checks.py --system=workstation --prefix "$scratch" \
            --report-file="$scratch/report.json" -r
    else
        not_run reframe "needs reframe, hpcgnn and mpirun on PATH"
    fi
}

for recipe in "$@"; do
    [[ $(type -t "${recipe}_") == function ]] || { echo "packaging: no recipe $recipe" >&2; exit 2; }
    "${recipe}_"
done
exit "$failed"
