"""Random GGUF files, read by the gguf package of llama.cpp and by ours.

    python random_gguf.py PROGRAM [COUNT [SEED]]

PROGRAM is read_all.cpp. Values have to have the bits that the package computes,
and the order of rows that the model had before llama.cpp's converter permuted
it. Needs no torch.
"""

from __future__ import annotations

import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Type = gguf.GGMLQuantizationType

# With NumPy's types; BF16 as its bits.
PLAIN = {
    Type.F32: np.float32,
    Type.F16: np.float16,
    Type.BF16: np.uint16,
    Type.F64: np.float64,
    Type.I8: np.int8,
    Type.I16: np.int16,
    Type.I32: np.int32,
    Type.I64: np.int64,
}
QUANTIZED = [
    Type.Q4_0,
    Type.Q4_1,
    Type.Q5_0,
    Type.Q5_1,
    Type.Q8_0,
    Type.Q2_K,
    Type.Q3_K,
    Type.Q4_K,
    Type.Q5_K,
    Type.Q6_K,
    Type.IQ1_S,
    Type.IQ1_M,
    Type.IQ2_XXS,
    Type.IQ2_XS,
    Type.IQ2_S,
    Type.IQ3_XXS,
    Type.IQ3_S,
    Type.IQ4_NL,
    Type.IQ4_XS,
    Type.TQ1_0,
    Type.TQ2_0,
    Type.MXFP4,
    Type.NVFP4,
]
# The package computes no values of it.
NOT_DECODED = [Type.Q1_0]
# Which types a permuted tensor may have.
PERMUTED_PLAIN = [Type.F32, Type.F16, Type.BF16]

# As llama.cpp's converter does it.
PERMUTED = ["llama", "granite", "deci", "smollm3", "mistral3", "nemotron_h"]
UNCHANGED = ["qwen2", "qwen3", "gpt-oss", "phi3", "olmo2"]
ONE_ADDED = ["gemma2", "gemma3", "nemotron", "plamo3", "qwen3next", "step35"]
# To norms outside of attention, too.
ONE_ADDED_TO_ALL = ["gemma2", "gemma3", "nemotron", "qwen3next", "step35"]
UNKNOWN = ["", "clip", "llama5"]


class Wanted:
    """A tensor that has to be read: safetensors' name of its dtype, and its bits."""

    def __init__(self, dtype: str, values: NDArray) -> None:
        self.dtype = dtype
        self.shape = list(values.shape)
        self.bits = values.tobytes()

    def difference(self, found: Wanted) -> str:
        if (self.dtype, self.shape) != (found.dtype, found.shape):
            return (
                f"is {found.dtype} of {found.shape}, expected {self.dtype} of "
                f"{self.shape}"
            )
        return "" if self.bits == found.bits else "has other values"


class Reader:
    """The library's reader of files, as a process that answers lines."""

    def __init__(self, program: str, folder: pathlib.Path) -> None:
        self.out = folder / "read.safetensors"
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read(self, path: pathlib.Path) -> tuple[dict[str, Any], dict[str, Wanted]]:
        """Returns what was found in a file, and its tensors."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path}\t{self.out}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the reader ended at {path}")
        found = json.loads(answer)
        return found, {} if "error" in found else self.written()

    def written(self) -> dict[str, Wanted]:
        data = self.out.read_bytes()
        begin = 8 + struct.unpack("<Q", data[:8])[0]
        tensors = {}
        for name, entry in json.loads(data[8:begin]).items():
            if name != "__metadata__":
                start, end = (begin + offset for offset in entry["data_offsets"])
                bits = np.frombuffer(data[start:end], np.uint8)
                tensors[name] = Wanted(entry["dtype"], bits)
                tensors[name].shape = entry["shape"]
        return tensors


def permuted(rows: NDArray, heads: int) -> NDArray:
    """The rows of a model in the order of GGUF files."""
    shape = rows.shape
    halves = rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
    return halves.swapaxes(1, 2).reshape(shape)


def finite_scales(blocks: NDArray, kind: Type) -> NDArray:
    """Removes NaN and infinity from the scales of random blocks."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    places = {
        Type.Q4_1: (0, 2),
        Type.Q5_1: (0, 2),
        Type.Q2_K: (80, 82),
        Type.Q3_K: (108,),
        Type.Q4_K: (0, 2),
        Type.Q5_K: (0, 2),
        Type.Q6_K: (208,),
        Type.TQ1_0: (52,),
        Type.TQ2_0: (64,),
        Type.MXFP4: (),
        Type.NVFP4: (),
        Type.IQ1_M: (),
    }.get(kind, (0,))
    blocks = blocks.reshape(-1, size)
    for place in places:
        high = blocks[:, place + 1]
        # An exponent of all ones.
        high[(high & 0x7C) == 0x7C] ^= 0x40
    if kind == Type.IQ1_M:
        # The highest bits of the scale are in the last byte.
        blocks[:, 55] &= 0xBF
    return blocks


