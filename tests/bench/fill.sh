#!/usr/bin/env bash
# Frozen work in the bubbles: emulated ranks against the bound (emulated-s4, emulated-s8), and two real ranks against the
# same work after the flush (real-s2). One JSON object per line on standard output; the course of it on standard error. Ends with
# 1 where a target is missed.
# Wants two quiet cores; a minute and a half. With "emulated" or "real" before them, arguments go to that bench alone.
set -euo pipefail
case ${1:-} in
  emulated | real | '') ;;
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "fill.sh: unknown argument '$1'; expected emulated or real, and then arguments of that bench" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/../.."
build=${ATOLL_BUILD:-build/release}
if [ ! -x "$build/bin/fill_emulated_bench" ] || [ ! -x "$build/bin/fill_real_bench" ]; then
  cmake --preset release >&2
  cmake --build --preset release --target fill_emulated_bench fill_real_bench >&2
fi
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
[ -z "${1:-}" ] || exec "$build/bin/fill_$1_bench" "${@:2}"
code=0
"$build/bin/fill_emulated_bench" || code=1
"$build/bin/fill_real_bench" || code=1
exit $code
