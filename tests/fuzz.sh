#!/usr/bin/env bash
# Builds the fuzz targets with clang's libFuzzer, address and undefined-behaviour sanitizers, and runs each.
#
#   tests/fuzz.sh [SECONDS] [TARGET...]     30 seconds each by default; all targets, or those named
#   tests/fuzz.sh short [TARGET...]         a fixed number of runs from the committed corpus and one seed: the same
#                                           inputs each time, as a test must
#
# Inputs that a timed run finds beyond the committed corpus stay in build/fuzz/fuzz_work/<target>. Inputs that make a
# target fail are written to build/fuzz/fuzz_failures and named. Needs clang and its run-time (apt: clang
# libclang-rt-dev).
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-30}
[ $# -eq 0 ] || shift
case $seconds in
  short) ;;
  '' | *[!0-9]*) echo "fuzz.sh: expected a number of seconds or 'short' first, found '$seconds'" >&2; exit 2 ;;
  *) limit=(-max_total_time="$seconds") ;;
esac

command -v clang++ >/dev/null || { echo "fuzz.sh: clang++ not found; run: apt-get install clang libclang-rt-dev" >&2; exit 1; }
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' >"$probe/probe.cc"
clang++ -fsanitize=fuzzer,address "$probe/probe.cc" -o "$probe/probe" 2>"$probe/log" || {
  tail -n 3 "$probe/log" >&2
  echo "fuzz.sh: clang++ does not link libFuzzer; run: apt-get install libclang-rt-dev" >&2
  exit 1
}

deploy/setup.sh
cmake --preset fuzz >/dev/null
if [ $# -eq 0 ]; then targets=fuzz_targets; else targets=$*; fi
# shellcheck disable=SC2086
cmake --build --preset fuzz --target $targets -- -j"$(nproc)"

build=$PWD/build/fuzz
if [ $# -eq 0 ]; then
  for corpus in tests/fuzz/corpus/*/; do set -- "$@" "$(basename "$corpus")"; done
fi
failed=
mkdir -p "$build/fuzz_failures"
for target in "$@"; do
  work=$build/fuzz_work/$target
  [ "$seconds" != short ] || work=$probe/$target
  mkdir -p "$work"
  if [ "$seconds" = short ]; then
    limit=(-seed=1 -runs=20000)
    # Each of its runs is calls to live servers.
    [ "$target" != rpc_fuzz ] || limit=(-seed=1 -runs=2000)
  fi
  if "$build/tests/$target" "${limit[@]}" -rss_limit_mb=4096 -timeout=25 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$build/fuzz_failures/$target-" "$work" "tests/fuzz/corpus/$target" \
    >"$probe/$target.log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$probe/$target.log")
    coverage=$(sed -n 's/.* cov: \([0-9]*\).*/\1/p' "$probe/$target.log" | tail -n 1)
    printf '%-28s ok: %s runs, %s edges\n' "$target" "${runs:-?}" "${coverage:-?}"
  else
    printf '%-28s FAILED\n' "$target"
    grep -v 'libprotobuf ERROR' "$probe/$target.log" |
      grep -E 'ERROR|SUMMARY|runtime error|Test unit written|#[0-9]+ 0x' | head -n 25
    failed="$failed $target"
  fi
done
[ -z "$failed" ] || { echo "fuzz.sh: failed:$failed" >&2; exit 1; }
