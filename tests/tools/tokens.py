"""Compares the tokens of torch-attention with those of Python's tokenizers.

    python tokens.py PROGRAM LICENSE GOLDEN

This Python has the packages tokenizers and onnxruntime-genai.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tokenizers import (
    AddedToken,
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
LETTERS = (
    "abzAZ019 \t'’.,!?—éßøñжΩ中文日本語한글🙂👩‍👧\u00a0\u2028\u200b٣४Ⅷ½´`_-<>|/"
    # With these, texts have other forms than Unicode's normal form C.
    "e\u0301o\u0308\u1100\u1161\u212b"
)
# Added tokens that are found after those that are not normalized.
ADDED = ("<new>", "he e", "  ")
# They change places in later versions of Unicode than that of tokenizers.
LATER_MARKS = "\u07fd\u0898\u08cf\u1abf\u1ace\u1df6\U00010f46\U00011930\U0001e130"


def run(*command: str, text: str | bytes = "", status: int = 0) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env["TORCH_ATTENTION_PYTHON_PACKAGES"] = sysconfig.get_paths()["purelib"]
    text = text.encode() if isinstance(text, str) else text
    done = subprocess.run(command, input=text, capture_output=True, env=env)
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


def gemma_tokenizer(texts: list[str], spans_words: bool) -> Tokenizer:
    """Spaces are letters; a token begins each text. Tokens may span words."""
    special = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    if not spans_words:
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


def tokenizers_of(texts: list[str]) -> dict[str, Tokenizer]:
    made = {
        name: byte_tokenizer(texts, 600, pattern) for name, pattern in PATTERNS.items()
    }
    made["qwen2"].normalizer = normalizers.NFC()
    made["qwen2"].add_special_tokens(["<|im_start|>", "<|im_end|>"])
    parts = json.loads(made["llama3"].to_str())
    parts["model"]["ignore_merges"] = True
    made["llama3"] = Tokenizer.from_str(json.dumps(parts))
    roberta = byte_tokenizer(texts, 600, None)
    roberta.add_special_tokens(["<s>", "</s>"])
    begin, end = ((name, roberta.token_to_id(name)) for name in ("<s>", "</s>"))
    roberta.post_processor = processors.RobertaProcessing(end, begin)
    made["roberta"] = roberta
    made["gemma"] = gemma_tokenizer(texts, spans_words=False)
    made["gemma_across_words"] = gemma_tokenizer(texts, spans_words=True)
    for tokenizer in made.values():
        tokenizer.add_tokens([AddedToken(text, normalized=True) for text in ADDED])
        tokenizer.add_tokens([AddedToken("e n<", normalized=False)])
    return made


def save(tokenizer: Tokenizer, folder: Path) -> str:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return str(folder)


def test_encoding(program: str, folder: Path, texts: list[str]) -> None:
    draw = random.Random(1)
    hostile = [
        "".join(draw.choice(LETTERS) for _ in range(draw.randrange(1, 40)))
        for _ in range(500)
    ]
    lines = [*texts, *hostile, "I'M don'T we'Re", "    x", "1234567", TEXT]
    lines += ["<|im_start|>user", "a<|im_end|>b", "x <|im_start|> y"]
    lines += ["<new>", "a<new> b", "the e n<", "the e n", "a    b", "he e<new>e n<new"]
    lines += [f"a\u0345{mark}\u0316e\u0301" for mark in LATER_MARKS]
    # Words of more than 100 characters.
    joined = "".join(texts).replace(" ", "")
    lines += [joined[:400], "猫是" * 60, "=" * 150, " " * 130 + "a", "ab" * 300]
    lines += ["".join(draw.choice(LETTERS.split()[0]) for _ in range(500))]
    for name, tokenizer in tokenizers_of(texts).items():
        place = save(tokenizer, folder / name)
        out = run(program, "tokens", place, text="\n".join(lines) + "\n")
        got = out.splitlines()
        assert len(got) == len(lines), (name, len(got))
        for line, ids in zip(lines, got):
            assert ids == listed(tokenizer, line), (name, line, ids)
        print(f"{name}: {len(lines)} lines have Python's tokens")


def test_refusals(program: str, folder: Path) -> None:
    llama2 = Tokenizer(models.BPE())
    llama2.normalizer = normalizers.Prepend("▁")
    place = save(llama2, folder / "llama2")
    error = run(program, "tokens", place, text="a\n", status=1)
    assert "the normalizer is of a kind" in error, error
    masked = byte_tokenizer(["a b"], 260, None)
    masked.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    place = save(masked, folder / "masked")
    assert run(program, "tokens", place, text="a b\n")
    error = run(program, "tokens", place, text="a <mask>\n", status=1)
    assert 'a text with "<mask>" would have other tokens' in error, error
    nfc = byte_tokenizer(["a b"], 260, None)
    nfc.normalizer = normalizers.NFC()
    place = save(nfc, folder / "nfc")
    error = run(program, "tokens", place, text=b"\xff\n", status=1)
    assert "expected a text in UTF-8" in error, error
    error = run(program, "tokens", place, text=b"a\0b\n", status=1)
    assert "expected a text without zero bytes" in error, error
    whole = byte_tokenizer(["a b"], 260, None)
    parts = json.loads(whole.to_str())
    parts["model"]["vocab"]["xyz"] = len(parts["model"]["vocab"])
    place = save(Tokenizer.from_str(json.dumps(parts)), folder / "whole")
    error = run(program, "tokens", place, text="xyz\n", status=1)
    assert 'a text with "xyz" would have other tokens' in error, error
    config = folder / "whole" / "tokenizer_config.json"
    config.write_text('{"add_prefix_space": true}')
    error = run(program, "tokens", place, text="a\n", status=1)
    assert "expected add_prefix_space = false" in error, error


def test_missing_library(program: str, folder: Path) -> None:
    """Without the library, a sentence says how to get it."""
    place = str(folder / "gpt2")
    nowhere = {"TORCH_ATTENTION_PYTHON_PACKAGES": str(folder), "VIRTUAL_ENV": ""}
    done = subprocess.run(
        [program, "tokens", place],
        input=b"a\n",
        capture_output=True,
        env={**os.environ, **nowhere},
    )
    if done.returncode == 0:
        print("not tested: a missing library, which is beside LibTorch")
        return
    assert done.returncode == 1, done
    assert b"pip install onnxruntime-genai" in done.stderr, done.stderr


def tokenizer_of_bytes(step: int = 1) -> Tokenizer:
    """Its tokens are those of `gpt train`: bytes, by GPT-2's names of them.

    With another odd `step`, the first tokens are bytes of all kinds.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable}
    names |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    vocabulary = {name: byte * step % 256 for byte, name in names.items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_generation(program: str, folder: Path, golden: str) -> None:
    """A GPT-2 continues a text alike by bytes and by a tokenizer.json of bytes."""
    model = folder / "model"
    shutil.copytree(f"{golden}/models/gpt2", model)
    config = json.loads((model / "config.json").read_text())
    assert config["vocab_size"] <= 256, config
    (model / "config.json").write_text(json.dumps({**config, "tokens": "bytes"}))
    command = [program, "generate", str(model), "--max-new-tokens=20"]
    command += ["--prompt", "\x01\x02\x03", "--temperature=0.9", "--seed=1"]
    by_bytes = run(*command)
    (model / "config.json").write_text(json.dumps(config))
    tokenizer_of_bytes().save(str(model / "tokenizer.json"))
    text = run(*command)
    assert text == by_bytes and len(text) > 1, (text, by_bytes)
    picture = folder / "model.svg"
    run(program, "heatmap", str(model), "--tokens", "=&", "--out", str(picture))
    assert "&amp;" in picture.read_text(), "no label of a token"
    (line,) = run(*command, "--json").splitlines()
    assert json.loads(line)["text"] + "\n" == text, (line, text)
    # Any tokens have Python's text, also where bytes are no character.
    tokenizer = tokenizer_of_bytes(77)
    tokenizer.save(str(model / "tokenizer.json"))
    by_ids = [program, "generate", str(model), "--ids=1,2,3", "--temperature=3"]
    for seed in range(5):
        drawn = [*by_ids, f"--seed={seed}", "--text"]
        (line,) = run(*drawn, "--json").splitlines()
        wanted = tokenizer.decode(json.loads(line)["ids"])
        assert json.loads(line)["text"] == wanted, (line, wanted)
        assert run(*drawn) == wanted + "\n", (seed, wanted)


def main(program: str, license: str, golden: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = [line for line in Path(license).read_text().splitlines() if line]
        test_encoding(program, folder, texts)
        test_refusals(program, folder)
        test_missing_library(program, folder)
        test_generation(program, folder, golden)


main(*sys.argv[1:])
