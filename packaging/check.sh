#!/bin/bash
# Check the recipes as far as this machine can, and print which checks were run:
#
#   bash packaging/check.sh [spack] [easybuild] [conda] [apptainer] [modulefiles] [sbom]
#                          [reframe] [reframe_hosts] [reframe_slurm]
#
# Fails if a check that was run failed. Tools are taken from PATH.
# shellcheck disable=SC2329  # the functions of recipes are found by their names
set -uo pipefail
root=$(cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root" || exit
(($#)) || set -- spack easybuild conda apptainer modulefiles sbom reframe reframe_hosts reframe_slurm
LMOD=${LMOD_PKG:-/usr/share/lmod/lmod}
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
    if has eb && [[ -f $LMOD/init/bash ]]; then
        ran easybuild "eb --dry-run --robot finds all that is to be built" \
            env LMOD_CMD="$LMOD/libexec/lmod" PATH="$(dirname "$(type -P eb)"):$PATH" \
            eb --dry-run --robot --modules-tool=Lmod --prefix="$scratch/eb" \
            --allow-use-as-root-and-accept-consequences packaging/easybuild/*.eb
        echo "easybuild:     $(grep -c '^ \* \[' "$scratch/log") easyconfigs"
    else
        not_run easybuild "eb --dry-run: no eb or no Lmod"
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
    if [[ -f $LMOD/init/bash ]]; then
        mkdir -p "$scratch/modules/hpcgnn" "$scratch/modules/openmpi"
        cp packaging/modulefiles/hpcgnn "$scratch/modules/hpcgnn/0.1.0"
        echo '#%Module1.0' >"$scratch/modules/openmpi/5"
        # shellcheck disable=SC2016
        ran modulefiles "loaded and unloaded by Lmod" bash -c '. "$1/init/bash" && module use "$2" &&
            module load hpcgnn && module help hpcgnn && [[ $LOADEDMODULES == openmpi/5:hpcgnn/0.1.0 ]] &&
            [[ $PATH == /opt/hpcgnn/bin:* && $HPCGNN_VENV == /opt/hpcgnn && $HPCGNN_MPI == site ]] &&
            module unload hpcgnn && [[ -z ${HPCGNN_VENV:-} && $PATH != *hpcgnn/bin* ]]' bash "$LMOD" "$scratch/modules"
    else
        not_run modulefiles "under a module tool: no Lmod in LMOD_PKG"
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

# reframed NAME WHAT "SYSTEM OPTION..." COMMAND...: COMMAND is put before ReFrame's own words.
reframed() {
    local system
    read -ra system <<<"$3"
    # Allow four ranks as root and on fewer cores.
    # shellcheck source=jobs/env.sh
    . jobs/env.sh
    allow_root
    allow_oversubscription
    yield_when_idle
    ran "$1" "$2" "${@:4}" reframe --nocolor -C packaging/reframe/settings.py -c packaging/reframe/hpcgnn_checks.py \
        --system "${system[@]}" --prefix "$scratch/$1" --report-file="$scratch/$1.json" -r
    sed -En "s/^(P: .*|\[ *(OK|FAIL|PASSED|FAILED) .*)/$1:     \1/p" "$scratch/log"
}

reframe_() {
    if has reframe && has hpcgnn && has mpirun; then
        reframed reframe "all checks on one host" workstation env
    else
        not_run reframe "needs reframe, hpcgnn and mpirun on PATH"
    fi
}

reframe_hosts_() {
    local why
    if ! has reframe || ! has hpcgnn; then
        not_run reframe_hosts "needs reframe and hpcgnn on PATH"
    elif ! why=$(bash benchmarks/hosts.sh check 2>&1); then
        not_run reframe_hosts "$why"
    else
        mkdir "$scratch/bin"
        cat >"$scratch/bin/mpirun" <<WRAPPER
#!/bin/bash
exec bash $root/benchmarks/hosts.sh mpiexec $scratch/hosts 1 $(type -P mpirun) -x PATH "\$@"
WRAPPER
        chmod +x "$scratch/bin/mpirun"
        bash benchmarks/hosts.sh up "$scratch/hosts" node1 node2 node3 node4
        reframed reframe_hosts "all checks on four emulated hosts, a rank each" workstation \
            env PATH="$scratch/bin:$PATH"
        bash benchmarks/hosts.sh down "$scratch/hosts"
    fi
}

reframe_slurm_() {
    local why cluster
    if ! has reframe || ! has hpcgnn; then
        not_run reframe_slurm "needs reframe and hpcgnn on PATH"
    elif ! why=$(bash tests/slurm/cluster.sh install 2>&1); then
        not_run reframe_slurm "${why##*$'\n'}"
    else
        # Its sockets need a short path.
        cluster=$(mktemp -d /tmp/hpcgnn-slurm-XXXXXX)
        chmod 755 "$cluster"
        bash tests/slurm/cluster.sh up "$cluster"
        reframed reframe_slurm "all checks under a real Slurm, on both its hosts" "squeue -S num_tasks_per_node=2" \
            bash tests/slurm/cluster.sh run "$cluster" env SLURM_MPI_TYPE=pmix \
            OPAL_PREFIX="$(dirname "$(dirname "$(type -P hpcgnn)")")" OMPI_MCA_pml=ob1 \
            OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1
        bash tests/slurm/cluster.sh down "$cluster"
        rm -rf "$cluster"
    fi
}

for recipe in "$@"; do
    [[ $(type -t "${recipe}_") == function ]] || { echo "packaging: no recipe $recipe" >&2; exit 2; }
    "${recipe}_"
done
exit "$failed"
