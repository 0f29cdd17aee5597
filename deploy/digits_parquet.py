#!/usr/bin/env python3
"""Writes scikit-learn's digits as a Parquet file with PNG images, which `atoll dataset import` reads.

    digits_parquet.py digits.csv.gz digits.parquet      64 values from 0 to 16 per line, then the label
"""

import gzip
import os
import struct
import sys
import zlib

import pyarrow
import pyarrow.parquet

SIDE = 8
BRIGHTEST = 16


def png(pixels):
    """An 8-bit grey PNG of SIDE x SIDE pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + bytes(pixels[at : at + SIDE]) for at in range(0, SIDE * SIDE, SIDE))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def main():
    source, target = sys.argv[1:]
    images, labels = [], []
    with gzip.open(source, "rt") as lines:
        for number, line in enumerate(lines, 1):
            *values, label = map(int, line.split(","))
            pixels = [(value * 255 + BRIGHTEST // 2) // BRIGHTEST for value in values]
            images.append({"bytes": png(pixels), "path": f"line-{number}"})
            labels.append(label)
    pyarrow.parquet.write_table(pyarrow.table({"image": images, "label": labels}), target + ".part")
    os.replace(target + ".part", target)


if __name__ == "__main__":
    main()
