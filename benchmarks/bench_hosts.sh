#!/bin/bash
# The exchange benchmark, and training with one exchange and another, over emulated hosts.
#
#   bash benchmarks/bench_hosts.sh [products|exchanges|wires|active|ways|choice|edges|plans|nekrs|sar|all] [OUT]
#
# products times single products; ways trains epochs by all exchanges in turn, choice by those that
# exchange.method=auto chooses from, in CASES over RATES; edges does so with networks on edges, by
# those that they run with; nekrs times nekRS-ML's network, and sar the SAR package, where they are
# installed, beside ours over RATES; plans compares plans with runs on HOSTS=2; the other steps train: with one exchange and another, with
# 16-bit floats, int8 and int2 on the wire, and with few training nodes, on active sets and without.
# Results go to OUT (default: runs/bench-hosts). It needs root, iproute2 and Open MPI. Settings, with
# their defaults:
HOSTS=${HOSTS:-4}                         # emulated hosts
RANKS_PER_HOST=${RANKS_PER_HOST:-1}       # each rank trains on one part of the graph
RATE=${RATE:-200mbit}                     # of every link, both ways
METHODS=${METHODS:-oblivious aware joint} # exchanges to train with
ROUNDS=${ROUNDS:-3}                       # training runs of each kind, in turn
EPOCHS=${EPOCHS:-4}                       # of each run; the first is not counted
REPEAT=${REPEAT:-5}                       # of each product
RATES=${RATES:-200mbit 1gbit}             # of choice and sar
CASES=${CASES:-debian.metis:sage:16 debian.metis:sage:64 debian.metis:sage:256 debian.metis:gcn:64 debian.random:sage:16 debian.random:sage:64
    debian.random:gcn:64 rmat.random:sage:64 rmat.random:gcn:16 grid.metis:sage:64 grid.metis:gcn:16}
EDGE_WAYS=${EDGE_WAYS:-oblivious,aware,hierarchical,aware+sequential} # of edges
PUSH_WAYS=${PUSH_WAYS:-aware,push,joint}  # of edges whose messages add up
NEKRS_NET=${NEKRS_NET:---layers 8 --hidden 128 --maps 2 --steps 3} # of nekrs
LIMIT_S=${LIMIT_S:-900}                   # for one launch

set -euo pipefail
cd -- "$(dirname -- "$0")/.."
. jobs/env.sh

RELATIONS=depends,pre-depends,recommends,suggests
QUOTED='["depends", "pre-depends", "recommends", "suggests"]'
ranks=$((HOSTS * RANKS_PER_HOST))
what=${1:-all}
out=${2:-runs/bench-hosts}

prepare() {
    hosts check
    use_environment
    mkdir -p "$out"
    state=$(mktemp -d -t hpcgnn-hosts-XXXXXX)
    trap 'hosts down "$state"; rm -rf -- "$state"' EXIT
    mapfile -t names < <(seq -f node%g "$HOSTS")
    hosts up "$state" "${names[@]}"
    hosts rate "$state" "$RATE"
    write_launcher
}

hosts() {
    bash "$HPCGNN_ROOT/benchmarks/hosts.sh" "$@"
}

# The launcher that jobs/env.sh is to take: the one it found, on the emulated hosts.
write_launcher() {
    cat >"$state/mpiexec" <<LAUNCHER
#!/bin/bash
exec bash ${HPCGNN_ROOT@Q}/benchmarks/hosts.sh mpiexec ${state@Q} $RANKS_PER_HOST ${MPI_LAUNCHER[*]@Q} "\$@"
LAUNCHER
    chmod +x "$state/mpiexec"
    export MPIEXEC=$state/mpiexec HPCGNN_MPI
    # Every host counts the machine's cores as its own.
    export OMP_NUM_THREADS=1
}

on_hosts() {
    timeout --kill-after=10 "$LIMIT_S" bash -c '. jobs/env.sh && mpi_exec "$@"' bash "$ranks" "$@"
}

