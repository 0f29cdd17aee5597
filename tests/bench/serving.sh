#!/usr/bin/env bash
# Serving with step-level batches: against a loop of one request at a time, a PyTorch loop and one offline batch (throughput);
# what small requests pay beside a large one (fairness); the same weights in PyTorch (numbers); the same images alone and beside
# others (company); how soon a cancelled request is gone (cancel) and ten times the sustainable rate (overload), in process and
# through gRPC (grpc); expert servers over loopback (remote); copies of a hot expert on two devices (devices). One JSON object per
# line on standard output; the course of it on standard error. Ends with 1 where a target is missed. Wants two quiet cores; fifteen
# minutes for all.
#
#   tests/bench/serving.sh                            all cases
#   tests/bench/serving.sh --case fairness            one of them; arguments go to serving_bench, e.g. --rounds 3
set -euo pipefail
case ${1:-} in
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
  '' | --*) ;;
  *) echo "serving.sh: unknown argument '$1'; expected those of serving_bench, such as --case NAME" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/../.."
build=${ATOLL_BUILD:-build/release}
if [ ! -x "$build/bin/serving_bench" ] || [ ! -x "$build/bin/atoll-worker" ] || [ ! -x "$build/bin/atoll-router" ]; then
  cmake --preset release >&2
  cmake --build --preset release --target serving_bench atoll-worker atoll-router >&2
fi
tests/peers/setup.sh
peers=$(tests/peers/setup.sh --prefix)
# One thread per lane.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
exec "$build/bin/serving_bench" --peer-python "$peers/bin/python" --peer-script tests/peers/torch_serving.py "$@"
