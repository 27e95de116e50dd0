#!/bin/bash
# Check everything: style, types, layers, C++ tests, and the Python suite on one rank and on 4.
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
use_environment test lint

PYTEST=(python -m pytest --color=no -p no:cacheprovider -rs)
$all || PYTEST+=(-m "not slow")
NO_TESTS=5
started=$SECONDS

# stage NAME LIMIT_S COMMAND...: run it under a time limit, or end the script naming the stage.
stage() {
    local name=$1 limit_s=$2 start=$SECONDS status=0
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

stage "ruff check" 60 ruff check .
stage "ruff format" 60 ruff format --check .
stage "mypy" 300 mypy
stage "import layers" 120 lint-imports
mapfile -d '' -t cxx < <(
    find hpcgnn partitioner -type f \( -name '*.cc' -o -name '*.h' -o -name '*.cu' \) -print0
)
stage "clang-format" 60 clang-format --dry-run -Werror "${cxx[@]}"
stage "codespell" 60 codespell
mapfile -d '' -t scripts < <(
    find jobs tests benchmarks -type f \( -name '*.sh' -o -name '*.sbatch' \) -print0
)
stage "shellcheck" 60 shellcheck .ci/run "${scripts[@]}"

# Sanitized, the kernels compile three times as fast with -O1 as with -O3, and assertions stay.
stage "C++ configure" 60 cmake -S . -B build/tests -DHPCGNN_PYTHON=OFF -DHPCGNN_TESTS=ON \
    -DHPCGNN_WERROR=ON -DHPCGNN_SANITIZE=address,undefined -DCMAKE_CXX_FLAGS_RELEASE=-O1
stage "C++ build" 1200 cmake --build build/tests --parallel "$(nproc)"
stage "C++ tests" 300 ctest --test-dir build/tests --output-on-failure --no-tests=error

# A worker process for each core; every test still runs on one rank.
stage "pytest on one rank" 1200 "${PYTEST[@]}" --numprocesses "$(nproc)" "${arguments[@]}"
if $all; then
    ranks 3 1200
    ranks 8 1800
fi
ranks 4 1200
echo "hpcgnn tests: all stages passed in $((SECONDS - started)) s"
