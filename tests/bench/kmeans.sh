#!/usr/bin/env bash
# Distances of k-means as matrix products against a loop over differences, 768 dimensions x 1,024 centroids, one thread
# each, alternating. One JSON object per line on standard output. Ten seconds. An argument is the number of pairs.
set -euo pipefail
case ${1:-} in
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
cd "$(dirname "$0")/../.."
build=${ATOLL_BUILD:-build/release}
if [ ! -x "$build/bin/kmeans_bench" ]; then
  cmake --preset release >&2
  cmake --build --preset release --target kmeans_bench >&2
fi
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
exec "$build/bin/kmeans_bench" "$@"
