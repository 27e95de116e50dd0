# shellcheck shell=bash
# The environment of every command of this project; source it, then call its functions:
#   use_environment [GROUP...]   make or refresh .venv (GROUP: test, lint), choose the MPI
#   mpi_run RANKS COMMAND...     run COMMAND on RANKS processes
# Read from the outside: HPCGNN_VENV (default .venv in the repository), MPIEXEC, PYTHON.

HPCGNN_ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
HPCGNN_VENV=${HPCGNN_VENV:-$HPCGNN_ROOT/.venv}

fail() {
    echo "hpcgnn: error: $*" >&2
    return 1
}

# Set MPI_LAUNCHER (an array) to the site's launcher, or to the wheel's when there is none.
find_launcher() {
    local name path
    if [[ -n ${MPIEXEC:-} ]]; then
        if [[ -n $(type -P -- "$MPIEXEC") ]]; then
            MPI_LAUNCHER=("$MPIEXEC")
        else
            read -ra MPI_LAUNCHER <<<"$MPIEXEC"
        fi
        [[ -n $(type -P -- "${MPI_LAUNCHER[0]}") ]] ||
            fail "MPIEXEC=$MPIEXEC: no such command; load your site's MPI module or unset MPIEXEC"
        return
    fi
    for name in mpiexec mpirun; do
        while read -r path; do
            [[ $path -ef $HPCGNN_VENV/bin/$name ]] && continue
            MPI_LAUNCHER=("$path")
            return
        done < <(type -aP "$name")
    done
    MPI_LAUNCHER=("$HPCGNN_VENV/bin/mpiexec")
}

in_batch_job() {
    [[ -n ${SLURM_JOB_ID:-}${PBS_JOBID:-}${LSB_JOBID:-} ]]
}

# More ranks than cores, as on a laptop: the launchers allow it, and waiting ranks yield.
allow_oversubscription() {
    export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe # Open MPI 5
    export OMPI_MCA_rmaps_base_oversubscribe=1                  # Open MPI 4
    export OMPI_MCA_mpi_yield_when_idle=1
    export MPIR_CVAR_ENABLE_HEAVY_YIELD=1 # MPICH
    export I_MPI_THREAD_YIELD=3           # Intel MPI
}

mpi_run() (
    ranks=$1
    shift
    [[ -v MPI_LAUNCHER ]] || find_launcher || exit 1
    if ((EUID == 0)); then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
    if ! in_batch_job; then
        cores=$(getconf _NPROCESSORS_ONLN)
        ((ranks <= cores)) || allow_oversubscription
        threads=$((cores / ranks))
        export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}
    fi
    exec "${MPI_LAUNCHER[@]}" -n "$ranks" "$@"
)
