#!/bin/bash
# The C++ tests on 64-bit Arm, cross-compiled and run by an emulator (Debian: g++-aarch64-linux-gnu,
# qemu-user), and a check of the code of the portable kernels: vectors, and products fused with sums
# only where the source says so, since rows must have the same bits for any number of threads.
#
#   bash tests/aarch64.sh [BUILD]      (default: build/aarch64; minutes)
set -euo pipefail

cd -- "$(dirname -- "$0")/.."
build=${1:-build/aarch64}
target=aarch64-linux-gnu
for tool in $target-g++ $target-objdump qemu-aarch64 cmake ctest; do
    [[ -n $(type -P "$tool") ]] || {
        echo "hpcgnn tests: error: no $tool (Debian: apt-get install g++-$target qemu-user cmake)" >&2
        exit 2
    }
done

cmake -S . -B "$build" -DHPCGNN_PYTHON=OFF -DHPCGNN_TESTS=ON -DHPCGNN_WERROR=ON \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=$target-g++ \
    "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/$target"
cmake --build "$build" --parallel "$(nproc)"
ctest --test-dir "$build" --output-on-failure --no-tests=error

for unit in "$build"/hpcgnn/kernels/CMakeFiles/*spmm_spmm_portable.dir/src/simd/table.cc.o; do
    code=$($target-objdump -d "$unit")
    vectors=$(grep -cE 'fmla[[:space:]]+v' <<<"$code" || true)
    scalars=$(grep -c 'fmadd' <<<"$code" || true)
    echo "$vectors fused products of vectors, $scalars of single numbers"
    ((vectors > 0 && scalars == 0)) || {
        echo "hpcgnn tests: FAILED: the products are not vectors, or fused where the source is not"
        exit 1
    }
done
