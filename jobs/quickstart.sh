#!/bin/bash
# From a fresh machine to a model trained on a real graph: bash jobs/quickstart.sh
#
# Each call starts a new run, in the first free directory of runs/quickstart, runs/quickstart-2, ...
set -euo pipefail
cd -- "$(dirname -- "$0")/.."
. jobs/env.sh
use_environment

PARTS=4
graph=data/debian-packages.h5
parts=data/debian-packages.metis$PARTS.h5

step() {
    say "$(date +%T) $*"
}

free_directory() {
    local directory=$1 number=1
    while [[ -e $directory ]]; do
        number=$((number + 1))
        directory=$1-$number
    done
    echo "$directory"
}

step "the bundled graph -> $graph"
mkdir -p data runs
python -m hpcgnn.generate debian-packages -o "$graph"

step "$PARTS parts -> $parts"
# The relations that jobs/configs/quickstart.toml trains on.
python -m hpcgnn.partition "$graph" --parts "$PARTS" --method metis \
    --relations depends,pre-depends,recommends,suggests -o "$parts"

run=$(free_directory runs/quickstart)
step "a plan of the run -> $run/plan.json"
mkdir -p "$run"
python -m hpcgnn.plan jobs/configs/quickstart.toml graph.store="$parts" --ranks "$PARTS" \
    --cores-per-host "$(nproc)" --exchange joint --schedule resident \
    --json >"$run/plan.json"

step "training with $PARTS ranks -> $run"
mpi_run "$PARTS" python -m hpcgnn.train jobs/configs/quickstart.toml \
    graph.store="$parts" run.dir="$run"

step "tables and figures"
for script in epoch_breakdown comm_matrix learning_curves; do
    python -m hpcgnn.analyse "$script" "$run" >"$run/$script.txt"
done
python -m hpcgnn.analyse report "$run" >/dev/null
step "done: $(python - "$run/summary.json" <<'EOF'
import json, sys

summary = json.load(open(sys.argv[1]))
peak = max(rank["peak_rss_bytes"] for rank in summary["ranks_detail"])
accuracy, epoch_s = summary["mean"]["test"], summary["epoch_s"]["median"]
print(f"test accuracy {accuracy:.2%}, an epoch {epoch_s:.3f} s, largest rank {peak / 2**20:.0f} MiB")
EOF
)"
say "the report: $run/report.html"
