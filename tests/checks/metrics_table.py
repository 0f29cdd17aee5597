#!/usr/bin/env python3
"""Keeps the tables of metrics in docs/metrics.md equal to the code: name, type, labels and help text.

    tests/checks/metrics_table.py [ROOT]            fails, naming the difference, when the page is out of date
    tests/checks/metrics_table.py --write [ROOT]    rewrites the tables
"""
import pathlib
import re
import sys

FOLDERS = ["common", "inference", "expert_server", "coordinator", "worker", "router", "client"]
PROGRAMS = {"atoll_router": "atoll-router", "atoll_coordinator": "atoll-coordinator", "atoll_worker": "atoll-worker, ranks",
            "atoll_expert_server": "atoll-worker --serve", "": "Every program"}
CALL = re.compile(r"\bAdd(Counter|Gauge|Histogram)\(\s*(?=[\"k])")
BEGIN, END = "<!-- metrics: begin -->", "<!-- metrics: end -->"
TEXT = r'"((?:[^"\\]|\\.)*)"'


def arguments(text, start):
    """The arguments of the call whose parenthesis opens before `start`, split at commas outside brackets and texts."""
    parts, depth, quoted, part = [], 0, False, ""
    for at in range(start, len(text)):
        c = text[at]
        if c == '"' and text[at - 1] != "\\":
            quoted = not quoted
        if not quoted:
            if c in "([{":
                depth += 1
            elif c in ")]}":
                if depth == 0:
                    return parts + [part.strip()]
                depth -= 1
            elif c == "," and depth == 0:
                parts.append(part.strip())
                part = ""
                continue
        part += c
    raise ValueError("a call does not end")


def joined(argument, text):
    """The value of a text literal, or of the constant that the argument names."""
    if re.fullmatch(r"k\w+", argument):
        argument = re.search(rf"\b{argument}\[\] =\s*((?:{TEXT}\s*)+);", text).group(1)
    return "".join(re.findall(TEXT, argument)).replace('\\"', '"')


def labels_of(argument, text, before):
    if re.fullmatch(r"\w+", argument):  # a variable, or a parameter's default
        found = list(re.finditer(rf"\b{argument} = (\{{.*?\}});", text[:before], re.S))
        argument = found[-1].group(1) if found else ""
    return re.findall(r'(?:\{\s*|\bStateLabel\()"(\w+)",', argument)


def metrics(root):
    found = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".cc", ".h") or re.search(r"_test(ing)?\.(cc|h)$", path.name):
                continue
            text = path.read_text()
            for match in CALL.finditer(text):
                kind = match.group(1).lower()
                given = arguments(text, match.end())
                place = 3 if kind == "histogram" else 2
                labels = labels_of(given[place], text, match.start()) if len(given) > place else []
                found[joined(given[0], text)] = (kind, labels, joined(given[1], text))
    return found


def tables(root):
    sections = {program: [] for program in PROGRAMS}
    for name, (kind, labels, help_text) in sorted(metrics(root).items()):
        program = next(prefix for prefix in PROGRAMS if name.startswith(prefix))
        shown = ", ".join(f"`{label}`" for label in labels)
        sections[program].append(f"| `{name}` | {kind} | {shown} | {help_text} |")
    lines = []
    for program, rows in sections.items():
        if rows:
            lines += [f"## {PROGRAMS[program]}", "", "| metric | type | labels | meaning |", "|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def main():
    arguments_given = [a for a in sys.argv[1:] if a != "--write"]
    root = pathlib.Path(arguments_given[0] if arguments_given else pathlib.Path(__file__).resolve().parents[2])
    page = root / "docs" / "metrics.md"
    text = page.read_text()
    head, rest = text.split(BEGIN)
    old, tail = rest.split(END)
    new = f"\n\n{tables(root)}\n"
    if "--write" in sys.argv[1:]:
        page.write_text(head + BEGIN + new + END + tail)
        return 0
    # Prose may name metrics too, but only those that exist.
    known = metrics(root)
    series = {name + suffix for name, (kind, _, _) in known.items() for suffix in
              ([""] if kind != "histogram" else ["", "_bucket", "_sum", "_count"])}
    strangers = sorted(set(re.findall(r"\batoll_[a-z]\w+", head + tail)) - series)
    if old == new and not strangers:
        return 0
    print("docs/metrics.md is out of date; run tests/checks/metrics_table.py --write")
    for line in sorted(set(old.splitlines()) - set(new.splitlines())):
        print("  in the page only:", line)
    for line in sorted(set(new.splitlines()) - set(old.splitlines())):
        print("  in the code only:", line)
    for name in strangers:
        print("  in the page's prose, and no metric:", name)
    return 1


if __name__ == "__main__":
    sys.exit(main())
