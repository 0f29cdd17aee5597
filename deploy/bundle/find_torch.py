"""Prints the folders in which the programs of an Atoll bundle find the node's LibTorch and CUDA libraries, joined by ':'.

    python3 find_torch.py TORCH CUDA GLIBC GLIBCXX FALLBACK     e.g. 2.11 13 2.36 3.4.30 /opt/atoll/lib/fallback

Imports nothing of PyTorch: that takes seconds. Ends with 1 and one line that says what was expected and what was found.
"""
import ctypes
import glob
import importlib.util
import os
import re
import sys


def die(message):
    sys.exit(f"atoll-env: error: {message}")


def version(text):
    return tuple(int(part) for part in text.split("."))


def check_glibc(needed):
    found = os.confstr("CS_GNU_LIBC_VERSION").split()[-1]
    if version(found) < version(needed):
        die(f"this machine's C library: expected glibc {needed} or newer, found {found}")


def torch_folder(wanted, cuda):
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        die(f"expected PyTorch {wanted} in {sys.executable}, found none; set ATOLL_PYTHON to a Python that has it")
    folder = spec.submodule_search_locations[0]
    try:
        with open(f"{folder}/version.py", encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        die(f"cannot read PyTorch's version: {error}")
    found = re.search(r"__version__ = ['\"]([^'\"]+)", text)
    found_cuda = re.search(r"^cuda\b.*= ['\"]([^'\"]+)", text, re.MULTILINE)
    found = found.group(1) if found else "no version"
    found_cuda = found_cuda.group(1) if found_cuda else "none"
    if not re.match(rf"{re.escape(wanted)}(\.|\+|$)", found) or found_cuda.split(".")[0] != cuda:
        die(f"PyTorch in {folder}: expected version {wanted} for CUDA {cuda}, found {found} for CUDA {found_cuda}; "
            "set ATOLL_PYTHON to a Python that has it")
    return folder


def check_abi(folder):
    try:
        with open(f"{folder}/lib/libc10.so", "rb") as file:
            new_strings = b"NSt7__cxx1112basic_string" in file.read()
    except OSError as error:
        die(f"cannot read PyTorch's libraries: {error}")
    if not new_strings:
        die(f"PyTorch in {folder}: expected the C++11 ABI (_GLIBCXX_USE_CXX11_ABI=1), found the old one")


def has_new_libstdcxx(needed):
    """Whether the one that programs of this machine get is new enough."""
    try:
        ctypes.CDLL("libstdc++.so.6")
        with open("/proc/self/maps", encoding="utf-8") as file:
            path = next(line.split()[-1] for line in file if "libstdc++.so" in line)
        with open(path, "rb") as file:
            return f"GLIBCXX_{needed}".encode() + b"\0" in file.read()
    except (OSError, StopIteration):
        return False


def main():
    torch, cuda, glibc, glibcxx, fallback = sys.argv[1:]
    check_glibc(glibc)
    folder = torch_folder(torch, cuda)
    check_abi(folder)
    folders = [f"{folder}/lib"] + sorted(glob.glob(f"{os.path.dirname(folder)}/nvidia/*/lib"))
    if not has_new_libstdcxx(glibcxx):
        folders.append(fallback)
    print(":".join(folders))


main()
