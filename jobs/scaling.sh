#!/bin/bash
# Strong or weak scaling of a configuration: a store, a plan and a run for each number of ranks.
#
#   bash jobs/scaling.sh strong DIR STORE.h5 RANKS CONFIG.toml [section.key=value ...]
#   bash jobs/scaling.sh weak DIR SCALE RANKS CONFIG.toml [section.key=value ...]
#
# RANKS is a list such as 1,2,4,8. strong cuts STORE into as many parts as there are ranks; weak makes
# R-MAT graphs of 2**SCALE nodes per rank, so ranks must be powers of two. EXCHANGES=joint,aware in
# the environment compares exchanges. Stores are DIR/stores/*.h5, runs DIR/EXCHANGE-PN, and at the end
# `hpcgnn analyse scaling` shows plan and run of every point side by side.
#
# If sbatch is on PATH, every point is a job that begins when the one before has ended, so that no two
# disturb each other, and a last job prints the table; Slurm's variables SBATCH_* (account, partition,
# time) apply. Otherwise, or with SCALING=here, the points run one after the other on this machine.
set -euo pipefail
usage() {
    sed -n '4,5s/^# *//p' "$0" >&2
    exit 2
}
if [[ ${1:-} == point || ${1:-} == table ]]; then
    # Slurm runs a copy of this script, so its own path does not help.
    cd -- "${SLURM_SUBMIT_DIR:-$(dirname -- "$0")/..}"
else
    cd -- "$(dirname -- "$0")/.."
fi
. jobs/env.sh
EXCHANGES=${EXCHANGES:-joint}

# point KIND DIR GRAPH EXCHANGE RANKS CONFIG [KEY=VALUE...]
point() {
    local kind=$1 directory=$2 graph=$3 exchange=$4 ranks=$5 config=$6 store threads cores
    shift 6
    local run=$directory/$exchange-p$ranks
    mkdir -p "$directory/stores" "$run"
    # The table must not show an earlier sweep where a run fails.
    rm -f "$run/summary.json"
    if [[ $kind == weak ]]; then
        local scale=$graph count=$ranks
        while ((count > 1)); do
            scale=$((scale + 1)) count=$((count / 2))
        done
        graph=$directory/stores/rmat-$scale.h5
        [[ -f $graph ]] || python -m hpcgnn.generate rmat --scale "$scale" -o "$graph"
    fi
    store=$directory/stores/$(basename -- "$graph" .h5)-p$ranks.h5
    # Not one of another graph, or of an earlier version of this one.
    [[ $store -nt $graph ]] || python -m hpcgnn.partition "$graph" --parts "$ranks" --method metis -o "$store"
    threads=${SLURM_CPUS_PER_TASK:-1}
    cores=$(nproc)
    [[ -n ${SLURM_JOB_ID:-} ]] || threads=$((cores > ranks ? cores / ranks : 1))
    # Ranks on a host, as many as it has cores for, share its memory bandwidth.
    local beside=$((cores / threads > ranks ? ranks : cores / threads))
    ((beside > 0)) || beside=1
    local words=("$config" graph.store="$store" exchange.method="$exchange" "$@" run.threads="$threads")
    say "$run: plan"
    python -m hpcgnn.plan "${words[@]}" --ranks "$ranks" --exchange "$exchange" \
        --beside "$beside" --cores-per-host "$cores" --json >"$run/plan.json"
    say "$run: $ranks ranks with $threads threads"
    mpi_run "$ranks" python -m hpcgnn.train "${words[@]}" run.dir="$run" run.resume=never \
        run.save_predictions=false run.checkpoint_share=0
}

case ${1:-} in
point)
    use_environment
    shift
    point "$@"
    exit
    ;;
table)
    use_environment
    shift
    python -m hpcgnn.analyse scaling "$@"
    exit
    ;;
strong | weak) (($# >= 5)) || usage ;;
*) usage ;;
esac

kind=$1 directory=$2 graph=$3
IFS=, read -ra counts <<<"$4"
IFS=, read -ra exchanges <<<"$EXCHANGES"
config=$5
shift 5
for ranks in "${counts[@]}"; do
    [[ $ranks =~ ^[1-9][0-9]*$ ]] || fail "ranks '$ranks': give a list such as 1,2,4" || exit 2
    [[ $kind == strong ]] || (((ranks & (ranks - 1)) == 0)) ||
        fail "weak scaling on $ranks ranks: sizes of R-MAT graphs double; give powers of two" || exit 2
done
[[ $kind == strong || $graph =~ ^[0-9]+$ ]] || fail "scale '$graph': give log2 of the nodes per rank" || exit 2
[[ $kind == weak || -f $graph ]] || fail "$graph: no such store" || exit 2
[[ -f $config ]] || fail "$config: no such file" || exit 2
mkdir -p "$directory"
[[ ${SCALING:-} == here || -z $(type -P sbatch) ]] || slurm=true
${slurm:-false} || use_environment

runs=() last=()
for ranks in "${counts[@]}"; do
    for exchange in "${exchanges[@]}"; do
        words=(point "$kind" "$directory" "$graph" "$exchange" "$ranks" "$config" "$@")
        runs+=("$directory/$exchange-p$ranks")
        if ${slurm:-false}; then
            job=$(sbatch --parsable --job-name="scaling-$exchange-p$ranks" --ntasks="$ranks" \
                --output="$directory/$exchange-p$ranks.out" "${last[@]}" jobs/scaling.sh "${words[@]}")
            last=(--dependency="afterany:${job%%;*}")
            say "job $job: ${runs[-1]}"
        else
            point "${words[@]:1}"
        fi
    done
done
if ${slurm:-false}; then
    job=$(sbatch --parsable --job-name=scaling-table --ntasks=1 --output="$directory/table.out" \
        "${last[@]}" jobs/scaling.sh table "${runs[@]}")
    say "job $job: the table, in $directory/table.out"
else
    python -m hpcgnn.analyse scaling "${runs[@]}"
fi
