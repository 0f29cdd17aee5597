#!/usr/bin/env bash
# Installs, builds and passes every test. The last lines name every case that was skipped, and its reason; the very last is
# "N passed, N failed, N skipped". Where CI is set, a skipped case is a failure.
#
#   tests/run.sh [CTEST-ARGUMENTS]      e.g. tests/run.sh -L unit, tests/run.sh -R lost_rank
#
# Long forms have commands of their own: tests/fuzz.sh, tests/sanitize.sh, tests/cuda_build.sh, tests/bench/*.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
deploy/setup.sh
cmake --preset release >/dev/null
start=$SECONDS
cmake --build --preset release -- -j"$(nproc)"
echo "tests: built in $((SECONDS - start)) s"
# Tests that need the machine for themselves say so (SERIAL); the others share it.
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
ATOLL_TEST_LOG=$results/cases ctest --preset release --parallel "$(nproc)" --output-junit "$results/junit.xml" "$@" || code=$?
/usr/bin/python3 tests/summary.py "$results/junit.xml" "$results/cases" || code=$?
exit "${code:-0}"
