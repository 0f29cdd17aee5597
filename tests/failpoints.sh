#!/usr/bin/env bash
# Hits every durable step of coordinator, leader and rank with SIGKILL, an error and a delay, N times each, while small jobs
# train. Prints what struck; fails when a job is lost, an invariant is violated or weights are not those of a run without faults.
#
#   tests/failpoints.sh [N]      100 times by default; about two minutes for each
#
# Runs the release build (cmake --build --preset release).
set -euo pipefail
cd "$(dirname "$0")/.."

repeats=${1:-100}
case $repeats in
  '' | 0* | *[!0-9]*) echo "failpoints: expected a number from 1, found '$repeats'" >&2; exit 2 ;;
esac
export ATOLL_BINARY_DIR=${ATOLL_BINARY_DIR:-$PWD/build/release} ATOLL_SOURCE_DIR=$PWD OMP_NUM_THREADS=1
[ -x "$ATOLL_BINARY_DIR/tests/failpoint_test" ] ||
  { echo "failpoints: $ATOLL_BINARY_DIR/tests/failpoint_test is not built: cmake --build --preset release" >&2; exit 2; }
ATOLL_FAILPOINT_REPEATS=$repeats "$ATOLL_BINARY_DIR/tests/failpoint_test"
