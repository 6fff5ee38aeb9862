"""Small files that describe much: memory and time stay near their size.

    python bombs.py PROGRAM

PROGRAM is `torch-attention`, whose `inspect` reads each file as a process of its
own. It may take 22 times the file's size and what every file may take.
"""

from __future__ import annotations

import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator

import torch

SIZE = 20_000_000
TIMES = 22
FREE = 160 << 20
SECONDS = 20


def archive(
    pickle: bytes, records: dict[str, bytes] | None = None, deflate: bool = False
) -> bytes:
    """Returns a torch.save file of this pickle."""
    buffer = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", kind) as zipped:
        zipped.writestr("a/data.pkl", b"\x80\x02" + pickle + b".")
        for name, data in (records or {}).items():
            zipped.writestr("a/" + name, data)
    return buffer.getvalue()


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


STORAGE = (
    b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu")
) + b"K\x04tQ"


def tensors(count: int, shape: bytes = b"K\x02\x85", strides: bytes = b"K\x01\x85"):
    """Each tensor is a call with the same arguments: five bytes."""
    arguments = (
        b"("
        + STORAGE
        + b"K\x00"
        + shape
        + strides
        + b"\x89ccollections\nOrderedDict\n)Rt"
    )
    head = b"ctorch._utils\n_rebuild_tensor_v2\nq\x00" + arguments + b"q\x01"
    items = b"".join(number(i) + b"h\x00h\x01R" for i in range(count))
    return head + b"00}(" + items + b"u"


def nested_paths(count: int) -> bytes:
    """One dict of long names, in each of many others."""
    inner = b"}q\x00(" + b"".join(text(f"{i}" * 20) + b"K\x01" for i in range(99))
    return inner + b"u0}(" + b"".join(number(i) + b"h\x00" for i in range(count)) + b"u"


def bombs() -> Iterator[tuple[str, bytes]]:
    yield "empty lists", archive(b"]0" * (SIZE // 2) + b"}")
    yield "open lists", archive(b"]" * SIZE)
    yield "numbers", archive(b"](" + b"M\x00\x08" * (SIZE // 3) + b"e")
    yield "none", archive(b"N" * SIZE)
    yield "marks", archive(b"(" * SIZE + b"}")
    yield "pairs", archive(b"N\x85" * (SIZE // 2))
    yield "calls", archive(b"ca\nb\nq\x00)q\x010" + b"h\x00h\x01R0" * (SIZE // 6) + b"}")
    yield "memo", archive(b"}" + b"r" + struct.pack("<I", SIZE) + b" " * SIZE)
    names = b"".join(
        text("m" * 240 + str(i)) + b"q" + bytes([i]) + b"0" for i in range(200)
    )
    pairs = b"".join(
        b"h" + bytes([i]) + b"h" + bytes([j]) + b"\x930"
        for i in range(200)
        for j in range(200)
    )
    yield "names", archive(names + pairs + b"}")
    data = {"data/0": bytes(16)}
    yield "tensors", archive(tensors(SIZE // 9), data)
    many = b"(" + b"K\x01" * 63 + b"t"
    yield "dimensions", archive(tensors(SIZE // 9, many, many), data)
    yield "paths", archive(nested_paths(SIZE // 7))
    yield "repeated", archive(
        b"".join(
            b"](" + (b"h" + bytes([i - 1])) * 9 + b"eq" + bytes([i])
            if i
            else b"]q\x00"
            for i in range(12)
        )
    )
    yield "deflated zeros", archive(
        b"}", {"data/0": bytes(100 * SIZE)}, deflate=True
    )
    yield "deflated pickle", archive(b"]0" * (20 * SIZE) + b"}", deflate=True)
    wide = torch.zeros(1).expand(1 << 20, 1 << 20)
    buffer = io.BytesIO()
    torch.save({"W_query.weight": wide, "W_key.weight": wide}, buffer)
    yield "expanded", buffer.getvalue()

    def safetensors(header: str, size: int = 0) -> bytes:
        return struct.pack("<Q", len(header)) + header.encode() + bytes(size)

    yield "entries", safetensors(
        "{" + ",".join(f'"{i}":{{}}' for i in range(SIZE // 12)) + "}"
    )
    entry = '{"dtype":"I8","shape":[0],"data_offsets":[0,0]}'
    yield "empty tensors", safetensors(
        "{" + ",".join(f'"{i}":{entry}' for i in range(SIZE // 56)) + "}"
    )
    yield "deep JSON", safetensors('{"a":' * (SIZE // 5))
    yield "index", json.dumps(
        {"weight_map": {str(i): "a" for i in range(SIZE // 14)}}
    ).encode()
    config = json.dumps({"config": {str(i): {} for i in range(SIZE // 12)}})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        zipped.writestr("a/data/weights/m_weights_config.json", config)
    yield "export", buffer.getvalue()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        zipped.writestr("a/data.pkl", b"\x80\x02}.")
        for i in range(SIZE // 110):
            zipped.writestr(f"a/{i}", b"")
    yield "records", buffer.getvalue()


# Memory of a process counts from its fork on: a parent that is large would hide
# what its child takes.
MEASURE = """
import os, sys, time
start = time.monotonic()
child = os.fork()
if child == 0:
    out = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.execv(sys.argv[1], [sys.argv[1], "inspect", sys.argv[2]])
_, status, usage = os.wait4(child, 0)
print(status, usage.ru_maxrss * 1024, time.monotonic() - start)
"""


def run(program: str, path: pathlib.Path) -> tuple[int, float, str]:
    """Returns the most memory that the process had, its time, and its end."""
    out = path.with_suffix(".out")
    answer = subprocess.run(
        [sys.executable, "-S", "-c", MEASURE, program, path, out],
        check=True,
        capture_output=True,
        text=True,
    )
    status, memory, seconds = answer.stdout.split()
    with out.open(encoding="utf-8", errors="replace") as file:
        end = file.readline(4000).strip()
    if os.WIFSIGNALED(int(status)):
        end = f"signal {os.WTERMSIG(int(status))}"
    return int(memory), float(seconds), end


def main() -> None:
    program = sys.argv[1]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "bomb"
        torch.save({"a": torch.zeros(1)}, path)
        base, _, _ = run(program, path)
        for name, data in bombs():
            path.write_bytes(data)
            memory, seconds, end = run(program, path)
            more = memory - base
            times = more / len(data)
            bad = (
                more > TIMES * len(data) + FREE
                or seconds > SECONDS
                or end.startswith("signal")
            )
            wrong += bad
            print(
                f"{name}: {len(data) / 1e6:.1f} MB, {more / 1e6:.0f} MB more memory "
                f"({times:.0f} times), {seconds:.1f} s: {end[:150]}"
                f"{'  <-- too much' if bad else ''}"
            )
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
