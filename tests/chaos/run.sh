#!/usr/bin/env bash
# Breaks a cluster of four islands, a coordinator and a router: kills, stopped processes, cut and lossy networks, a slow
# one, a full disk, a clock that jumps. Prints what it cost; fails when anything was lost.
#
#   tests/chaos/run.sh [--minutes N] [--seed S] [--cycles N]     20 minutes, seed 1
#
# With UCX_TLS=tcp in the environment each rank is on a machine of its own, and ranks can be cut off from each other; without, an
# island is one machine, and its ranks share memory. Runs the release build.
# Needs namespaces of its own (root, or a kernel that lets users make them), iproute2 and nftables; without them it says so and is
# skipped, or fails where CI is set. Everything that it makes lies in these namespaces and is gone with them.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=${ATOLL_BINARY_DIR:-$PWD/build/release}
inside=(unshare --net --mount --pid --fork --kill-child --mount-proc --propagation private)
[ "$(id -u)" = 0 ] || inside=(unshare --user --map-root-user "${inside[@]:1}")

missing() {
  echo "chaos: skipped: needs $1" >&2
  [ -z "${CI:-}" ] || exit 1
  exit 77
}
for program in ip nft nsenter unshare; do
  command -v "$program" >/dev/null || missing "$program (apt: iproute2 nftables util-linux)"
done
"${inside[@]}" sh -c 'ip link add bridge0 type bridge && nft add table inet loss && mount -t tmpfs tmpfs /mnt' 2>/dev/null ||
  missing "network and mount namespaces with bridges, nftables and tmpfs: run as root"

for program in tests/chaos_run bin/atoll-coordinator bin/atoll-router bin/atoll-worker; do
  [ -x "$build/$program" ] || { echo "chaos: $build/$program is not built: cmake --build --preset release" >&2; exit 2; }
done
folder=$(mktemp -d "${TMPDIR:-/tmp}/atoll-chaos-XXXXXX")
code=0
"${inside[@]}" "$build/tests/chaos_run" --folder "$folder" --programs "$build/bin" "$@" &
outer=$!
# unshare does not pass signals on. chaos_run ends its world, reports, and exits.
end() { kill -"$1" "$(tr -d ' ' <"/proc/$outer/task/$outer/children")" 2>/dev/null || true; }
trap 'end TERM' TERM HUP
trap 'end INT' INT
wait "$outer" || code=$?
while kill -0 "$outer" 2>/dev/null; do code=0; wait "$outer" || code=$?; done
if [ "$code" = 0 ]; then rm -rf "$folder"; else echo "chaos: logs stay in $folder" >&2; fi
exit "$code"
