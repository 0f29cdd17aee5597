#!/usr/bin/env python3
"""Makes programs look for their libraries beside themselves: replaces their run path, in place.

    relocate.py PATH FILE...        e.g. relocate.py '$ORIGIN/../lib' libexec/atoll

The new path becomes a DT_RPATH: unlike a DT_RUNPATH it also holds for the libraries that the libraries need, and it comes
before LD_LIBRARY_PATH, so that what the bundle brings is what its programs get. No tool is needed that is not part of
Python; the new path must be no longer than the old one, whose place it takes.
"""
import struct
import sys

DT_NULL, DT_STRTAB, DT_RPATH, DT_RUNPATH = 0, 5, 15, 29
PT_LOAD, PT_DYNAMIC = 1, 2


def relocate(name, path):
    with open(name, "rb") as file:
        data = bytearray(file.read())
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("expected a 64-bit little-endian ELF file")
    header_offset, = struct.unpack_from("<Q", data, 32)
    entry_size, count = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQ", data, header_offset + i * entry_size) for i in range(count)]
    dynamic = next((s for s in segments if s[0] == PT_DYNAMIC), None)
    if dynamic is None:
        raise ValueError("expected a dynamic program")
    entries = []
    for offset in range(dynamic[2], dynamic[2] + dynamic[5], 16):
        tag, value = struct.unpack_from("<qQ", data, offset)
        if tag == DT_NULL:
            break
        entries.append((offset, tag, value))
    strings = next(value for _, tag, value in entries if tag == DT_STRTAB)
    strings = next(strings - s[3] + s[2] for s in segments if s[0] == PT_LOAD and s[3] <= strings < s[3] + s[5])
    paths = [(offset, strings + value) for offset, tag, value in entries if tag in (DT_RPATH, DT_RUNPATH)]
    if not paths:
        raise ValueError("expected a run path to replace, found none")
    new = path.encode()
    for offset, start in paths:
        end = data.index(b"\0", start)
        if len(new) > end - start:
            raise ValueError(f"expected a run path of at least {len(new)} characters, found '{data[start:end].decode()}'")
        data[start:end] = new + bytes(end - start - len(new))
        struct.pack_into("<q", data, offset, DT_RPATH)
    with open(name, "r+b") as file:
        file.write(data)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    for name in sys.argv[2:]:
        try:
            relocate(name, sys.argv[1])
        except ValueError as error:
            sys.exit(f"relocate: error: {name}: {error}")


if __name__ == "__main__":
    main()
