#!/usr/bin/env bash
# Builds tests under a sanitizer, and runs them.
#
#   tests/sanitize.sh asan|tsan [CTEST-REGEX]     the regular expression picks tests by name; default: all that fit
#
# asan: address and undefined behaviour: every test without LibTorch and Arrow, whose libraries are not instrumented, and those
#   of the serving code that link them and compute nothing with them.
# tsan: threads, every test without LibTorch, Arrow and gRPC: the packaged gRPC is not instrumented and reports noise. The threads of
#   the services of coordinator, worker and router are therefore in none of them.
# Tests of several processes (labels multiproc and e2e) run under neither.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-}
case $preset in
  asan) foreign='libtorch_cpu|libarrow' ;;
  tsan) foreign='libtorch_cpu|libarrow|libgrpc\+\+' ;;
  *) echo "sanitizers: expected asan or tsan, found '${preset}'" >&2; exit 2 ;;
esac
pick=${2:-.}
# They link LibTorch and Arrow, and no code of theirs runs.
serving=
[ "$preset" = tsan ] || serving='router_engine_test|worker_attempt_test|worker_leader_test|worker_process_test|worker_rendezvous_test|expert_hosting_test'

deploy/setup.sh
cmake --preset "$preset" >/dev/null
build=build/$preset

# A test's name is its target's; what the target links tells whether foreign libraries are in it.
targets=() known=0
while read -r name; do
  inputs=$(ninja -C "$build" -t inputs "tests/$name" 2>/dev/null) || continue  # a script, not a target
  known=$((known + 1))
  if [[ $name =~ ^($serving)$ ]] || ! grep -qE "$foreign" <<<"$inputs"; then targets+=("$name"); fi
done < <(ctest --test-dir "$build" -N -L 'unit|contract|scenario|golden' 2>/dev/null | sed -n 's/^ *Test *#[0-9]*: //p' | grep -E -- "$pick")
[ ${#targets[@]} -gt 0 ] || { echo "sanitizers: no test fits '$pick'" >&2; exit 2; }
echo "sanitizers: ${#targets[@]} of $known programs: ${targets[*]}"

cmake --build --preset "$preset" --target "${targets[@]}" -- -j"$(nproc)"
export ASAN_OPTIONS=detect_stack_use_after_return=1:${ASAN_OPTIONS:-}
export UBSAN_OPTIONS=print_stacktrace=1:${UBSAN_OPTIONS:-}
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:${TSAN_OPTIONS:-}
# UCX's default is to overwrite the first instructions of mmap and its kin, which the sanitizers' own are not made for.
export UCX_MEM_MMAP_HOOK_MODE=none
ctest --test-dir "$build" --output-on-failure -R "^($(IFS='|'; echo "${targets[*]}"))\$"
