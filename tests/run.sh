#!/bin/bash
# Check everything: style, types, layers, documentation, C++ tests, and the Python suite on one rank
# and on 4.
#
#   bash tests/run.sh [--all] [PYTEST ARGUMENTS]
#
# --all adds the tests marked slow (Slurm among them) and worlds of 3 and 8 ranks.
set -euo pipefail

all=false
if [[ ${1:-} == --all ]]; then
    all=true
    shift
fi
arguments=("$@")
cd -- "$(dirname -- "$0")/.."
. jobs/env.sh
use_environment test lint docs

# Hundreds of processes start here: they share the compiled files.
unset PYTHONDONTWRITEBYTECODE
# More threads and ranks run than there are cores: busy waiting would delay the others.
export OMP_WAIT_POLICY=passive
yield_when_idle
# A waiting rank sleeps in between (Open MPI 5), 0.1 ms each time: busy waiting took a third of the
# ranks' seconds, and sleeping as short as possible a seventh of all seconds.
export OMPI_MCA_threads_pthreads_yield_strategy=nanosleep
export OMPI_MCA_threads_pthreads_nanosleep_time=100000
PYTEST=(python -m pytest --color=no -p no:cacheprovider -rs)
$all || PYTEST+=(-m "not slow")
NO_TESTS=5
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
started=$SECONDS

# The time limit of a stage on a quiet machine, scaled by the processes that now compete for a core.
stretched() {
    local load
    read -r load _ 2>/dev/null </proc/loadavg || load=0
    echo $(($1 * (1 + ${load%.*} / cores)))
}

# ended NAME START_S STATUS: print the time of a stage, or end the script with its name.
ended() {
    local status=$3
    # Selected tests may all be serial, so that there are none for the ranks.
    if ((status == NO_TESTS && ${#arguments[@]} > 0)); then status=0; fi
    if ((status == 124 || status == 137)); then echo "== $1: over its time"; fi
    if ((status != 0)); then
        echo "hpcgnn tests: FAILED in stage '$1' (exit status $status)"
        exit 1
    fi
    echo "== $1: $((SECONDS - $2)) s"
}

# stage NAME LIMIT_S COMMAND...: run it under a time limit.
stage() {
    local name=$1 limit_s start=$SECONDS status=0
    limit_s=$(stretched "$2")
    shift 2
    echo "== $name"
    timeout --kill-after=15 "$limit_s" "$@" || status=$?
    ended "$name" "$start" "$status"
}

# behind NAME LIMIT_S COMMAND...: start it in the background of later stages; `join NAME`: wait for
# it and print its output.
declare -A beside=()
trap 'kill "${beside[@]}" 2>/dev/null || true' EXIT
behind() {
    local name=$1 limit_s
    limit_s=$(stretched "$2")
    shift 2
    timeout --kill-after=15 "$limit_s" "$@" >"build/tests/$name.log" 2>&1 &
    beside[$name]=$!
}
join() {
    local start=$SECONDS status=0
    echo "== $1, the rest"
    tail --pid="${beside[$1]}" -n +1 -f "build/tests/$1.log"
    wait "${beside[$1]}" || status=$?
    ended "$1, the rest" "$start" "$status"
}

# ranks HOW N LIMIT_S: the suite on N ranks, in one launch, as a `stage` or `behind`.
ranks() {
    "$1" "pytest on $2 ranks" "$3" bash -c '. jobs/env.sh && mpi_exec "$@"' bash \
        "$2" "${PYTEST[@]}" "${arguments[@]}"
}

# tracked PATTERN...: set `files` to the existing files with these names that git tracks, so that no
# check reads files that a run has left in the tree.
tracked() {
    local file
    files=()
    while IFS= read -r -d '' file; do
        [[ ! -f $file || -L $file ]] || files+=("$file")
    done < <(git ls-files -z -- "$@")
    ((${#files[@]} > 0)) || {
        echo "hpcgnn tests: no files of $*: run this in a git checkout"
        exit 1
    }
}

# Make the list of fonts here; each of the processes that start at once would make and report it.
stage "fonts" 60 python -c 'import matplotlib.font_manager'
mkdir -p build/tests
# While ranks wait for one of them, compilers and other tests use the cores: everything else runs in
# the background. Slow tests measure seconds, so their ranks have the machine alone.
$all || ranks behind 4 2400
renice -n 5 $$ >/dev/null

# With sanitizers, the kernels compile four times as fast with -Og as with -O3, and keep assertions.
# Three checks of `undefined` are disabled, as they take a third of the compile time and `address`
# ends a program for the same faults: null pointers, pointers that wrap, bytes outside of objects.
# All other checks end it, too.
# Kernels for two numbers of registers instead of eight are a third of the rest; they are the same
# templates, which the Python suite runs for all eight.
UNDEFINED=shift,integer-divide-by-zero,unreachable,vla-bound,return,signed-integer-overflow,bounds
UNDEFINED+=,alignment,nonnull-attribute,returns-nonnull-attribute,bool,enum,builtin
# As one unit, the sources of a library or of its tests compile in half the time. The extensions are
# built from single sources, which shows that each includes what it needs.
COLUMN_REGS=2
if $all; then COLUMN_REGS=8; fi
stage "C++ configure" 60 cmake -S . -B build/tests -DHPCGNN_PYTHON=OFF -DHPCGNN_TESTS=ON \
    -DHPCGNN_WERROR=ON -DHPCGNN_SANITIZE="address,$UNDEFINED" -DHPCGNN_COLUMN_REGS=$COLUMN_REGS \
    -DCMAKE_CXX_FLAGS=-fno-sanitize-recover=undefined -DCMAKE_CXX_FLAGS_RELEASE=-Og \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0
behind "C++ build" 2400 cmake --build build/tests --parallel "$cores"

tracked '*.py'
stage "ruff check" 60 ruff check "${files[@]}"
stage "ruff format" 60 ruff format --check "${files[@]}"
stage "mypy" 300 mypy
stage "import layers" 120 lint-imports
tracked '*.cc' '*.h' '*.cu'
stage "clang-format" 60 clang-format --dry-run -Werror "${files[@]}"
tracked '*.py' '*.md' '*.cc' '*.h' '*.cu' '*.cuh' '*.sh' '*.toml' '*.txt' '*.sbatch' '*.pbs' '*.def' .ci/run
stage "codespell" 60 codespell "${files[@]}"
tracked '*.sh' '*.sbatch' '*.pbs' .ci/run
stage "shellcheck" 60 shellcheck "${files[@]}"

# Pages, links, docstrings, and the help of commands.
stage "documentation" 200 python -m sphinx -W --keep-going -q -b html -c docs . build/site

# Every test runs on one rank, with a worker for each core. Workers use the core time that ranks do
# not use while they wait for each other; ranks alone at the end would leave cores idle.
LIMIT_S=1200
if $all; then LIMIT_S=10800; fi
stage "pytest on one rank" $LIMIT_S "${PYTEST[@]}" --numprocesses "$cores" --dist worksteal \
    "${arguments[@]}"

join "C++ build"
stage "C++ tests" 300 ctest --test-dir build/tests --parallel "$cores" --output-on-failure \
    --no-tests=error
if $all; then
    ranks stage 4 7200
    ranks stage 3 7200
    ranks stage 8 3600
    stage "a wheel in an empty environment" 1800 bash tests/wheel.sh
else
    join "pytest on 4 ranks"
fi
echo "hpcgnn tests: all stages passed in $((SECONDS - started)) s"
