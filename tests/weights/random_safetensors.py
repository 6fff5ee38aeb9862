"""Random safetensors headers, read by the safetensors package and by ours.

    python random_safetensors.py PROGRAM [COUNT [SEED]]

PROGRAM is read_all.cpp. Where the package reads a file, we read the same values;
what is ambiguous (a name twice) and what LibTorch has no tensors for may be
refused. Without the package nothing is compared.
"""

from __future__ import annotations

import json
import pathlib
import random
import struct
import sys
import tempfile
from typing import Any

from reader import Reader, difference

try:
    from safetensors import safe_open
except ImportError:
    print("left out: the safetensors package is not installed")
    sys.exit(0)

BITS = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "I64": 64,
    "I8": 8,
    "U16": 16,
    "U8": 8,
    "BOOL": 8,
    "C64": 64,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F32x": 32,
}


class Grammar:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def file(self) -> bytes:
        names = self.draw.sample(["a", "b", "", "é", "x.y", "\u202e\n", "__m"], 3)
        fields = []
        offset = 0
        for name in names[: self.draw.randrange(4)]:
            text, offset = self.entry(offset)
            fields.append(f"{json.dumps(name)}:{text}")
        if self.draw.random() < 0.4:
            fields.insert(
                self.draw.randrange(len(fields) + 1),
                f'"__metadata__":{self.metadata()}',
            )
        if fields and self.draw.random() < 0.05:
            fields.append(fields[0])
        self.draw.shuffle(fields)
        header = "{" + ",".join(fields) + "}"
        header = self.changed(header)
        header += " " * self.draw.choice([0, 0, 3, 8])
        if self.draw.random() < 0.05:
            header = " " + header
        raw = header.encode()
        length = len(raw) + self.draw.choice([0] * 20 + [1, -1])
        data = bytes(self.draw.choice([0, 1]) for _ in range(offset))
        return struct.pack("<Q", max(length, 0)) + raw + data

    def entry(self, offset: int) -> tuple[str, int]:
        dtype = self.draw.choice(list(BITS))
        shape = [self.draw.randrange(5) for _ in range(self.draw.randrange(4))]
        bits = BITS[dtype]
        for size in shape:
            bits *= size
        end = offset + (bits + 7) // 8
        if self.draw.random() < 0.03:
            end += self.draw.choice([-1, 1])
        fields: list[tuple[str, Any]] = [
            ("dtype", dtype),
            ("shape", shape),
            ("data_offsets", [offset, end]),
        ]
        if self.draw.random() < 0.15:
            fields.append(("extra", self.value(3)))
        if self.draw.random() < 0.03:
            fields.pop(self.draw.randrange(3))
        self.draw.shuffle(fields)
        return json.dumps(dict(fields)), max(end, offset)

    def metadata(self) -> str:
        return json.dumps(
            self.draw.choice(
                [None, {}, {"format": "pt"}, {"a": "b", "": ""}, {"a": 1}, [], "x"]
            )
        )

    def value(self, depth: int) -> Any:
        if depth == 0:
            return self.draw.choice([None, True, 1, -1.5, "x", 1 << 70])
        return self.draw.choice(
            [
                [self.value(depth - 1)],
                {"k": self.value(depth - 1), "dtype": "F32"},
                self.value(0),
            ]
        )

    def changed(self, header: str) -> str:
        """Changes a character, seldom."""
        if self.draw.random() > 0.1:
            return header
        at = self.draw.randrange(len(header))
        other = self.draw.choice('{}[]",:0129-.e \\ntf')
        return header[:at] + other + header[at + 1 :]


def by_package(path: pathlib.Path) -> dict[str, Any] | None:
    """Returns the tensors; an error for one that it cannot make."""
    try:
        with safe_open(path, "pt") as file:
            tensors: dict[str, Any] = {}
            for key in file.keys():
                try:
                    tensors[key] = file.get_tensor(key)
                except Exception as error:  # noqa: BLE001
                    tensors[key] = error
            return tensors
    except Exception:  # noqa: BLE001
        return None


def check(data: bytes, reader: Reader, path: pathlib.Path) -> tuple[str, bool]:
    path.write_bytes(data)
    wanted = by_package(path)
    found, tensors = reader.read(path)
    if wanted is None:
        # A number that is written as -0 is one to us.
        lenient = "error" in found or b"-0" in data
        return "" if lenient else "read, but not by the package", False
    if "error" in found:
        allowed = any(
            reason in found["error"]
            for reason in ("twice", "values other than 0 and 1")
        )
        return "" if allowed else found["error"], False
    for key, tensor in wanted.items():
        if isinstance(tensor, Exception):
            if key not in found["unreadable"] and key not in tensors:
                return f"{key!r} is not named", False
        elif key not in tensors:
            return f"{key!r} is not read: {found}", False
        else:
            problem = difference(tensors[key], tensor)
            if problem:
                return f"{key!r} {problem}", False
    return "", True


def main() -> None:
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    wrong = read = 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "random.safetensors"
        reader = Reader(sys.argv[1], pathlib.Path(folder))
        for seed in range(first, first + count):
            data = Grammar(random.Random(seed)).file()
            problem, was_read = check(data, reader, path)
            read += was_read
            if problem:
                wrong += 1
                print(f"file {seed}: {problem[:500]}: {data[:500]!r}")
    print(f"{count} files: {read} read and equal, {wrong} wrong")
    if wrong or read < count // 4:
        sys.exit(1)


if __name__ == "__main__":
    main()
