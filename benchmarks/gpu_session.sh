#!/usr/bin/env bash
# The checks and tables of the GPU path in one session on a GPU, planned for six minutes on 16 cores:
#   bash benchmarks/gpu_session.sh RESULTS_FOLDER
# Installs nothing: cupy, a torch with CUDA, mpi4py, pytest and the built hpcgnn must be there
# (torch-geometric is a peer if it is installed). Checks run together, timings run alone. Each part
# has a time limit; a part that fails or exceeds it is named at the end, and its output stays.
set -u

out=${1:?usage: bash benchmarks/gpu_session.sh RESULTS_FOLDER}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-python}
: >"$out/failed.txt"

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
    [ "$status" -eq 0 ] || echo "$name ($status)" >>"$out/failed.txt"
}

check() {
    part "$1" 90 "$1.txt" "${@:2}" &
}

bench() {
    part "$1" 60 "$1.jsonl" "$python" -m benchmarks.bench_gpu --json "${@:2}"
}

require | tee "$out/device.txt"
[ "${PIPESTATUS[0]}" -eq 0 ] || exit 2

tests=("$python" -m pytest -q -p no:cacheprovider)
# Compile each kernel once, so that no check compiles it again.
part kernels 90 kernels.txt "${tests[@]}" tests/kernels/cuda -k card
check one_rank "${tests[@]}" tests/train/full/test_device.py tests/train/programs/test_device.py \
    tests/train/sampled/test_device.py tests/nn/test_device_propagators.py \
    tests/autograd/test_device.py
# Ranks share the GPU: every exchange, schedule and model.
check two_ranks mpiexec --oversubscribe -n 2 "${tests[@]}" tests/spmm/gpu/test_device.py \
    tests/attention/test_device.py tests/train/full/test_device.py
check four_ranks mpiexec --oversubscribe -n 4 "${tests[@]}" tests/train/full/test_device.py
check losses_1 "$python" -m benchmarks.gpu_losses
check losses_2 mpiexec --oversubscribe -n 2 "$python" -m benchmarks.gpu_losses
wait

bench aggregation --tables aggregation --widths 16,32,64,128,256 \
    --graphs rmat:12:2,debian,grid3d:80,hyperbolic:200000,rmat:18:16
bench attention --tables attention --graphs debian,rmat:16:16
bench paths --tables paths --graphs debian,rmat:18:16 --widths 16,128
bench banded --tables banded --graphs ""
part epochs 90 epochs.jsonl "$python" -m benchmarks.bench_epoch --json --device cuda --threads 1 \
    --models gcn,sage,gat:4 --graph debian --precision float32,bfloat16 --repeat 15
part edges 60 edges.json "$python" -m benchmarks.bench_edges --device cuda --side 40 --blocks 4 \
    --rounds 7 --json
bench training --tables training --graphs debian
part calibration 60 calibration.txt "$python" -m benchmarks.calibrate_group_size \
    --output "$out/rule.json" --repeat 5

# The same two ranks with concurrent kernels, if the multi-process service can be started.
export CUDA_MPS_PIPE_DIRECTORY=$out/mps CUDA_MPS_LOG_DIRECTORY=$out/mps_log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
if nvidia-cuda-mps-control -d >"$out/mps.txt" 2>&1; then
    part two_ranks_mps 60 two_ranks_mps.txt mpiexec --oversubscribe -n 2 "${tests[@]}" \
        tests/train/full/test_device.py
    echo quit | nvidia-cuda-mps-control >>"$out/mps.txt" 2>&1
else
    echo "two_ranks_mps (no multi-process service)" >>"$out/failed.txt"
fi

if [ -s "$out/failed.txt" ]; then
    echo "not done:" && cat "$out/failed.txt"
    exit 1
fi
