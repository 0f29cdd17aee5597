#!/usr/bin/env python3
"""Keeps the table of error reasons in docs/errors.md equal to the code.

    tests/checks/error_reasons.py            fails, naming the difference, when the table is out of date
    tests/checks/error_reasons.py --write    rewrites the table
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["common", "inference", "expert_server", "coordinator", "worker", "router", "client"]
REASON = re.compile(r'"([A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+)"')
CODE = re.compile(r"StatusCode::k(\w+)")
# Upper-case texts that are no reasons: environment variables and names of canonical codes.
CANONICAL = {
    "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED",
    "PERMISSION_DENIED", "OUT_OF_RANGE_CODE", "DATA_LOSS",
}
NOT_REASONS = re.compile(r"^(ATOLL_(?!CHECK)|SLURM_|JOBSET_|JOB_COMPLETION|MASTER_|"
                         r"(LOCAL_)?WORLD_SIZE|LOCAL_RANK|OMP_|XDG_|GRPC_|UCX_|NCCL_|NO_COLOR|TZ_|GCE_METADATA|GOOGLE_APPLICATION)")
# Functions that take a reason and not its code.
CALLS = {
    "FieldError": "INVALID_ARGUMENT", "NotAllowed": "FAILED_PRECONDITION", "RequiredNumber": "INVALID_ARGUMENT",
    "Required": "INVALID_ARGUMENT", "TreeError": "INVALID_ARGUMENT", "TreeStatus": "INVALID_ARGUMENT",
}
BEGIN, END = "<!-- reasons: begin -->", "<!-- reasons: end -->"


def snake(code):
    return re.sub(r"(?<!^)(?=[A-Z])", "_", code).upper()


def reasons():
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".cc", ".h") or re.search(r"_test(ing)?\.|/testing/", str(path.relative_to(ROOT))):
                continue
            text = path.read_text()
            for match in REASON.finditer(text):
                reason = match.group(1)
                if NOT_REASONS.match(reason) or reason in CANONICAL:
                    continue
                before = text[max(0, match.start() - 160):match.start()]
                # The code that stands in the same statement, not in one before it.
                statement = re.split(r"[;{}]", before)[-1]
                codes = CODE.findall(statement)
                call = re.findall(r"(\w+)\([^()]*$", statement)
                entry = found.setdefault(reason, (set(), set()))
                if codes:
                    entry[0].add(snake(codes[-1]))
                elif call and call[-1] in CALLS:
                    entry[0].add(CALLS[call[-1]])
                entry[1].add(str(path.parent.relative_to(ROOT)))
    return found


def table():
    lines = ["| reason | code | raised in |", "|---|---|---|"]
    for reason, (codes, folders) in sorted(reasons().items()):
        lines.append(f"| `{reason}` | {', '.join(sorted(codes)) or 'see the source'} | {', '.join(sorted(folders))} |")
    return "\n".join(lines)


def main():
    page = ROOT / "docs" / "errors.md"
    text = page.read_text()
    head, rest = text.split(BEGIN)
    old, tail = rest.split(END)
    new = f"\n{table()}\n"
    if "--write" in sys.argv[1:]:
        page.write_text(head + BEGIN + new + END + tail)
        return 0
    if old == new:
        return 0
    gone = sorted(set(old.splitlines()) - set(new.splitlines()))
    added = sorted(set(new.splitlines()) - set(old.splitlines()))
    print("docs/errors.md is out of date; run tests/checks/error_reasons.py --write")
    for line in gone:
        print("  in the page only:", line)
    for line in added:
        print("  in the code only:", line)
    return 1


if __name__ == "__main__":
    sys.exit(main())