class Grammar:
    """A random file, and the tensors that it has to give."""

    def __init__(self, seed: int, path: pathlib.Path) -> None:
        self.draw = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.path = path
        self.architecture = self.draw.choice(
            [self.draw.choice(names) for names in (PERMUTED, UNCHANGED, ONE_ADDED)]
            * 3
            + [self.draw.choice(UNKNOWN)]
        )
        self.is_permuted = self.architecture in PERMUTED
        self.is_unknown = self.architecture in UNKNOWN
        self.heads = self.draw.choice([1, 2, 4, 6])
        self.key_heads = self.draw.choice(
            [n for n in (1, 2, 3, 6) if self.heads % n == 0]
        )
        self.head_size = self.draw.choice([2, 4, 8, 10])
        self.has_heads = self.draw.random() < 0.9
        self.wanted: dict[str, Wanted] = {}
        self.unreadable: set[str] = set()

    def write(self) -> None:
        writer = gguf.GGUFWriter(self.path, self.architecture)
        self.add_metadata(writer)
        self.writer = writer
        for layer in range(self.draw.randrange(3)):
            self.add_block(f"blk.{layer}")
        for i in range(self.draw.randrange(4)):
            shape = [self.draw.randrange(1, 4) for _ in range(self.draw.randrange(3))]
            self.add(f"other.{i}", [*shape, 256])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def add_metadata(self, writer: gguf.GGUFWriter) -> None:
        if self.draw.random() < 0.2:
            writer.add_custom_alignment(self.draw.choice([8, 16, 64, 4096]))
        writer.add_string("general.name", "é" * self.draw.randrange(9))
        writer.add_array("tokenizer.ggml.tokens", ["a", "", "bc"])
        writer.add_array("tokenizer.ggml.scores", [0.5, -1.0])
        writer.add_bool("some.flag", True)
        writer.add_float64("some.number", 1e300)
        if self.has_heads:
            if self.draw.random() < 0.3:
                writer.add_head_count([self.heads] * 3)
            else:
                writer.add_head_count(self.heads)
            if self.key_heads != self.heads or self.draw.random() < 0.5:
                writer.add_head_count_kv(self.key_heads)
        else:
            self.key_heads = self.heads

    def add_block(self, path: str) -> None:
        columns = 256
        counts = {"attn_q": self.heads, "attn_k": self.key_heads}
        rows = {part: n * self.head_size for part, n in counts.items()}
        rows["attn_v"] = rows["attn_k"]
        if self.draw.random() < 0.3:
            counts = {"attn_qkv": self.heads + self.key_heads}
            rows = {"attn_qkv": (self.heads + 2 * self.key_heads) * self.head_size}
        has_bias = self.draw.random() < 0.4
        for part, count in rows.items():
            heads = counts.get(part, 0)
            self.add(f"{path}.{part}.weight", [count, columns], heads)
            if has_bias:
                self.add(f"{path}.{part}.bias", [count], heads, Type.F32)
        self.add(f"{path}.attn_output.weight", [4, columns])
        if not self.is_permuted and self.draw.random() < 0.6:
            self.add_norm(f"{path}.attn_q_norm.weight", self.head_size)
            self.add_norm(f"{path}.attn_k_norm.weight", self.head_size)
        if self.architecture in ONE_ADDED_TO_ALL:
            self.add_norm(f"{path}.attn_norm.weight", columns)
        else:
            self.add(f"{path}.attn_norm.weight", [columns], 0, Type.F32)

    def add_norm(self, name: str, size: int) -> None:
        values = self.numbers.standard_normal(size).astype(np.float32)
        stored = values + np.float32(1)
        if self.architecture not in ONE_ADDED:
            values = stored
        else:
            # The model computes with the sum.
            values = stored - np.float32(1)
            assert (values + np.float32(1) == stored).all()
        self.writer.add_tensor(name, stored)
        if self.is_unknown:
            self.unreadable.add(name)
        else:
            self.wanted[name] = Wanted("F32", values)

    def add(
        self, name: str, shape: list[int], heads: int = 0, kind: Type | None = None
    ) -> None:
        """Adds a tensor whose first heads have permuted rows."""
        if kind is None:
            kind = self.draw.choice(
                QUANTIZED + list(PLAIN) + [self.draw.choice(NOT_DECODED)]
            )
        data = self.data(shape, kind)
        is_permuted = heads > 0 and self.is_permuted
        size = heads * self.head_size
        stored = data
        if is_permuted:
            stored = np.concatenate((permuted(data[:size], heads), data[size:]))
        self.writer.add_tensor(name, stored, raw_dtype=kind)
        if (
            kind in NOT_DECODED
            or (heads > 0 and self.is_unknown)
            or (".attn_qkv." in name and self.architecture == "qwen3next")
            or (is_permuted and not self.has_heads)
            or (is_permuted and kind in PLAIN and kind not in PERMUTED_PLAIN)
        ):
            self.unreadable.add(name)
        elif kind in PLAIN:
            values = data.view(PLAIN[kind])
            if is_permuted and kind != Type.F32:
                values = gguf.quants.dequantize(data, kind)
            self.wanted[name] = Wanted("F32" if is_permuted else kind.name, values)
        else:
            values = gguf.quants.dequantize(data, kind)
            self.wanted[name] = Wanted("F32", values)

    def data(self, shape: list[int], kind: Type) -> NDArray:
        if kind in PLAIN:
            numbers = (self.numbers.standard_normal(shape) * 50).astype(np.float32)
            if kind == Type.BF16:
                return gguf.quants.quantize(numbers, kind)
            return numbers.astype(PLAIN[kind])
        if kind in (Type.Q4_0, Type.Q8_0, Type.TQ1_0) and self.draw.random() < 0.3:
            numbers = self.numbers.standard_normal(shape).astype(np.float32)
            return gguf.quants.quantize(numbers, kind)
        values, size = gguf.GGML_QUANT_SIZES[kind]
        count = int(np.prod(shape)) // values
        blocks = self.numbers.integers(0, 256, (count, size), dtype=np.uint8)
        blocks = finite_scales(blocks, kind)
        return blocks.reshape(*shape[:-1], shape[-1] // values * size)


def check(grammar: Grammar, reader: Reader) -> str:
    found, tensors = reader.read(grammar.path)
    if "error" in found:
        return found["error"]
    if set(found["unreadable"]) != grammar.unreadable:
        return f"{found['unreadable']}, expected {grammar.unreadable}"
    if set(tensors) != set(grammar.wanted):
        return f"read {set(tensors)}, expected {set(grammar.wanted)}"
    for name, wanted in grammar.wanted.items():
        problem = wanted.difference(tensors[name])
        if problem:
            form = found["stored"].get(name, "")
            return f"{name} ({form}) of {grammar.architecture} {problem}"
    return ""


def main() -> None:
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    wrong = compared = 0
    forms: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "random.gguf"
        reader = Reader(sys.argv[1], pathlib.Path(folder))
        for seed in range(first, first + count):
            grammar = Grammar(seed, path)
            grammar.write()
            problem = check(grammar, reader)
            compared += len(grammar.wanted)
            if problem:
                wrong += 1
                print(f"file {seed}: {problem[:500]}")
    print(f"{count} files: {compared} tensors compared, {wrong} files wrong")
    if wrong or compared < count:
        sys.exit(1)


if __name__ == "__main__":
    main()
