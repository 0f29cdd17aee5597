#!/usr/bin/env bash
# Hits every durable step of coordinator, leader and rank with SIGKILL, an error and a delay, N times each, while small jobs
# train. Prints what struck; fails when a job is lost, an invariant is violated or weights are not those of a run without faults.
#
#   tests/failpoints.sh [N [AT_ONCE]]     100 times, by 4 clusters at once, each with a seed of its own
#
# A cluster mostly waits, for leases and processes that start; two processors are busy with four. Runs the release build
# (cmake --build --preset release).
set -euo pipefail
cd "$(dirname "$0")/.."

repeats=${1:-100}
clusters=${2:-4}
for number in "$repeats" "$clusters"; do
  case $number in
    '' | 0* | *[!0-9]*) echo "failpoints: expected a number from 1, found '$number'" >&2; exit 2 ;;
  esac
done
export ATOLL_BINARY_DIR=${ATOLL_BINARY_DIR:-$PWD/build/release} ATOLL_SOURCE_DIR=$PWD OMP_NUM_THREADS=1
[ -x "$ATOLL_BINARY_DIR/tests/failpoint_test" ] ||
  { echo "failpoints: $ATOLL_BINARY_DIR/tests/failpoint_test is not built: cmake --build --preset release" >&2; exit 2; }
runs=()
for ((seed = 1; seed <= clusters; ++seed)); do
  # The first ones take one more where it does not divide.
  share=$(((repeats + clusters - seed) / clusters))
  [ "$share" -gt 0 ] || break
  ATOLL_FAILPOINT_REPEATS=$share ATOLL_FAILPOINT_SEED=$seed "$ATOLL_BINARY_DIR/tests/failpoint_test" \
    > >(sed -u "s/^/$seed: /") 2>&1 &
  runs+=($!)
done
trap 'kill "${runs[@]}" 2>/dev/null || true' INT TERM
code=0
for run in "${runs[@]}"; do wait "$run" || code=1; done
exit "$code"
