#!/usr/bin/env python3
"""Packs inputs of a fuzzer into a zip file that the tests read.

    tests/fuzz/pack_corpus.py CORPUS tests/golden/corpus/READER.zip [FOUND ...]

It adds small inputs of all sizes from CORPUS, and all FOUND ones, which the
fuzzer found, to those that the zip file has already.
"""

import argparse
import hashlib
import pathlib
import zipfile


def read_zip(path):
    if not path.exists():
        return {}
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def choose(folder, count, largest):
    files = [f for f in folder.iterdir() if f.stat().st_size <= largest]
    files.sort(key=lambda f: (f.stat().st_size, f.name))
    return files[:: max(1, len(files) // count)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("found", type=pathlib.Path, nargs="*")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--largest", type=int, default=4000, metavar="BYTES")
    options = parser.parse_args()

    inputs = read_zip(options.out)
    for file in options.found:
        inputs["found-" + file.name] = file.read_bytes()
    for file in choose(options.corpus, options.count, options.largest):
        data = file.read_bytes()
        inputs.setdefault(hashlib.sha1(data).hexdigest()[:16], data)
    with zipfile.ZipFile(options.out, "w") as archive:
        for name in sorted(inputs):
            # Stored, with a fixed date: the same inputs make the same file.
            archive.writestr(zipfile.ZipInfo(name), inputs[name])
    print(f"{options.out}: {len(inputs)} inputs, {options.out.stat().st_size} B")


if __name__ == "__main__":
    main()
