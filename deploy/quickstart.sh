#!/usr/bin/env bash
# Trains the digits ensemble on this machine and samples from it: installs, builds, runs a local cluster of two islands
# of two ranks, and leaves pictures and a report in quickstart/. A second run starts afresh and reuses the build.
#
#   deploy/quickstart.sh [--set FIELD=VALUE ...]      e.g. deploy/quickstart.sh --set training.steps=100
#
# ATOLL_QUICKSTART_DIR: where the results go (default: quickstart/ in the repository).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
out=${ATOLL_QUICKSTART_DIR:-$root/quickstart}
cluster=$out/cluster
start=$SECONDS
overrides=()
watch=

say() { printf '\nquickstart [%d:%02d]: %s\n' $(((SECONDS - start) / 60)) $(((SECONDS - start) % 60)) "$*" >&2; }
die() { printf 'quickstart: error: %s\n' "$*" >&2; exit 1; }
misuse() { printf 'quickstart: error: %s\n' "$*" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case "$1" in
    --set) [ $# -ge 2 ] || misuse "--set: expected FIELD=VALUE, found nothing" ;;
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' deploy/quickstart.sh; exit 0 ;;
    *) misuse "unknown argument '$1'; expected --set FIELD=VALUE" ;;
  esac
  overrides+=(--set "$2")
  shift 2
done

say "installing what is missing"
deploy/setup.sh
digits=$(deploy/setup.sh --prefix)/data/digits.parquet

say "building (the first time takes minutes)"
cmake --preset release >/dev/null
cmake --build --preset release --target atoll atoll-coordinator atoll-worker atoll-router -- -j"$(nproc)" >"$root/build/release/quickstart-build.log" 2>&1 ||
  { tail -n 30 "$root/build/release/quickstart-build.log" >&2; die "the build failed; all of it: build/release/quickstart-build.log"; }
PATH=$root/build/release/bin:$PATH
export ATOLL_CLUSTER=$cluster
unset ATOLL_COORDINATOR ATOLL_ROUTER ATOLL_BLOB_STORE

# Ends the cluster when this script ends in any way.
stop() {
  local status=$?
  trap '' INT TERM
  [ -z "$watch" ] || kill "$watch" 2>/dev/null || true
  if [ -e "$cluster/lock" ]; then atoll down --dir "$cluster" >/dev/null 2>&1 || true; fi
  exit "$status"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [ -e "$cluster/lock" ]; then atoll down --dir "$cluster" >/dev/null 2>&1 || true; fi

# Removes only files that an earlier run made.
mkdir -p "$out"
rm -rf "$cluster" "$out/samples" "$out"/{samples.png,clusters.png,report.md,report.json}

run_start=$SECONDS
say "starting a cluster: coordinator, two islands of two ranks, router"
atoll up --detach --islands 2 --ranks 2 --threads 1 --dir "$cluster"

say "importing 1,797 digits"
atoll dataset import "$digits" --name digits

say "training four experts and a router network"
job=$(atoll submit deploy/jobs/digits.yaml "${overrides[@]}")
# In the background, because bash attends to a signal only between commands.
atoll jobs watch "$job" &
watch=$!
wait "$watch"
watch=
trained=$SECONDS

say "sampling ten of each class"
atoll sample --class all --count 10 --wait 60 --out "$out/samples.png" --report

say "scoring: twenty of each class with the best expert per step, ten with all of them"
atoll sample --class all --count 20 --seed 1000 --mode top1 --out "$out/samples/top1"
atoll sample --class all --count 10 --seed 2000 --mode full --out "$out/samples/full"
atoll report --job "$job" --samples "$out/samples/top1" --samples "$out/samples/full" --out "$out"

say "done: $((trained - run_start)) s of training, $((SECONDS - run_start)) s in all after the build"
cat <<END

  $out/samples.png    ten digits of each class, drawn by the ensemble
  $out/clusters.png   what each cluster holds
  $out/report.md      cluster sizes, losses, routing, quality, times (report.json: the same for programs)

What to try next, with build/release/bin in PATH:
  atoll up --detach --dir $cluster             start the cluster again; the model is still there
  export ATOLL_CLUSTER=$cluster
  atoll sample --class 3 --count 50 --mode full --out threes.png --report
  atoll submit deploy/jobs/digits.yaml --set experts=8 --set model_name=digits-eight --wait
  atoll plan deploy/jobs/digits.yaml --ranks 4 --image 1x8x8
  atoll --help
END
