#!/usr/bin/env python3
"""Text to tokens and back, by the tokenizer.json of a model's folder.

    pip install tokenizers
    gpt generate FOLDER --prompt-ids "$(./tokens.py encode FOLDER 'Once upon')" \\
        | ./tokens.py decode FOLDER

`decode` prints text as tokens come in.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path


def read_tokens() -> Iterator[int]:
    """The tokens on standard input, each as soon as it is complete."""
    token = ""
    while character := sys.stdin.read(1):
        if character.isspace():
            if token:
                yield int(token)
            token = ""
        else:
            token += character
    if token:
        yield int(token)


def decode(tokenizer) -> None:
    tokens: list[int] = []
    shown = ""
    for token in read_tokens():
        tokens.append(token)
        text = tokenizer.decode(tokens)
        # The bytes of a character may be those of several tokens.
        if not text.endswith("\ufffd"):
            print(text[len(shown) :], end="", flush=True)
            shown = text
    print(tokenizer.decode(tokens)[len(shown) :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    encoding = commands.add_parser("encode", help="print the tokens of a text")
    decoding = commands.add_parser("decode", help="print the text of tokens")
    for command in (encoding, decoding):
        command.add_argument("folder", type=Path, metavar="FOLDER")
    encoding.add_argument("text", metavar="TEXT")
    options = parser.parse_args()
    try:
        from tokenizers import Tokenizer
    except ImportError:
        sys.exit("tokens.py: needs the package tokenizers: pip install tokenizers")
    path = options.folder / "tokenizer.json"
    if not path.is_file():
        sys.exit(f"tokens.py: there is no file {path}")
    tokenizer = Tokenizer.from_file(str(path))
    if options.command == "encode":
        print(",".join(str(i) for i in tokenizer.encode(options.text).ids))
    else:
        decode(tokenizer)


if __name__ == "__main__":
    main()
