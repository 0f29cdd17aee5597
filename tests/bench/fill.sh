#!/usr/bin/env bash
# Frozen work in the bubbles of emulated ranks, against the bound (emulated-s4, emulated-s8). One JSON object per line on
# standard output; the course of it on standard error. Half a minute; waits, and hardly computes. Arguments go to the
# bench itself, e.g. --case emulated-s4.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${ATOLL_BUILD:-build/release}
if [ ! -x "$build/bin/fill_emulated_bench" ]; then
  cmake --preset release >&2
  cmake --build --preset release --target fill_emulated_bench >&2
fi
exec "$build/bin/fill_emulated_bench" "$@"