graphs() {
    graph=$out/debian.parts$ranks.h5
    few=$out/debian.parts$ranks.train10.h5
    [[ -f $out/debian.h5 ]] || python -m hpcgnn.generate debian-packages -o "$out/debian.h5"
    [[ -f $graph ]] || python -m hpcgnn.partition "$out/debian.h5" --parts "$ranks" \
        --method metis --relations "$RELATIONS" -o "$graph"
    [[ -f $few ]] || python -m benchmarks.training_share "$graph" --share 0.1 -o "$few"
}

products() {
    say "$(date +%T) products"
    on_hosts python -m benchmarks.bench_exchange --graph "$graph" --relations "$RELATIONS" \
        --width 256 --exchange all --wire native,bfloat16 --repeat "$REPEAT" --json \
        >"$out/exchange.jsonl"
    cat "$out/exchange.jsonl"
}

# train NAME STORE [section.key=value...]
train() {
    local name=$1 store=$2
    shift 2
    say "$(date +%T) $name"
    on_hosts python -m hpcgnn.train graph.store="$store" graph.relations="$QUOTED" \
        model.name=sage model.hidden=256 model.num_layers=3 \
        train.epochs="$EPOCHS" train.evaluate_every="$EPOCHS" trace.enabled=true \
        run.threads=1 run.resume=never run.checkpoint_share=0 run.save_predictions=false \
        run.dir="$out/$name" "$@" >"$out/$name.log" 2>&1 || fail "$name: see $out/$name.log"
}

ways() {
    say "$(date +%T) ways"
    on_hosts python -m benchmarks.bench_ways "$graph" graph.relations="$QUOTED" --rounds "$ROUNDS" \
        --json >"$out/ways.jsonl"
    cat "$out/ways.jsonl"
}

# cut_graph NAME METHOD KIND [OPTION...]: a generated graph, in parts
cut_graph() {
    local cut=$out/$1.$2.parts$ranks.h5
    [[ -f $out/$1.h5 ]] || python -m hpcgnn.generate "${@:3}" -o "$out/$1.h5"
    [[ -f $cut ]] || python -m hpcgnn.partition "$out/$1.h5" --parts "$ranks" --method "$2" -o "$cut"
}

choice() {
    local rate each store model width
    cut_graph debian metis debian-packages
    cut_graph debian random debian-packages
    cut_graph rmat random rmat --scale 14 --undirected
    cut_graph grid metis grid3d --shape 24,24,24
    for rate in $RATES; do
        hosts rate "$state" "$rate"
        for each in $CASES; do
            IFS=: read -r store model width <<<"$each"
            say "$(date +%T) $rate $each"
            on_hosts python -m benchmarks.bench_ways "$out/$store.parts$ranks.h5" model.name="$model" \
                model.hidden="$width" --ways aware,push,joint --rounds "$ROUNDS" --json \
                >>"$out/choice.$rate.jsonl"
        done
    done
}

# edges_by NAME STORE WAYS section.key=value...: epochs by these
edges_by() {
    say "$(date +%T) $1"
    on_hosts python -m benchmarks.bench_ways "$out/$2.parts$ranks.h5" "${@:4}" --ways "$3" --rounds "$ROUNDS" \
        --json >>"$out/edges.jsonl"
}

# with_edge_features NAME METHOD: NAME.h5 with features of edges as NAME-edges, in parts
with_edge_features() {
    local made=$out/$1-edges
    [[ -f $made.h5 ]] || python -m benchmarks.edge_features_npz "$out/$1.h5" -o "$made.npz"
    [[ -f $made.h5 ]] || python -m hpcgnn.convert "$made.npz" --random-split 60,20,20 -o "$made.h5"
    cut_graph "$1-edges" "$2"
}

edges() {
    local rate
    cut_graph heat metis heat --shape 20,20,20 --trajectories 1 --steps 4
    cut_graph debian metis debian-packages
    cut_graph rmat16 random rmat --scale 16 --edge-factor 4 --undirected
    with_edge_features debian metis
    with_edge_features rmat16 random
    for rate in $RATES; do
        hosts rate "$state" "$rate"
        edges_by "meshgraphnet, heat, $rate" heat.metis "$EDGE_WAYS" train.task=fields fields.targets=T graph.positions=relative \
            model.name=meshgraphnet model.hidden=64 model.num_layers=5 model.dropout=0
        edges_by "pna, debian-packages, $rate" debian.metis "$EDGE_WAYS" model.name=pna model.hidden=64
        edges_by "pna, R-MAT 16, $rate" rmat16.random "$EDGE_WAYS" model.name=pna model.hidden=64
        edges_by "gine, debian-packages, $rate" debian-edges.metis "$PUSH_WAYS" model.name=gine model.hidden=64
        edges_by "gine, R-MAT 16, $rate" rmat16-edges.random "$PUSH_WAYS" model.name=gine model.hidden=64
    done
}

