#!/usr/bin/env bash
# What two pipeline ranks are worth on this machine: against one process, and against torch.distributed.pipelining.
# One JSON object per line on standard output; the course of it on standard error. Wants two quiet cores; about four
# minutes. Arguments go to the bench itself, e.g. --rounds 5 --pairs 9.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${ATOLL_BUILD:-build/release}
if [ ! -x "$build/bin/pipeline_bench" ]; then
  cmake --preset release >&2
  cmake --build --preset release --target pipeline_bench >&2
fi
tests/peers/setup.sh
peers=$(tests/peers/setup.sh --prefix)
# One thread per rank, and addresses of this machine only.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo
exec "$build/bin/pipeline_bench" --peer-python "$peers/bin/python" --peer-script tests/peers/torch_pipeline.py "$@"
