"""Small vocabularies of WordPiece, and what the package tokenizers gives."""

from __future__ import annotations

import json
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits, punctuation

from ..golden_set import Unavailable

TEXTS = "texts.json"
CHARACTERS = ascii_lowercase + digits

VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *CHARACTERS,
    *("##" + character for character in CHARACTERS),
    *punctuation,
    *("the", "cat", "sat", "on", "mat", "un", "##aff", "##able", "##ing"),
    *("because", "it", "was", "tired", "</script>"),
    *("你", "好", "猫", "ς", "σ", "##σ", "ß", "ø", "‐", "«", "»", "—"),
    *("ᄒ", "##ᅡ", "##ᆫ", "र", "##ा", "ﬁ", "한", "ا", "##ل"),
]
# With capitals and accents.
CASED = [
    *VOCABULARY,
    *ascii_uppercase,
    *("##" + character for character in ascii_uppercase),
    *("The", "é", "##é", "É", "##\u0301", "İ", "##국", "你好"),
]

CONFIGS = {
    "bert": {"do_lower_case": True, "tokenizer_class": "BertTokenizer"},
    "cased": {
        "do_lower_case": False,
        "strip_accents": None,
        "tokenize_chinese_chars": False,
        "tokenizer_class": "BertTokenizer",
    },
}
VOCABULARIES = {"bert": VOCABULARY, "cased": CASED}

EXAMPLES = [
    "",
    " \t\n\r ",
    "The cat sat on the mat.",
    "the cat sat because it was tired",
    "Unaffable, unaffing!",
    "don't pay $5.00 (or 5~6)",
    "caf\u00e9 cafe\u0301 \u00c9 \u00c5ngstr\u00f6m",
    "\u0130stanbul \u0131\u017f",
    "stra\u00dfe STRASSE \u1e9e",
    "\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2 \u03a3\u03a3",
    "\u4f60\u597d\u732bcat\u3042",
    "\ud55c\uad6d \ud55c",
    "\u0930\u093e\u091c",
    "\u0627\u0644\u0633\u0644\u0627\u0645",
    "\ufb01n \u00a0x\u2003y\u3000z\u2028w",
    "a\u200bb\u200dc\ufeffd\u202ee\u00adf",
    "a\x00b\x01c\x7fd\x85e\x0bf\ufffdg",
    "\U0001f600 a\U0001f600b \ue000",
    "\u00ab\u2014\u00bb \u2010 \u2026 \u00bf",
    "^_`{|}~ <b> </script>",
    "[MASK] a[SEP]b [mask] [CLS [UNK]x",
    "a" * 100,
    "a" * 101,
    "\u00e9" * 101,
]


def write_vocabularies(folder: Path) -> None:
    for name, tokens in VOCABULARIES.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        text = "".join(token + "\n" for token in tokens)
        (folder / name / "vocab.txt").write_text(text)
        (folder / name / "tokenizer_config.json").write_text(
            json.dumps(CONFIGS[name], indent=2) + "\n"
        )


def write_texts(file: Path) -> None:
    try:
        from tokenizers import BertWordPieceTokenizer
    except ImportError as error:
        raise Unavailable(f"needs the package tokenizers: {error}")
    result = {}
    for name, tokens in VOCABULARIES.items():
        config = CONFIGS[name]
        tokenizer = BertWordPieceTokenizer(
            {token: number for number, token in enumerate(tokens)},
            lowercase=config["do_lower_case"],
            strip_accents=config.get("strip_accents"),
            handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        )
        result[name] = [
            {"text": text, "ids": tokenizer.encode(text).ids}
            for text in EXAMPLES
        ]
    file.write_text(json.dumps(result, indent=1) + "\n")
