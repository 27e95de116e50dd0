#!/usr/bin/env bash
# All checks and tables of the GPU path in one loan of a card, in at most twelve minutes:
#   bash benchmarks/gpu_session.sh RESULTS_FOLDER
# Installs nothing: cupy, a torch with CUDA, mpi4py, pytest and the built hpcgnn must be there
# (torch-geometric is a peer where it is installed). Each part has a time limit; a part that fails
# or runs out of time is named at the end, and what it has written stays.
set -u

out=${1:?usage: bash benchmarks/gpu_session.sh RESULTS_FOLDER}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-python}
failed=()

require() {
    "$python" - <<'CHECK' || exit 2
import sys
try:
    import cupy, pytest, torch
    import hpcgnn.kernels._kernels
    from hpcgnn.kernels.cuda import require_gpu
    require_gpu()
    assert torch.cuda.is_available(), "this build of torch finds no GPU"
except Exception as error:
    sys.exit(f"gpu_session: {error}")
properties = cupy.cuda.runtime.getDeviceProperties(0)
print(properties["name"].decode(), "cupy", cupy.__version__, "torch", torch.__version__)
CHECK
}

# part NAME SECONDS FILE COMMAND...
part() {
    local name=$1 limit=$2 file=$3 started=$SECONDS
    shift 3
    timeout "$limit" "$@" >"$out/$file" 2>"$out/$file.log"
    local status=$?
    echo "$name: status $status, $((SECONDS - started)) s"
    [ "$status" -eq 0 ] || failed+=("$name ($status)")
}

bench() {
    part "$1" "$2" "$3" "$python" -m benchmarks.bench_gpu --json "${@:4}"
}

require | tee "$out/device.txt"
[ "${PIPESTATUS[0]}" -eq 0 ] || exit 2

part kernels 60 kernels.txt "$python" -m pytest -q -p no:cacheprovider tests/kernels/cuda -k card
part training_one_rank 40 ranks1.txt "$python" -m pytest -q -p no:cacheprovider \
    tests/train/full/test_device.py tests/train/programs/test_device.py
# Two ranks share the card: every exchange, schedule and model.
part two_ranks 80 ranks2.txt mpiexec -n 2 "$python" -m pytest -q -p no:cacheprovider \
    tests/spmm/gpu/test_device.py tests/attention/test_device.py tests/train/full/test_device.py
part four_ranks 60 ranks4.txt mpiexec --oversubscribe -n 4 "$python" -m pytest -q -p no:cacheprovider \
    tests/train/full/test_device.py
# The same two ranks with their kernels side by side, where the multi-process service can be started.
if nvidia-cuda-mps-control -d >"$out/mps.txt" 2>&1; then
    part two_ranks_mps 60 ranks2_mps.txt mpiexec -n 2 "$python" -m pytest -q -p no:cacheprovider \
        tests/spmm/gpu/test_device.py tests/train/full/test_device.py
    echo quit | nvidia-cuda-mps-control >>"$out/mps.txt" 2>&1
else
    failed+=("two_ranks_mps (no multi-process service)")
fi
bench aggregation 60 aggregation.jsonl --tables aggregation --graphs rmat:12:2,debian,rmat:18:16
bench attention 40 attention.jsonl --tables attention --graphs debian,rmat:16:16
bench paths 40 paths.jsonl --tables paths --graphs debian,rmat:18:16 --widths 16,128
bench banded 40 banded.jsonl --tables banded --graphs ""
part epochs 90 epochs.jsonl "$python" -m benchmarks.bench_epoch --json --device cuda --threads 1 \
    --models gcn,sage,gat:4 --graph debian --precision float32,bfloat16 --repeat 15
bench training 70 training.jsonl --tables training --graphs debian,rmat:17:16
part calibration 50 calibration.txt "$python" -m benchmarks.calibrate_group_size \
    --output "$out/rule.json" --widths 16,128 --repeat 5 \
    --graphs rmat:12:2,rmat:12:16,rmat:14:4,rmat:14:32,rmat:16:2,rmat:16:8,rmat:17:16,debian

if [ ${#failed[@]} -gt 0 ]; then
    echo "not done: ${failed[*]}"
    exit 1
fi
