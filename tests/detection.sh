#!/usr/bin/env bash
# How soon a rank and an island that are gone are noticed, and that none is given up without cause: each of SIGKILL, SIGSTOP
# and a network cut twenty times, and half an hour of four islands at work. Prints median and worst, fails above the targets.
# Wants the machine for itself; 45 minutes.
#
#   tests/detection.sh [ROUNDS] [QUIET]         e.g. tests/detection.sh 20 30m, which are the defaults
set -euo pipefail
case ${1:-} in
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
rounds=${1:-20}
quiet=${2:-30m}
case $rounds in
  '' | *[!0-9]*) echo "detection.sh: expected a number of rounds first, found '$rounds'" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
build=${ATOLL_BUILD:-$PWD/build/release}
if [ ! -x "$build/tests/detection_test" ] || [ ! -x "$build/bin/atoll-worker" ]; then
  cmake --preset release >&2
  cmake --build --preset release --target detection_test atoll-worker atoll-coordinator >&2
fi
export ATOLL_BINARY_DIR=$build ATOLL_SOURCE_DIR=$PWD OMP_NUM_THREADS=1
export ATOLL_DETECTION_ROUNDS=$rounds ATOLL_DETECTION_QUIET=$quiet
exec "$build/tests/detection_test"
