# shellcheck shell=bash
# Functions of the templates for batch systems. Source it in the folder where the job was submitted;
# it sets up the environment.

. jobs/env.sh

# Exit statuses of training that ask for another start.
STOPPED_WITH_CHECKPOINT=75
MACHINE_FAULT=76
# 128 and the number of a signal: it came before the ranks could handle it.
KILLED_BY_USR1=138
KILLED_BY_TERM=143
MOST_FAULTS=10

# use_archive: if HPCGNN_ARCHIVE names a tar file of an environment, unpack it on every host of a
# Slurm job (below HPCGNN_LOCAL, default /tmp) and use it there, so that the shared file system serves
# one file instead of thousands for every rank.
use_archive() {
    [[ -n ${HPCGNN_ARCHIVE:-} ]] || return 0
    HPCGNN_VENV=${HPCGNN_LOCAL:-/tmp}/hpcgnn-$SLURM_JOB_ID
    on_every_host mkdir -p "$HPCGNN_VENV"
    # Slurm starts nothing more in a cancelled job. This runs already, until this shell and srun have ended.
    exec {ARCHIVE_USED}> >(on_every_host --overlap --no-kill \
        bash -c "trap '' TERM; cat; rm -rf '$HPCGNN_VENV' '$HPCGNN_VENV.tar'")
    ARCHIVE_REMOVER=$!
    trap remove_archive EXIT
    sbcast --force "$HPCGNN_ARCHIVE" "$HPCGNN_VENV.tar"
    on_every_host tar -xf "$HPCGNN_VENV.tar" -C "$HPCGNN_VENV"
    say "unpacked $HPCGNN_ARCHIVE on $SLURM_NNODES hosts in $SECONDS s"
}

remove_archive() {
    trap - EXIT
    [[ -n ${ARCHIVE_REMOVER:-} ]] || return 0
    exec {ARCHIVE_USED}>&-
    wait "$ARCHIVE_REMOVER" || say "the archive may still be on a host, as $HPCGNN_VENV"
}

on_every_host() {
    # After `sbatch --export=...` srun gives the hosts nothing of this environment, not even PATH.
    export PATH SLURM_EXPORT_ENV=ALL
    srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 "$@"
}

# hear_signals: from now on, when USR1 or TERM reaches this shell, the ranks end their epoch and write a
# checkpoint: the launcher passes the signal on to them.
RANKS_PID=
SIGNALLED=false
SIGNALS=
SOON_S=60
hear_signals() {
    trap 'pass_on USR1' USR1
    trap 'pass_on TERM' TERM
}
pass_on() {
    SIGNALLED=true SIGNALS+=" $1"
    if [[ $1 == USR1 ]] && ((SECONDS < SOON_S)); then
        say "signal USR1 after $SECONDS s: if it is the notice before the time limit, ask for more time than" \
            "the notice, 180 s, or change that (sbatch --signal)"
    fi
    [[ -z $RANKS_PID ]] || kill -USR1 "$RANKS_PID" 2>/dev/null || true
}

# start_ranks RANKS COMMAND...: replace this shell by the launcher of ranks. If HPCGNN_SUPERVISE is set,
# `hpcgnn supervise` runs it, and starts ranks again without a lost host. HPCGNN_ON_HOSTS are the words
# that tell the launcher its hosts, for launchers other than srun and Open MPI's.
start_ranks() {
    local ranks=$1 words="--host {slots} -n {ranks}"
    [[ -n ${HPCGNN_SUPERVISE:-} ]] || mpi_exec "$@"
    shift
    mpi_settings "$ranks"
    # The previous step keeps its cores until Slurm has given up the lost host.
    [[ ${MPI_LAUNCHER[0]##*/} != srun ]] || words="--overlap -w {hosts} -N {nodes} -n {ranks}"
    read -ra words <<<"${HPCGNN_ON_HOSTS:-$words}"
    exec python -m hpcgnn.supervise --ranks "$ranks" -- "${MPI_LAUNCHER[@]}" "${words[@]}" "$@"
}

# partition_on RANKS: partition with the arguments in ARGS, for batch systems whose scripts have none.
partition_on() {
    local words
    : "${ARGS:?give the arguments of hpcgnn partition: ARGS="STORE.h5 --parts K -o OUT.h5"}"
    read -ra words <<<"$ARGS"
    say "$1 ranks: python -m hpcgnn.partition $ARGS, $(which_hpcgnn)"
    if (($1 > 1)); then
        mpi_run "$1" python -m hpcgnn.partition "${words[@]}"
    else
        python -m hpcgnn.partition "${words[@]}"
    fi
}

# args_of_seed NUMBER SUBMIT: turn the ARGS of an array of seeds into those of the job of one seed.
args_of_seed() {
    local words
    read -ra words <<<"${ARGS:-}"
    if [[ -z $1 || ${#words[@]} -lt 2 ]]; then
        echo "hpcgnn: error: ARGS=\"DIR CONFIG.toml [KEY=VALUE ...]\" $2 ..., which numbers the seeds" >&2
        exit 2
    fi
    export ARGS="${words[*]:1} train.seeds=[$1] run.dir=${words[0]}/seed-$1"
}

# train_ranks RANKS [CONFIG.toml] [section.key=value ...]: train; set STATUS to the exit status.
train_ranks() {
    local ranks=$1
    shift
    if [[ " $* " == *" run.resume="* ]]; then
        fail "leave out run.resume: a job that starts again must continue (auto); to start over, give another run.dir"
        exit 2
    fi
    STATUS=$KILLED_BY_USR1
    if $SIGNALLED; then return; fi
    say "$ranks ranks: python -m hpcgnn.train $* run.resume=auto"
    start_ranks "$ranks" python -m hpcgnn.train "$@" run.resume=auto &
    RANKS_PID=$!
    STATUS=0
    wait "$RANKS_PID" || STATUS=$?
    # A signal ends `wait` early, with its own status, while the ranks continue.
    while $SIGNALLED; do
        SIGNALLED=false STATUS=0
        wait "$RANKS_PID" || STATUS=$?
    done
}

# exit_unless_unfinished FAULTS: exit, or set WHAT if training asks for another start.
exit_unless_unfinished() {
    case $STATUS in
    "$STOPPED_WITH_CHECKPOINT") WHAT="stopped with a checkpoint" ;;
    "$MACHINE_FAULT") WHAT="ended by a fault of a machine" ;;
    "$KILLED_BY_USR1" | "$KILLED_BY_TERM") WHAT="ended by a signal during its start" ;;
    *) exit "$STATUS" ;;
    esac
    if ((STATUS != STOPPED_WITH_CHECKPOINT && $1 >= MOST_FAULTS)); then
        say "$WHAT, as $1 times before, not started again: look at the hosts, then submit it again"
        exit "$STATUS"
    fi
}

# The commit of a checkout, or the installed version.
which_hpcgnn() {
    git rev-parse --short HEAD 2>/dev/null || python -m hpcgnn --version
}
