#!/usr/bin/env bash
# Measures what the adaptive schedule search finds, against the published table (tests/golden/published_schedules.csv),
# floors and optima, and how long it takes. One JSON object per line on standard output, reasons on standard error; two
# minutes of one core. Times are simulated, but for the search's own processor time. Exits with 1 when a schedule is
# invalid or worse than the published one.
set -euo pipefail
case ${1:-} in
  '') ;;
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "schedules.sh: expected no argument, found '$1'" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/../.."
build=${ATOLL_BUILD:-build/release}
if [ ! -x "$build/bin/schedules_bench" ]; then
  cmake --preset release >&2
  cmake --build --preset release --target schedules_bench >&2
fi
exec "$build/bin/schedules_bench"
