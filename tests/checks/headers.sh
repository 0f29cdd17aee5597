#!/usr/bin/env bash
# Compiles every public header alone, in a build folder of its own.
#
#   tests/checks/headers.sh [FOLDER...]     all libraries, or those of the folders named: common/base worker/engine
set -euo pipefail
cd "$(dirname "$0")/../.."

deploy/setup.sh
cmake --preset release -B build/headers -DCMAKE_VERIFY_INTERFACE_HEADER_SETS=ON -DATOLL_TESTS=OFF -DATOLL_BENCHMARKS=OFF >/dev/null
targets=()
for folder in "$@"; do targets+=("${folder//\//_}_verify_interface_header_sets"); done
[ $# -gt 0 ] || targets=(all_verify_interface_header_sets)
cmake --build build/headers --target "${targets[@]}" -- -j"$(nproc)"
echo "headers: every one compiles alone"
