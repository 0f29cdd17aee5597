#!/usr/bin/env python3
"""Prints the slowest tests of a run of CTest, what it skipped, and why, and as the last line "N passed, N failed, N skipped".

    summary.py JUNIT LOG

JUNIT is what `ctest --output-junit` wrote; LOG has the counts and the skipped cases of the GoogleTest programs
(tests/test_main.cc). A test without a line in LOG counts as one case. Exits with 1 when a case failed, or was skipped while
CI is set.
"""
import os
import sys
import xml.etree.ElementTree


def read_log(path):
    """({program: [passed, failed, skipped]}, ["program: Suite.Case: reason"])"""
    counts, skips = {}, []
    if not os.path.exists(path):
        return counts, skips
    with open(path, encoding="utf-8") as file:
        for line in file:
            kind, program, *rest = line.rstrip("\n").split("\t")
            if kind == "cases":
                counts[program] = [int(number) for number in rest]
            else:
                skips.append(": ".join([program, *rest]))
    return counts, skips


def main():
    junit, log = sys.argv[1:]
    counts, skips = read_log(log)
    passed = failed = skipped = 0
    tests = list(xml.etree.ElementTree.parse(junit).getroot().iter("testcase"))
    slowest = sorted(((float(test.get("time") or 0), test.get("name")) for test in tests), reverse=True)[:10]
    print("slowest: " + ", ".join(f"{name} {seconds:.0f} s" for seconds, name in slowest))
    for test in tests:
        name, status = test.get("name"), test.get("status")
        # CTest says the same of a program that is not there, and of a test whose fixture failed.
        was_skipped = status == "disabled" or any(why.get("message", "").startswith("SKIP_") for why in test.iter("skipped"))
        has_failed = status != "run" and not was_skipped
        own = counts.get(name)
        if own is None:
            own = [status == "run", has_failed, was_skipped]
            if was_skipped:
                said = (test.findtext("system-out") or "").strip().splitlines()
                skips.append(f"{name}: {said[-1] if said else 'no reason given'}")
        passed += own[0]
        skipped += own[2]
        # A crash at the end of a program, or a skip in CI, fails no case but the test.
        failed += max(own[1], has_failed)
    for skip in sorted(skips):
        print(f"skipped: {skip}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or (skipped and "CI" in os.environ) else 0


if __name__ == "__main__":
    sys.exit(main())
