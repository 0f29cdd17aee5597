#!/usr/bin/env bash
# Installs, builds and passes every test. The last lines are CTest's own summary.
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
ctest --preset release --parallel "$(nproc)" "$@"