plans() {
    local rate gigabytes
    for rate in $RATES; do
        hosts rate "$state" "$rate"
        case $rate in
        *gbit) gigabytes=$(awk "BEGIN { print ${rate%gbit} / 8 }") ;;
        *mbit) gigabytes=$(awk "BEGIN { print ${rate%mbit} / 8000 }") ;;
        *) fail "plans: RATES of gbit and mbit alone" || exit ;;
        esac
        say "$(date +%T) plans, $rate"
        python -m benchmarks.bench_plans "$out/plans.jsonl" --stores "$out/stores" --rounds "$ROUNDS" --bandwidth "$gigabytes"
    done
}

# NEKRS has the peer's gnn.py, see benchmarks/nekrs_peer.py, and TGV is the store of its mesh in parts.
nekrs() {
    local rate
    for rate in $RATES; do
        hosts rate "$state" "$rate"
        say "$(date +%T) nekrs, $rate"
        # shellcheck disable=SC2086
        python -m benchmarks.nekrs_peer "$TGV" "$NEKRS" --ranks "$ranks" $NEKRS_NET --rounds "$ROUNDS" --json \
            >>"$out/nekrs.$rate.jsonl"
    done
}

sar() {
    local rate precision
    for rate in $RATES; do
        hosts rate "$state" "$rate"
        for precision in float32 bfloat16; do
            say "$(date +%T) sar, $rate, ours in $precision"
            on_hosts python -m benchmarks.bench_sar "$graph" train.precision="$precision" \
                exchange.keep_products=never --ours aware,joint --sar sequential,one-shot,one-shot+mfg \
                --rounds "$ROUNDS" --json >>"$out/sar.$rate.$precision.jsonl"
        done
    done
}

exchanges() {
    local round method
    for ((round = 1; round <= ROUNDS; round++)); do
        for method in $METHODS; do
            train "$method-$round" "$graph" exchange.method="$method"
        done
    done
    # shellcheck disable=SC2086
    compare exchanges $METHODS
}

wires() {
    local round method wire
    for ((round = 1; round <= ROUNDS; round++)); do
        for method in aware joint; do
            for wire in native bfloat16 int8 int2; do
                train "$method-$wire-$round" "$graph" exchange.method="$method" \
                    exchange.wire="$wire"
            done
        done
    done
    for method in aware joint; do compare "$method-wires" "$method"-{native,bfloat16,int8,int2}; done
}

active() {
    local round method sets
    for ((round = 1; round <= ROUNDS; round++)); do
        for method in aware joint; do
            for sets in false true; do
                train "$method-active-$sets-$round" "$few" exchange.method="$method" \
                    exchange.active_sets="$sets"
            done
        done
    done
    for method in aware joint; do compare "$method-active" "$method"-active-{false,true}; done
}

runs_of() {
    local name=$1 round
    local -a directories=()
    for ((round = 1; round <= ROUNDS; round++)); do directories+=("$out/$name-$round"); done
    (IFS=, && echo "$name=${directories[*]}")
}

# compare TABLE BASE NAME...
compare() {
    local table=$1 name
    local -a runs=()
    shift
    for name in "$@"; do runs+=("$(runs_of "$name")"); done
    say "$table"
    python -m benchmarks.compare_training "${runs[@]}" | tee "$out/$table.txt"
}

case $what in
products | exchanges | wires | active | ways | choice | edges | plans | nekrs | sar) steps=("$what") ;;
all) steps=(products exchanges wires active ways choice) ;;
*) fail "usage: bench_hosts.sh [products|exchanges|wires|active|ways|choice|edges|plans|nekrs|sar|all] [OUT]" || exit ;;
esac
prepare
graphs
for step in "${steps[@]}"; do "$step"; done
