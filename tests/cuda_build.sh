#!/usr/bin/env bash
# Builds what sees CUDA (the NCCL transport, its tests, the worker, the GPU checks) with the cuda preset, and runs it.
# Needs no GPU: then the device test skips, and the worker must start and say that there is no device.
#
#   tests/cuda_build.sh [--transport-only]     --transport-only leaves out what holds minutes of LibTorch code
set -euo pipefail
cd "$(dirname "$0")/.."

targets=(nccl_transport_test nccl_device_test)
case "${1:-}" in
  '') targets+=(atoll-worker gpu_checks serving_bench) ;;
  --transport-only) ;;
  *) echo "cuda_build: unknown argument '$1'; expected none, or --transport-only" >&2; exit 2 ;;
esac

deploy/setup.sh
cmake --preset cuda >/dev/null
cmake --build --preset cuda --target "${targets[@]}" -- -j"$(nproc)"

build/cuda/tests/nccl_transport_test --gtest_brief=1
device=0
build/cuda/tests/nccl_device_test || device=$?
case $device in
  0) echo "cuda_build: passed on this machine's devices" ;;
  77) echo "cuda_build: built and linked; the device test was SKIPPED, since this machine has no device" ;;
  *) echo "cuda_build: error: nccl_device_test ended with $device" >&2; exit 1 ;;
esac

if [ "${1:-}" != --transport-only ] && [ "$device" = 77 ]; then
  said=$(build/cuda/bin/atoll-worker --device cuda --coordinator 127.0.0.1:1 --island-id probe --blob-store file:///nonexistent 2>&1) &&
    { echo "cuda_build: error: the worker accepted a device that is not there" >&2; exit 1; }
  echo "$said"
  grep -q -- '--device: .*CUDA' <<<"$said" ||
    { echo "cuda_build: error: expected the worker to name the missing device; it said the above" >&2; exit 1; }
  skipped=0
  build/cuda/bin/gpu_checks step-fp32 || skipped=$?
  [ "$skipped" = 77 ] || { echo "cuda_build: error: expected gpu_checks to skip with 77, found $skipped" >&2; exit 1; }
fi
