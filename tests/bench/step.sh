#!/usr/bin/env bash
# A training step of one process against the same step written with stock autograd: one thread, taking turns; where the
# time of a step goes, by action; and what a backward split into I and W costs. One JSON object per line on standard
# output. Wants a quiet core; a minute. Arguments go to the bench itself, e.g. --pairs 5, --width 128, or --operators for
# a list of the operators that take most, on standard error.
set -euo pipefail
case ${1:-} in
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
  '' | --*) ;;
  *) echo "step.sh: unknown argument '$1'; expected those of step_bench, such as --pairs N" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/../.."
build=${ATOLL_BUILD:-build/release}
if [ ! -x "$build/bin/step_bench" ]; then
  cmake --preset release >&2
  cmake --build --preset release --target step_bench >&2
fi
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
exec "$build/bin/step_bench" "$@"
