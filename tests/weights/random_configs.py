"""Random JSON texts, read by Python's json and by our reader of configurations.

    python random_configs.py PROGRAM [COUNT [SEED]]

PROGRAM is read_all.cpp. We read what Python reads, to the same values, and refuse
what it what it refuses. Of what it reads we refuse halves of surrogate pairs, and numbers
that no double holds.
"""

from __future__ import annotations

import json
import math
import pathlib
import random
import sys
import tempfile
from typing import Any

from reader import Reader

NUMBERS = """
    0 -0 1 -1.0 0.1 1e5 1E+05 -2.5e-3 1e22 1e23 4.9e-324 2e-324 1e-400 1e400 -0.0
    9007199254740993 9223372036854775807 9223372036854775808 -9223372036854775808
    -9223372036854775809 18446744073709551615 18446744073709551616 1e-7 123456.789e-3
    123456789012345678901234567890 1.7976931348623157e308 1.7976931348623159e308
    NaN Infinity -Infinity""".split()
CHARACTERS = [*"aZ {}[]:,/\x7f\u00e9\u65e5\U0001f600", "NaN", "\\n", "\\\\", '\\"', "\\/"]
ESCAPES = ["\\u0041", "\\u0000", "\\ud83d\\ude00", "\\ud800", "\\udc00", "\\x", "\\u1", "\n"]
# Texts that replace a part of a text.
TOKENS = [
    *b'{ } [ ] , : " \\ NaN nan Infinity null tru 01 1. .5 + - 1e'.split(),
    *(b"\x00", b"\x0c", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc2\xa0", b"/**/", b"'"),
]


class Grammar:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def space(self) -> str:
        return self.draw.choice(["", "", "", " ", "\n", "\t", "\r\n"])

    def text(self) -> str:
        parts = self.draw.choices(CHARACTERS, k=self.draw.randrange(4))
        if self.draw.random() < 0.1:
            parts.append(self.draw.choice(ESCAPES))
        return '"' + "".join(parts) + '"'

    def number(self) -> str:
        if self.draw.random() < 0.7:
            return self.draw.choice(NUMBERS)
        return repr(self.draw.random() * 10.0 ** self.draw.randrange(-320, 309))

    def joined(self, items: list[str], begin: str, end: str) -> str:
        between = self.space() + "," + self.space()
        return begin + self.space() + between.join(items) + self.space() + end

    def items(self, depth: int) -> list[str]:
        return [self.value(depth - 1) for _ in range(self.draw.randrange(4))]

    def object(self, depth: int) -> str:
        fields = [f"{self.text()}{self.space()}:{item}" for item in self.items(depth)]
        return self.joined(fields, "{", "}")

    def value(self, depth: int) -> str:
        kind = self.draw.randrange(6 if depth > 0 else 3)
        if kind == 0:
            return self.number()
        if kind == 1:
            return self.text()
        if kind == 2:
            return self.draw.choice(["true", "false", "null"])
        return self.object(depth) if kind < 5 else self.joined(self.items(depth), "[", "]")

    def file(self) -> bytes:
        text = self.object(5).encode()
        if self.draw.random() < 0.4:
            begin = self.draw.randrange(len(text) + 1)
            end = begin + self.draw.choice([0, 1, 1, 4])
            text = text[:begin] + self.draw.choice([b"", *TOKENS]) + text[end:]
        return text


def number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise OverflowError
    return value


def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Halves of surrogate pairs have no UTF-8, in values that count or not.
    json.dumps(pairs, ensure_ascii=False).encode()
    return dict(pairs)


def integer(text: str) -> int | float:
    value = int(text)
    return value if -(2**63) <= value < 2**63 else number(text)


def by_python(data: bytes) -> Any:
    """Returns the value; throws for what has none, and what we refuse."""
    value = json.loads(
        data.decode(),
        object_pairs_hook=fields,
        parse_int=integer,
        parse_float=number,
        parse_constant=lambda name: {"__float__": name},
    )
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def problem_of(data: bytes, reader: Reader, path: pathlib.Path) -> str:
    """Returns how the two differ; "" if they do not."""
    path.write_bytes(data)
    found = reader.answer(str(path))
    try:
        wanted = by_python(data)
    except (ValueError, OverflowError) as error:
        return "" if "error" in found else f"read, but not by Python: {error!r}"
    if "error" in found:
        return found["error"]
    text = json.dumps(wanted, sort_keys=True)
    ours = json.dumps(json.loads(found["config"]), sort_keys=True)
    return "" if ours == text else f"is {ours}, expected {text}"


def main() -> None:
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    grammar = Grammar(random.Random(seed))
    num_read = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        reader = Reader(sys.argv[1], folder)
        for i in range(count):
            data = grammar.file()
            problem = problem_of(data, reader, folder / "config.json")
            if problem:
                raise SystemExit(f"text {i} of seed {seed}: {data!r}: {problem}")
            num_read += "error" not in reader.answer(str(folder / "config.json"))
    print(f"{count} texts, of which {num_read} were read")
    if num_read < count / 4:
        raise SystemExit("too few were read")


if __name__ == "__main__":
    main()
