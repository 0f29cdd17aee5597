#!/usr/bin/env python3
"""Checks what the compiler cannot: that sources keep to the layers and seams of docs/architecture.md.

    source_rules.py [ROOT]     prints one line per offence, FILE:LINE: RULE; exits with 1 when there is any

Layers come from the atoll_library(LAYER n ...) calls; CMake itself refuses links that point upward, but one include root
exposes every header, so includes are checked here.
"""
import os
import re
import sys

TORCH_FOLDERS = ("common/model", "worker/trainer", "worker/tasks", "inference/local", "inference/testing", "common/cmake", "tests")
WIRE_FOLDERS = ("common/wire", "coordinator/service", "router/service", "router/remote", "router/rest",
                "router/server", "expert_server", "worker/attempt", "worker/island", "worker/leader", "client",
                "tests")
# Programs know each other by messages alone.
PROGRAMS = ("client", "coordinator", "expert_server", "router", "worker")
# The worker's binary is the expert server's too.
PROGRAMS_JOINED = {("worker/process/main.cc", "expert_server")}
LARGEST_FOLDER = 45  # files that are neither tests nor their doubles
SKIPPED = {"build", ".git", ".cache", "quickstart", "proto"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
BANNED_NAME = re.compile(r"\b(?:class|struct|namespace)\s+(\w*(?:Manager|Helper)\w*|\w*utils\w*)\b", re.IGNORECASE)
# A test double may stand for anything, and tests may look down every hole.
TEST_FILE = re.compile(r"(_test|_testing|_bench|_fuzz)\.(h|cc)$|(^|/)fake_[^/]*$")
KEYWORDS = {"LAYER", "SOURCES", "HEADERS", "DEPS", "TORCH"}


def within(path, folders):
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def libraries(root):
    """{folder: (layer, files of the library, folders of the libraries that its DEPS name)}"""
    found = {}
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if name not in SKIPPED]
        if "CMakeLists.txt" not in files:
            continue
        with open(os.path.join(directory, "CMakeLists.txt"), encoding="utf-8") as file:
            text = re.sub(r"#[^\n]*", "", file.read())
        call = re.search(r"atoll_library\(([^)]*)\)", text)
        if not call:
            continue
        words = call.group(1).split()
        folder = os.path.relpath(directory, root).replace(os.sep, "/")
        layer = int(words[words.index("LAYER") + 1])
        members, deps, section = [], [], ""
        for word in words:
            if word in KEYWORDS:
                section = word
            elif section in ("SOURCES", "HEADERS"):
                members.append(f"{folder}/{word}")
            elif section == "DEPS" and word.startswith("atoll::"):
                deps.append(word.removeprefix("atoll::"))
        found[folder] = (layer, set(members), deps)
    names = {folder.replace("/", "_"): folder for folder in found}
    return {folder: (layer, members, {names[dep] for dep in deps if dep in names})
            for folder, (layer, members, deps) in found.items()}


def folder_of(path, folders):
    """The library folder that holds `path`, or None."""
    while "/" in path:
        path = path.rsplit("/", 1)[0]
        if path in folders:
            return path
    return None


def sources(root):
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in SKIPPED)
        for name in sorted(files):
            if name.endswith((".h", ".cc")):
                yield os.path.relpath(os.path.join(directory, name), root).replace(os.sep, "/")


def check_include(path, quote, included, libs):
    """The rules that one include line breaks."""
    if quote == '"' and included.startswith("."):
        yield f'include "{included}" by its path from the repository root'
    if re.match(r"(torch|ATen|c10)/", included) and not within(path, TORCH_FOLDERS) and not TEST_FILE.search(path):
        yield f"LibTorch's {included} outside {', '.join(TORCH_FOLDERS[:4])}"
    if re.match(r"(atoll|google/rpc)/.*\.pb\.h$", included):
        if not within(path, WIRE_FOLDERS) and not TEST_FILE.search(path):
            yield f"generated {included} outside wire, rpc, service and client"
        return
    own = folder_of(path, libs)
    other = folder_of(included, libs)
    if quote == '"' and own and other and path in libs[own][1] and libs[other][0] > libs[own][0]:
        yield f"{own} (layer {libs[own][0]}) includes {included} (layer {libs[other][0]}): includes never point upward"
    elif quote == '"' and own and other and path in libs[own][1] and other not in libs[own][2] | {own}:
        yield f"{own} includes {included}: its DEPS lack atoll::{other.replace('/', '_')}"
    program, foreign = path.split("/")[0], included.split("/")[0]
    if program in PROGRAMS and foreign in PROGRAMS and program != foreign and not TEST_FILE.search(path):
        if (path, foreign) not in PROGRAMS_JOINED:
            yield f"{program} includes {included}: programs know each other by messages alone"


def circles(libs):
    """Libraries that depend on each other, each circle once. CMake permits it for static libraries."""
    done = set()

    def walk(folder, way):
        if folder in way:
            yield way[way.index(folder):] + [folder]
        elif folder not in done:
            for other in sorted(libs[folder][2]):
                yield from walk(other, way + [folder])
            done.add(folder)

    for folder in sorted(libs):
        yield from walk(folder, [])


def check_folders(root, libs):
    for circle in circles(libs):
        yield f"{circle[0]}/CMakeLists.txt:1: a circle of libraries: {' -> '.join(circle)}"
    counts = {}
    for path in sources(root):
        if not TEST_FILE.search(path) and not within(path, ("tests",)):
            counts.setdefault(os.path.dirname(path), []).append(path)
    for folder, paths in counts.items():
        if len(paths) > LARGEST_FOLDER:
            yield f"{folder}:1: {len(paths)} files beside the tests, more than {LARGEST_FOLDER}: it wants parting"


def check(root):
    libs = libraries(root)
    yield from check_folders(root, libs)
    for path in sources(root):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            lines = file.read().split("\n")
        if path.endswith(".h") and "#pragma once" not in lines:
            yield f"{path}:1: a header without #pragma once"
        if re.search(r"(utils?|helpers?|manager)\.(h|cc)$", path):
            yield f"{path}:1: a file name that says nothing"
        for number, line in enumerate(lines, 1):
            include = INCLUDE.match(line)
            if include:
                for offence in check_include(path, include.group(1), include.group(2), libs):
                    yield f"{path}:{number}: {offence}"
            banned = BANNED_NAME.search(line)
            if banned:
                yield f"{path}:{number}: the name {banned.group(1)} says nothing"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    offences = list(check(os.path.abspath(root)))
    print("\n".join(offences) if offences else f"{len(list(sources(root)))} sources keep the rules")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
