#!/usr/bin/env bash
# Runs the tests that compute with LibTorch under each instruction set of this machine, and tests over processes that
# compare weights and images bit by bit: other sets sum in other orders.
#
#   tests/instruction_sets.sh [SET...]      of: default (SSE), avx2, avx512; none given: those that the machine has
#
# MKL on AMD has one path for AVX2 and AVX-512 and heeds MKL_CBWR alone.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${ATOLL_BUILD:-build/release}
processes='exact_resume_test|whole_job_test|expert_server_test'

sets=("$@")
if [ $# -eq 0 ]; then
  sets=(default)
  ! grep -qm1 '\bavx2\b' /proc/cpuinfo || sets+=(avx2)
  ! grep -qm1 '\bavx512vl\b' /proc/cpuinfo || sets+=(avx512)
fi
for set in "${sets[@]}"; do
  case $set in
    default | avx2 | avx512) ;;
    *) echo "instruction_sets.sh: expected default, avx2 or avx512, found '$set'" >&2; exit 2 ;;
  esac
done

deploy/setup.sh
cmake --preset release >/dev/null
# A test's name is its target's; what the target links tells whether it computes.
tests=()
while read -r name; do
  inputs=$(ninja -C "$build" -t inputs "tests/$name" 2>/dev/null) || continue  # a script, not a target
  if [[ $name =~ ^($processes)$ ]] || grep -q 'libtorch_cpu' <<<"$inputs"; then tests+=("$name"); fi
done < <(ctest --test-dir "$build" -N -L 'unit|golden|contract|multiproc' | sed -n 's/^ *Test *#[0-9]*: //p')
cmake --build --preset release --target "${tests[@]}" -- -j"$(nproc)"

failed=()
for set in "${sets[@]}"; do
  case $set in
    default) limits="MKL_ENABLE_INSTRUCTIONS=SSE4_2 MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41" ;;
    avx2) limits="MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2" ;;
    avx512) limits="MKL_ENABLE_INSTRUCTIONS=AVX512 ONEDNN_MAX_CPU_ISA=AVX512_CORE" ;;
  esac
  echo "instruction_sets: $set, ${#tests[@]} test programs"
  # shellcheck disable=SC2086
  env ATEN_CPU_CAPABILITY="$set" $limits ctest --test-dir "$build" --output-on-failure --parallel "$(nproc)" \
    -R "^($(IFS='|'; echo "${tests[*]}"))\$" || failed+=("$set")
done
[ ${#failed[@]} -eq 0 ] || { echo "instruction_sets: failed under ${failed[*]}" >&2; exit 1; }
echo "instruction_sets: all passed under ${sets[*]}"
