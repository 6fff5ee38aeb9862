"""Runs the program encoder of examples/encoder.

    python encoder_program.py ENCODER GOLDEN
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from program import Program

ENCODER, GOLDEN = sys.argv[1:3]
MODEL = f"{GOLDEN}/encoders/bert"
TEXT = "the cat is sleeping\n\na bank\nvectors and sentences\n"
encoder = Program(ENCODER)
check, check_error = encoder.check, encoder.check_error


def test_search(folder: Path) -> None:
    file = folder / "text.txt"
    file.write_text(TEXT)
    search = ["search", file, "--model", MODEL]
    out, err = encoder(*search[:2], "a bank", *search[2:], "--top", 2)
    lines = out.splitlines()
    check(len(lines) == 2 and lines[0].split() == ["1.0000", "3", "a", "bank"], out)
    check("3 texts, " in err and "tokens/s" in err, err)
    again = encoder(*search, "--top", 2, text="a bank\n")[0]
    check(again == out, f"from standard input: {again}")
    padded = encoder(*search, "--top=2", "--padded", "--batch-tokens=1", text="a bank")
    check(padded[0] == out, f"padded: {padded[0]}")
    both = encoder(*search[:2], "a bank", "the cat", *search[2:], "--top", 2)[0]
    check(both.startswith("a bank\n" + out + "the cat\n"), both)

    index = folder / "index"
    check("3 texts" in encoder(*search, "--index", index)[1], "no index yet")
    err = encoder(*search, "--index", index)[1]
    check(f"3 vectors from {index}" in err, err)


def test_embed(folder: Path) -> None:
    out = folder / "vectors.safetensors"
    err = encoder("embed", "-", "--model", MODEL, "--out", out, text=TEXT)[1]
    check("4 texts, " in err, err)
    check(b'"vectors"' in out.read_bytes(), "no tensor vectors")
    check(b'"shape":[4,16]' in out.read_bytes().replace(b" ", b""), "its shape")
    tokens = encoder("tokens", "-", "--model", MODEL, text=TEXT)[0]
    check(tokens.splitlines()[1] == "2 3", tokens)


def test_errors(folder: Path) -> None:
    model = ["--model", MODEL]
    text = folder / "text.txt"
    encoder.check_usage("does not exist", "search", "nothing", *model)
    encoder.check_usage("--model is required", "search", text)
    encoder.check_usage("--top", "search", text, *model, "--top", 0)
    empty = folder / "empty.txt"
    empty.write_text("\n \n")
    check_error("Expected lines with text", "search", empty, *model)
    other = ["--model", f"{GOLDEN}/models/gpt2"]
    check_error("expected the tokenizer_class of a tokenizer of BERT", "search", text, *other)
    weights = f"{MODEL}/model.safetensors"
    check_error("not an index", "search", text, *model, "--index", weights)
    check_error("vectors.png", "embed", text, *model, "--out", folder / "vectors.png")


def main() -> None:
    check("search" in encoder("--help")[0], "--help")
    with tempfile.TemporaryDirectory() as folder:
        test_search(Path(folder))
        test_embed(Path(folder))
        test_errors(Path(folder))
    sys.exit(encoder.failures > 0)


main()
