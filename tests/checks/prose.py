#!/usr/bin/env python3
"""Plain English: finds comments and paragraphs that open with a relative clause or a genitive without a noun.

    tests/checks/prose.py [FILE...]        all tracked sources and docs without arguments

"What lanes host" makes every reader look for its noun; "The models that each executor has loaded" does not. Prints
FILE:LINE: TEXT for each such opening and ends with 1 when there is any.
"""
import os
import re
import subprocess
import sys

BANNED = re.compile(
    r"(What|Who|Whose|Whom|Whoever|Whatever|Whichever|Of|Nobody|Nothing|Those|Anybody|Somebody|Else|Neither|None)\b"
    r"|One (that|which|who|whose)\b|(That|Which) (is|are|was|were|has|have|had)\b|(To|From|By|For|With) (whom|what)\b"
    r"|(From|For|To|By|In|On) which\b|There(on|of)\b")
# A question may begin so, and a title.
QUESTION = re.compile(r"[^.]*\?")


def comments(path, lines):
    """(line, text) of every comment block: lines of // that follow each other, or one behind code."""
    marker = "#" if path.endswith((".py", ".sh", ".cmake", "CMakeLists.txt", ".yaml", ".yml")) else "//"
    block = None
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if stripped.startswith(marker) and not stripped.startswith("#!"):
            text = stripped.lstrip("/#!").strip()
            if block is None:
                block = True
                yield number, text
            elif not text:
                block = None
            continue
        block = None
        behind = re.search(r"[;{},)]\s+" + marker + r" (.*)$", line)
        if behind:
            yield number, behind.group(1)


def paragraphs(lines):
    """(line, text) of every paragraph, list item and table row of a page; code is left out."""
    code, open_paragraph = False, False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            code, open_paragraph = not code, False
            continue
        text = line.strip()
        if code or not text or text.startswith(("#", "|", "!", "<")):
            open_paragraph = False
            continue
        item = re.match(r"(?:[-*]|\d+\.)\s+(.*)", text)
        if item or not open_paragraph:
            yield number, (item.group(1) if item else text).lstrip("*_")
        open_paragraph = True


def findings(path, lines):
    """(line, text) of the openings of one file that have no noun, and how many openings it has."""
    openings = list(paragraphs(lines) if path.endswith(".md") else comments(path, lines))
    return [(n, t) for n, t in openings if BANNED.match(t) and not QUESTION.fullmatch(t)], len(openings)


def main(arguments):
    root = os.environ.get("ATOLL_SOURCE_DIR") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    os.chdir(root)
    files = arguments or subprocess.run(
        ["git", "ls-files", "*.cc", "*.h", "*.proto", "*.py", "*.sh", "*.cmake", "*CMakeLists.txt", "*.md"],
        check=True, capture_output=True, text=True).stdout.split()
    bare, total = 0, 0
    for path in files:
        with open(path, encoding="utf-8") as file:
            found, openings = findings(path, file.read().split("\n"))
        for number, text in found:
            print(f"{path}:{number}: {text[:100]}")
        bare, total = bare + len(found), total + openings
    print(f"{bare} of {total} comments and paragraphs open without a noun ({100 * bare / max(total, 1):.2f} %)")
    return 1 if bare else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
