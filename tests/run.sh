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

# Hundreds of processes start in here: what one has compiled serves the others.
unset PYTHONDONTWRITEBYTECODE
PYTEST=(python -m pytest --color=no -p no:cacheprovider -rs)
$all || PYTEST+=(-m "not slow")
NO_TESTS=5
started=$SECONDS

# What a stage may take on a quiet machine, stretched by the processes that compete for a core now.
stretched() {
    local load
    read -r load _ 2>/dev/null </proc/loadavg || load=0
    echo $(($1 * (1 + ${load%.*} / $(nproc))))
}

# stage NAME LIMIT_S COMMAND...: run it under a time limit, or end the script naming the stage.
stage() {
    local name=$1 limit_s start=$SECONDS status=0
    limit_s=$(stretched "$2")
    shift 2
    echo "== $name"
    timeout --kill-after=15 "$limit_s" "$@" || status=$?
    # Chosen tests may all be serial ones, which leaves none for the ranks.
    if ((status == NO_TESTS && ${#arguments[@]} > 0)); then status=0; fi
    if ((status == 124 || status == 137)); then echo "== $name: over its $limit_s s"; fi
    if ((status != 0)); then
        echo "hpcgnn tests: FAILED in stage '$name' (exit status $status)"
        exit 1
    fi
    echo "== $name: $((SECONDS - start)) s"
}

# ranks N LIMIT_S: the suite on N ranks, in one launch.
ranks() {
    stage "pytest on $1 ranks" "$2" bash -c '. jobs/env.sh && mpi_exec "$@"' bash \
        "$1" "${PYTEST[@]}" "${arguments[@]}"
}

# tracked PATTERN...: set `files` to the files of those names that git tracks and that are there, so
# that no check reads what a run has left in the tree.
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

# Sanitized, the kernels compile three times as fast with -O1 as with -O3, and assertions stay. Of
# `undefined` two checks are left out that take a fifth of the compiler's time: what they find, null
# pointers and bytes outside of objects, ends a program by `address`. All others end it as well.
# Kernels for two numbers of registers instead of eight are a third of the rest; they are the same
# templates, which the Python suite runs for all eight.
UNDEFINED=shift,integer-divide-by-zero,unreachable,vla-bound,return,signed-integer-overflow,bounds
UNDEFINED+=,alignment,nonnull-attribute,returns-nonnull-attribute,bool,enum,pointer-overflow,builtin
COLUMN_REGS=2
if $all; then COLUMN_REGS=8; fi
stage "C++ configure" 60 cmake -S . -B build/tests -DHPCGNN_PYTHON=OFF -DHPCGNN_TESTS=ON \
    -DHPCGNN_WERROR=ON -DHPCGNN_SANITIZE="address,$UNDEFINED" -DHPCGNN_COLUMN_REGS=$COLUMN_REGS \
    -DCMAKE_CXX_FLAGS=-fno-sanitize-recover=undefined -DCMAKE_CXX_FLAGS_RELEASE=-O1
# Compilers take what checks of texts, and tests that wait for something, leave of the cores.
nice -n 15 timeout --kill-after=15 "$(stretched 1200)" \
    cmake --build build/tests --parallel "$(nproc)" >build/tests/build.log 2>&1 &
build=$!
trap 'kill "$build" 2>/dev/null || true' EXIT

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

# Pages, links, docstrings, and what commands say of themselves.
stage "documentation" 200 python -m sphinx -W --keep-going -q -b html -c docs . build/site

# A worker process for each core and two more, since many tests wait for a fault to be noticed; every
# test still runs on one rank.
stage "pytest on one rank" 1200 "${PYTEST[@]}" --numprocesses "$(($(nproc) + 2))" \
    --dist worksteal "${arguments[@]}"

stage "C++ build, the rest" 1200 tail --pid="$build" -n +1 -f build/tests/build.log
wait "$build" || {
    echo "hpcgnn tests: FAILED in the C++ build"
    exit 1
}
stage "C++ tests" 300 ctest --test-dir build/tests --parallel "$(nproc)" --output-on-failure \
    --no-tests=error

if $all; then
    ranks 3 1200
    ranks 8 1800
    stage "a wheel in an empty environment" 1800 bash tests/wheel.sh
fi
ranks 4 1200
echo "hpcgnn tests: all stages passed in $((SECONDS - started)) s"
