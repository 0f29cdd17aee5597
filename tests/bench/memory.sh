#!/usr/bin/env bash
# Measures the memory of training, counted by the allocator: against the plan's prediction (four processes), and V
# schedules against 1F1B (eight ranks as threads). One JSON object per line on standard output; progress on standard
# error. Ends with 1 if a target is missed.
# Takes under a minute, on a machine in any state. Arguments go to the bench itself, e.g. --schedule 1f1b.
set -euo pipefail
case ${1:-} in
  '' | --schedule*) ;;
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "memory.sh: unknown argument '$1'; expected --schedule NAME" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/../.."
build=${ATOLL_BUILD:-build/release}
if [ ! -x "$build/bin/memory_bench" ]; then
  cmake --preset release >&2
  cmake --build --preset release --target memory_bench >&2
fi
# One thread per rank.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
exec "$build/bin/memory_bench" "$@"
