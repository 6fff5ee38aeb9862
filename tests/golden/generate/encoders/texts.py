"""Texts that are hard for a tokenizer."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import torch
from torch import Tensor
from torch_attention_reference import safetensors_file

from ..golden_set import Unavailable

COUNT = 3000
SENTENCES = [
    "",
    " \t\r\n ",
    "The cat is sleeping on the sofa.",
    "A kitten is resting on the couch.",
    "The bank has raised its interest rates.",
    "Heavy rain flooded the streets last night.",
    "Élan vital: naïve CAFÉ, Ünïcödé, ﬁne, Straße, İstanbul, ΣΊΣΥΦΟΣ",
    "don't [MASK] it -- [CLS][SEP] [mask] [UNK]x[PAD] <s>a</s> <mask><pad>",
    "中文字符 and 日本語 かな ガギグ, 한국어 각, العربية, हिन्दी, ภาษาไทย",
    "e\u0301 \u0301 a\u302f\u302e\u0315\u034f\u302e 𝅘𝅥𝅮 \u1e944",
    "zero\u200bwidth\u00adsoft\u2060joiner\ufeff \u0000null\u0085next\u2028line",
    "x" * 100 + " " + "x" * 101 + " " + "é" * 100,
    "unaffable playing " * 60,
    "😀👩‍👩‍👧🏽 ™®© $5+3=8 «a» ‘b’ \u007f\u0080",
]
WORDS = "the and sentence vectors un able ing searched Running a I cat".split()
# First and last of ranges of characters, beside those of WORDS.
RANGES = [
    (0x00, 0x7F),
    (0x80, 0x24F),
    (0x300, 0x36F),
    (0x370, 0x52F),
    (0x5D0, 0x6FF),
    (0x900, 0xDFF),
    (0x1100, 0x11FF),
    (0x1E00, 0x206F),
    (0x3000, 0x30FF),
    (0x4E00, 0x4E20),
    (0xAC00, 0xD7A3),
    (0xF900, 0xFFFD),
    (0x1D150, 0x1D1FF),
    (0x20000, 0x20010),
    (0x10000, 0x10FFFF),
]
# Marks that move, and those that they move over or not.
MARKS = "\u302e\u302f\U0001d165\U0001d16d\U0001e944\u08d4\u1b44\u034f\u0301\u0315\u0334"


def draw(rng: random.Random) -> bytes:
    text = ""
    for _ in range(rng.randrange(1, 10)):
        kind = rng.random()
        if kind < 0.4:
            text += rng.choice(WORDS)
        elif kind < 0.5:
            text += rng.choice(MARKS)
        elif kind < 0.7:
            text += rng.choice(" .,-'#é[")
        else:
            first, last = rng.choice(RANGES)
            character = rng.randint(first, last)
            text += "" if 0xD800 <= character < 0xE000 else chr(character)
    data = bytearray(text.encode())
    if rng.random() < 0.3:
        place = rng.randrange(len(data) + 1)
        data[place : place + rng.randrange(2)] = rng.choice(
            [b"\xff", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]
            + [b"\xc0\x80", b"\xf0\x9f\x98", b"\x80", b"\xe0\x80\x80"]
        )
    return bytes(data)


def texts() -> list[bytes]:
    rng = random.Random(1)
    fixed = [sentence.encode() for sentence in SENTENCES]
    return fixed + [draw(rng) for _ in range(COUNT - len(fixed))]


def decoded() -> list[str]:
    return [text.decode("utf-8", "replace") for text in texts()]


def write(path: Path) -> None:
    data = texts()
    tensors = {
        "bytes": torch.tensor(list(b"".join(data)), dtype=torch.uint8),
        "lengths": torch.tensor([len(text) for text in data]),
    }
    safetensors_file.write(path, tensors)


def write_characters(path: Path) -> None:
    """Writes all characters, and so every table of the tokenizer."""
    try:
        from tokenizers import normalizers, pre_tokenizers
    except ImportError as error:
        raise Unavailable(f"needs the package tokenizers: {error}")
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str

    def checksums(uncased: bool) -> Tensor:
        normalize = normalizers.BertNormalizer(True, True, uncased, uncased)
        sums = []
        for block in range(0, 0x110000, 256):
            data = b""
            for c in range(block, block + 256):
                text = "a" + ("" if 0xD800 <= c < 0xE000 else chr(c)) + "b"
                for word, _ in split(normalize.normalize_str(text)):
                    data += word.encode() + b"\n"
            sums.append(zlib.crc32(data))
        return torch.tensor(sums)

    tensors = {"uncased": checksums(True), "cased": checksums(False)}
    safetensors_file.write(path, tensors)
