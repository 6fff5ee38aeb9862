"""Folders of tokenizers drawn from a grammar, and their tokens.

tokenizers.json is a list of cases: "files" by their names, "texts", and for
each text the "ids" of `BertTokenizerFast`, or null if it refuses the folder.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from ..golden_set import Unavailable

SEED = 20261128
CASES = 100
TEXTS = 5
NAMED = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = (
    *"abcdefghij",
    *("##" + character for character in "abcdefghij"),
    *("foo", "bar", "##bar", "the", "FOO", "e", "##e", "é", "É", "中", "MASK"),
    *("!", ".", "[", "]", "<", ">", "mask", "/", "s"),
)
ADDED = ("<s>", "</s>", "<x>", "[X]", "foo", "new", "NEW", "<mask>", "a b", "é")
WORDS = (
    *("foo", "FOO", "Foobar", "abc", "É", "e\u0301", "中a", "a.b!", "[mask]"),
    *(" ", "\t", "\u00a0", "a" * 99, "a" * 101),
)
FIELDS = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token"),
    *("cls_token", "mask_token", "my_token"),
)


class Grammar:
    """Draws folders and texts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def maybe(self, probability: float) -> bool:
        return self.random.random() < probability

    def some(self, items: Any, most: int) -> list[Any]:
        return self.random.sample(items, self.random.randint(0, most))

    def token(self, text: str) -> dict[str, Any]:
        probabilities = {
            "lstrip": 0.3,
            "rstrip": 0.3,
            "normalized": 0.03,
            "single_word": 0.03,
            "special": 1.0,
        }
        return {"content": text} | {
            name: self.maybe(probability)
            for name, probability in probabilities.items()
            if self.maybe(0.8)
        }

    def added(self, vocabulary: dict[str, int]) -> dict[int, str]:
        """Tokens with their numbers, few of them wrong."""
        tokens: dict[int, str] = {}
        following = len(vocabulary)
        for text in self.some(ADDED + NAMED, 4):
            number = vocabulary.get(text, following)
            following += text not in vocabulary
            tokens[number + self.maybe(0.02)] = text
        return tokens

    def vocabulary(self) -> list[str]:
        named = [token for token in NAMED if self.maybe(0.95)]
        pieces = self.random.sample(PIECES, self.random.randint(8, len(PIECES)))
        pieces += [token for token in ADDED if self.maybe(0.2)]
        if self.maybe(0.1):
            pieces.insert(0, self.random.choice(["", "a ", "b\t", "foo\u3000", "a"]))
        return list(dict.fromkeys(named + pieces))

    def config(self, vocabulary: dict[str, int]) -> dict[str, Any]:
        config: dict[str, Any] = {}
        for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars"):
            if self.maybe(0.4):
                config[name] = self.maybe(0.5)
        for name in FIELDS:
            if self.maybe(0.1):
                config[name] = self.random.choice([*ADDED, *NAMED, None])
        if self.maybe(0.2):
            config["additional_special_tokens"] = self.some(ADDED, 3)
        if self.maybe(0.3):
            config["added_tokens_decoder"] = {
                str(number): self.token(text)
                for number, text in self.added(vocabulary).items()
            }
        return config

    def tokenizer(
        self, vocabulary: dict[str, int], config: dict[str, Any]
    ) -> dict[str, Any]:
        """A tokenizer.json, which may contradict the configuration."""

        def option(name: str, otherwise: Any) -> Any:
            return config.get(name, otherwise) if self.maybe(0.9) else self.maybe(0.5)

        flags = ("lstrip", "rstrip", "normalized", "single_word", "special")
        tokenizer = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": number, **dict.fromkeys(flags, False), **self.token(text)}
                for number, text in sorted(self.added(vocabulary).items())
            ],
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": option("tokenize_chinese_chars", True),
                "strip_accents": option("strip_accents", None),
                "lowercase": option("do_lower_case", True),
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": None,
            "decoder": None,
            "model": {
                "type": "WordPiece",
                "unk_token": config.get("unk_token") or "[UNK]",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100 if self.maybe(0.95) else 5,
                "vocab": vocabulary,
            },
        }
        if self.maybe(0.1):
            del tokenizer["model"]["type"]
        return tokenizer

    def files(self) -> dict[str, str]:
        lines = self.vocabulary()
        vocabulary = {text: number for number, text in enumerate(lines)}
        config = self.config(vocabulary)
        files = {}
        if self.maybe(0.9):
            files["tokenizer_config.json"] = json.dumps(config)
        else:
            config = {}
        if self.maybe(0.2):
            tokens: dict[str, Any] = {
                name: self.random.choice([*ADDED, *NAMED])
                for name in FIELDS[:-1]
                if self.maybe(0.2)
            }
            files["special_tokens_map.json"] = json.dumps(tokens)
        if self.maybe(0.2):
            tokens = {text: n for n, text in self.added(vocabulary).items()}
            files["added_tokens.json"] = json.dumps(tokens)
        if self.maybe(0.6):
            files["vocab.txt"] = "\n".join(lines) + "\n"
        if self.maybe(0.3) or "vocab.txt" not in files:
            files["tokenizer.json"] = json.dumps(self.tokenizer(vocabulary, config))
        return files

    def text(self) -> str:
        words = []
        for _ in range(self.random.randint(0, 8)):
            words.append(self.random.choice([*ADDED, *NAMED, *WORDS]))
            words.append(self.random.choice(["", " "]))
        return "".join(words)


def tokens_of(files: dict[str, str], texts: list[str]) -> list[list[int]] | None:
    from transformers import BertTokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        try:
            tokenizer = BertTokenizerFast.from_pretrained(folder)
            return [tokenizer(text)["input_ids"] for text in texts]
        # It also raises errors of Rust, which are of no class in common.
        except BaseException:  # noqa: BLE001
            return None


def write(file: Path) -> None:
    try:
        import transformers
    except ImportError as error:
        raise Unavailable(f"needs the package transformers: {error}")
    transformers.logging.set_verbosity_error()
    grammar = Grammar(SEED)
    cases = []
    for _ in range(CASES):
        files = grammar.files()
        texts = [grammar.text() for _ in range(TEXTS)]
        ids = tokens_of(files, texts)
        cases.append({"files": files, "texts": texts, "ids": ids})
    text = json.dumps(cases, ensure_ascii=False, indent=1)
    file.write_text(text + "\n", encoding="utf-8")
