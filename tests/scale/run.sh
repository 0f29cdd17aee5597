#!/usr/bin/env bash
# Two thousand simulated islands at one coordinator: heartbeats every two seconds, one call in twenty a durable commit, and five
# minutes without a coordinator in between; first in the clear, then over mutual TLS. Then a thousand that come back to a coordinator
# with 100,000 tasks, and that coordinator's restart alone. One JSON object per line on standard output; ends with 1 where a target
# is missed, as when an attempt changed. The islands share the machine with the coordinator. 20 minutes; less with a shorter --away.
#
#   tests/scale/run.sh                            all of it
#   tests/scale/run.sh --away 30s --seconds 20    arguments go to scale_bench; the last of two that are alike counts
set -euo pipefail
case ${1:-} in
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
  '' | --*) ;;
  *) echo "run.sh: unknown argument '$1'; expected those of scale_bench, such as --seconds 20" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/../.."
build=${ATOLL_BUILD:-$PWD/build/release}
if [ ! -x "$build/bin/scale_bench" ] || [ ! -x "$build/bin/restart_bench" ] || [ ! -x "$build/bin/atoll-coordinator" ]; then
  cmake --preset release >&2
  cmake --build --preset release --target scale_bench restart_bench >&2
fi
export ATOLL_BINARY_DIR=$build
code=0
"$build/bin/scale_bench" --islands 2000 --away 5m "$@" || code=1
"$build/bin/scale_bench" --tls --islands 2000 --away 5m "$@" || code=1
"$build/bin/scale_bench" --tls --away 10s "$@" --islands 1000 --jobs 5000 || code=1
"$build/bin/restart_bench" || code=1
exit $code
