#!/usr/bin/env bash
# Formats the C++ sources with clang-format.
#
#   deploy/format.sh [--check] [FILE...]     --check changes nothing, names what it would change and then exits with 1;
#                                            without files: every tracked .h and .cc
set -euo pipefail
cd "$(dirname "$0")/.."

check=
if [ "${1:-}" = --check ]; then
  check=1
  shift
fi
command -v clang-format >/dev/null || { echo "format: clang-format not found; run deploy/setup.sh" >&2; exit 2; }
[ $# -gt 0 ] || mapfile -t sources < <(git ls-files '*.h' '*.cc')
[ $# -eq 0 ] || sources=("$@")

if [ -z "$check" ]; then
  clang-format -i "${sources[@]}"
  exit 0
fi
status=0
for source in "${sources[@]}"; do
  clang-format --dry-run -Werror "$source" 2>/dev/null || { echo "$source"; status=1; }
done
exit $status
