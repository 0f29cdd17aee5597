#!/usr/bin/env bash
# Checks and measures this machine's GPU with the programs of the bundle that this script lies in (deploy/bundle.sh), or,
# in a checkout, with those of the cuda preset.
#
#   tests/gpu/run.sh [NAME...]     names as gpu_checks --list prints them, or dit-b2-fp32-torch, dit-b2-bf16-torch,
#                                  serving-throughput (batches across requests against their ceiling); default: all. Prints one line per name, and every measurement as a JSON object.
#
# Ends with 0 when all passed, 1 when one failed, 77 when none failed and some were skipped, as on a machine without a
# GPU. ATOLL_PYTHON: the Python that has PyTorch (default: python3).
set -euo pipefail

home=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${ATOLL_PYTHON:-python3}
case ${1:-} in
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
if [ -x "$home/bin/atoll-env" ]; then
  checks() { "$home/bin/atoll-env" gpu_checks "$@"; }
  serving() { "$home/bin/atoll-env" serving_bench "$@"; }
elif [ -x "$home/build/cuda/bin/gpu_checks" ]; then
  checks() { "$home/build/cuda/bin/gpu_checks" "$@"; }
  serving() { "$home/build/cuda/bin/serving_bench" "$@"; }
else
  echo "gpu: error: expected a bundle around this script, or build/cuda/bin/gpu_checks; found neither" >&2
  exit 2
fi

known=$(checks --list)
known+=$'\n'dit-b2-fp32-torch$'\n'dit-b2-bf16-torch$'\n'serving-throughput
names=("$@")
[ $# -gt 0 ] || mapfile -t names <<<"$known"
for name in "${names[@]}"; do
  grep -qxF -e "$name" <<<"$known" || { echo "gpu: error: expected one of $(tr '\n' ' ' <<<"$known")found '$name'" >&2; exit 2; }
done

results=$(mktemp)
trap 'rm -f "$results" "$results.one"' EXIT
failed=() skipped=() passed=()
for name in "${names[@]}"; do
  status=0
  case $name in
    dit-b2-fp32-torch) "$python" "$home/tests/gpu/dit_step.py" --compute float32 >"$results.one" || status=$? ;;
    dit-b2-bf16-torch) "$python" "$home/tests/gpu/dit_step.py" --compute bfloat16 >"$results.one" || status=$? ;;
    serving-throughput) serving --case throughput --device cuda --steps 50 >"$results.one" || status=$? ;;
    *) checks "$name" >"$results.one" || status=$? ;;
  esac
  cat "$results.one"
  cat "$results.one" >>"$results"
  rm -f "$results.one"
  case $status in
    0) passed+=("$name") ;;
    77) skipped+=("$name") ;;
    *) failed+=("$name"); echo "gpu: $name FAILED (exit code $status)" >&2 ;;
  esac
done

# A step here against the same step there, of this run.
"$python" - "$results" <<'END'
import json, sys
steps = {}
for line in open(sys.argv[1]):
    if not line.startswith("{"):
        continue  # said by a library
    row = json.loads(line)
    if row["metric"] == "step":
        steps[row["case"]] = row["value"]
for ours in ("dit-b2-fp32", "dit-b2-bf16"):
    for theirs in ("eager", "compile"):
        if ours in steps and f"{ours}-{theirs}" in steps:
            ratio = steps[ours] / steps[f"{ours}-{theirs}"]
            print(json.dumps({"case": ours, "metric": f"time_ratio_{theirs}", "value": ratio, "unit": "1"}))
END

echo "gpu: ${#passed[@]} passed, ${#failed[@]} failed, ${#skipped[@]} SKIPPED${skipped[*]:+: ${skipped[*]}}" >&2
[ ${#failed[@]} -eq 0 ] || exit 1
[ ${#skipped[@]} -eq 0 ] || exit 77
