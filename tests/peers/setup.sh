#!/usr/bin/env bash
# Makes the virtual environment that the comparisons with PyTorch run in. Not part of deploy/setup.sh: 3 GB, and nothing
# but tests/bench/pipeline.sh, tests/bench/serving.sh and the scripts beside this one need it.
#
#   tests/peers/setup.sh            install what is missing
#   tests/peers/setup.sh --prefix   print the environment's folder and exit (installs nothing)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirements=$here/requirements.txt
cache=${ATOLL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/atoll}

say() { printf 'peers: %s\n' "$*" >&2; }
die() { printf 'peers: error: %s\n' "$*" >&2; exit 1; }

prefix=$cache/peers-$(grep -v '^#' "$requirements" | sha256sum | cut -c1-16)
if [ "${1:-}" = --prefix ]; then
  echo "$prefix"
  exit 0
fi
[ $# -eq 0 ] || die "unknown argument '$1'; expected none, or --prefix"

# Built beside its final name and renamed, so that a stop half-way leaves none that looks whole.
mkdir -p "$cache"
exec 9>"$cache/peers.lock"
flock 9
if [ ! -e "$prefix/complete" ]; then
  rm -rf "$prefix" "$prefix".part
  say "building the environment $prefix"
  /usr/bin/python3 -m venv "$prefix.part"
  "$prefix.part/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile -r "$requirements" >&2 ||
    die "a package of $requirements cannot be had; the line above names it"
  touch "$prefix.part/complete"
  mv "$prefix.part" "$prefix"
fi
# Virtual environments are not meant to move, but python itself finds its packages beside it; pip's own scripts do not.
"$prefix/bin/python" -c 'import torch.distributed.pipelining' >/dev/null 2>&1 ||
  die "$prefix/bin/python cannot import torch.distributed.pipelining; remove the folder and run this again"
say "ready: $prefix"
