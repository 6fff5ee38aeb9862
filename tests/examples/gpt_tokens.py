"""Compares tokens.py and the program gpt of examples/gpt with Python's tokenizers.

    python gpt_tokens.py TOKENS_PY [GPT LICENSE]

GPT is given where it can read tokenizer.json.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXT = "Once upon a time — naïve 猫 and 🙂!"
# How Llama 3 and Qwen2 split texts, and GPT-2: by its default.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {"gpt2": None, "llama3": LLAMA3, "qwen2": LLAMA3.replace("{1,3}", "")}
REFUSED = {"llama2": "the normalizer Prepend", "wordpiece": "got WordPiece"}
LETTERS = "abzAZ019 \t'’.,!?—éßøñжΩ中文日本語한글🙂👩‍👧\u00a0\u2028\u200b٣४Ⅷ½´`_-<>|/"


def run(*command: str, text: str = "", status: int = 0) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, input=text.encode(), capture_output=True, env=env)
    assert done.returncode == status, (command, done)
    # A model without sense gives bytes that are no characters.
    return (done.stdout + done.stderr * status).decode(errors="replace")


def byte_tokenizer(texts: list[str], size: int, pattern: str | None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    by_bytes = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=pattern is None
    )
    tokenizer.pre_tokenizer = by_bytes
    if pattern is not None:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, by_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def gemma_tokenizer(texts: list[str]) -> Tokenizer:
    """Spaces are letters; a token begins each text."""
    special = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    # Tokens do not span words.
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=special,
        initial_alphabet=["▁"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    parts = json.loads(tokenizer.to_str())
    parts["added_tokens"] = parts["added_tokens"][:2]
    parts["model"]["fuse_unk"] = True
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def listed(tokenizer: Tokenizer, text: str) -> str:
    return ",".join(map(str, tokenizer.encode(text).ids))


def test_tokens_py(script: str, folder: Path) -> None:
    tokens = (sys.executable, script)
    missing = run(*tokens, "encode", str(folder), TEXT, status=1)
    assert "there is no file" in missing, missing
    tokenizer = byte_tokenizer(["Once upon a time"] * 4, 270, None)
    ids = tokenizer.encode(TEXT).ids
    parts = [tokenizer.decode([i]) for i in ids]
    assert "\ufffd" in parts and len(ids) < len(TEXT.encode()), parts
    tokenizer.save(str(folder / "tokenizer.json"))
    out = run(*tokens, "encode", str(folder), TEXT)
    assert out == listed(tokenizer, TEXT) + "\n", out
    out = run(*tokens, "decode", str(folder), text=" ".join(map(str, ids)) + "\n")
    assert out == TEXT + "\n", out


def test_encoding(gpt: str, folder: Path, texts: list[str]) -> None:
    draw = random.Random(1)
    hostile = [
        "".join(draw.choice(LETTERS) for _ in range(draw.randrange(1, 40)))
        for _ in range(500)
    ]
    lines = [*texts, *hostile, "I'M don'T we'Re", "    x", "1234567", TEXT]
    made = {
        name: byte_tokenizer(texts, 600, pattern) for name, pattern in PATTERNS.items()
    }
    made["gemma"] = gemma_tokenizer(texts)
    made["wordpiece"] = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made["llama2"] = Tokenizer(models.BPE())
    made["llama2"].normalizer = normalizers.Prepend("▁")
    for name, tokenizer in made.items():
        place = folder / name
        place.mkdir()
        tokenizer.save(str(place / "tokenizer.json"))
        (place / "config.json").write_text(json.dumps({"model_type": "llama"}))
        if name in REFUSED:
            error = run(gpt, "tokens", str(place), text="a\n", status=1)
            assert REFUSED[name] in error, error
            continue
        out = run(gpt, "tokens", str(place), text="\n".join(lines) + "\n")
        got = out.splitlines()
        assert len(got) == len(lines), (name, len(got))
        for line, ids in zip(lines, got):
            assert ids == listed(tokenizer, line), (name, line, ids)


def tokenizer_of_bytes() -> Tokenizer:
    """Its tokens are those of `gpt train`: bytes, by GPT-2's names of them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable}
    names |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    vocabulary = {name: byte for byte, name in names.items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_generation(gpt: str, folder: Path, license: str) -> None:
    model = str(folder / "model")
    sizes = ["--context=64", "--width=16", "--heads=2", "--layers=1", "--batch=8"]
    run(gpt, "train", license, *sizes, "--steps=30", "--warmup=5", "--out", model)
    command = [gpt, "generate", model, "--max-new-tokens=20"]
    command += ["--prompt", "naïve 猫", "--temperature=0.2", "--seed=1"]
    by_bytes = run(*command)
    config = json.loads(Path(model, "config.json").read_text())
    del config["tokens"]
    Path(model, "config.json").write_text(json.dumps(config))
    tokenizer_of_bytes().save(model + "/tokenizer.json")
    text = run(*command)
    assert len(text) == 21 and text == by_bytes, (text, by_bytes)


def main(script: str, gpt: str = "", license: str = "") -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        test_tokens_py(script, folder)
        if gpt:
            texts = [line for line in Path(license).read_text().splitlines() if line]
            test_encoding(gpt, folder, texts)
            test_generation(gpt, folder, license)


main(*sys.argv[1:])
