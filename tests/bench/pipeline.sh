#!/usr/bin/env bash
# Measures the gain of two pipeline ranks on this machine, against one process and against torch.distributed.pipelining.
# Also measures how well a measured profile predicts an iteration. One JSON object per line on standard output; progress
# on standard error. Ends with 1 if a target is missed. Needs two quiet cores; the comparisons take five minutes, the
# predictions two to three.
#
#   tests/bench/pipeline.sh                          both
#   tests/bench/pipeline.sh peers [ARGUMENT...]      the comparisons; arguments go to pipeline_bench, e.g. --pairs 5
#   tests/bench/pipeline.sh predicted [ARGUMENT...]  the predictions; arguments go to predicted_bench, e.g.
#                                                    --case predicted-v-m8
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${ATOLL_BUILD:-build/release}
what=${1:-both}
[ $# -eq 0 ] || shift
case $what in
  peers | predicted) ;;
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' tests/bench/pipeline.sh; exit 0 ;;
  both)  # two programs, whose arguments differ
    [ $# -eq 0 ] || { echo "pipeline.sh: expected no argument after 'both', found '$1'" >&2; exit 2; } ;;
  *) echo "pipeline.sh: unknown argument '$what'; expected peers or predicted" >&2; exit 2 ;;
esac
if [ ! -x "$build/bin/pipeline_bench" ] || [ ! -x "$build/bin/predicted_bench" ]; then
  cmake --preset release >&2
  cmake --build --preset release --target pipeline_bench predicted_bench >&2
fi
# One thread per rank, and addresses of this machine only.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo
code=0
if [ "$what" != predicted ]; then
  tests/peers/setup.sh
  peers=$(tests/peers/setup.sh --prefix)
  "$build/bin/pipeline_bench" --peer-python "$peers/bin/python" --peer-script tests/peers/torch_pipeline.py "$@" || code=1
fi
if [ "$what" != peers ]; then
  "$build/bin/predicted_bench" "$@" || code=1
fi
exit $code
