"""The table of tokenizer classes in src/auto_tokenizer.cpp is that of transformers.

    python tokenizer_classes.py src/auto_tokenizer.cpp

Exits with 77 beside another version of transformers than the table's.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterator

import transformers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

# How the table names the class of transformers without tokens of its own.
NAMES = {"kGenericTokenizer": "TokenizersBackend"}
# Classes that transformers derives without changes.
SAME = {
    "BartTokenizer": "RobertaTokenizer",
    "DPRQuestionEncoderTokenizer": "BertTokenizer",
    "LxmertTokenizer": "BertTokenizer",
    "MobileBertTokenizer": "BertTokenizer",
    "Qwen2TokenizerFast": "Qwen2Tokenizer",
}
OTHER = "the class of this model_type"


def rows(source: str) -> Iterator[tuple[str, list[str]]]:
    """Yields each class of the table with its model types."""
    begin = source.index("kModelTypes{{")
    table = source[begin : source.index("}};", begin)]
    for row in re.finditer(r'\{(kGenericTokenizer|"[^"]*"),\s*((?:"[^"]*"\s*)+)\}', table):
        name = row[1].strip('"')
        types = "".join(re.findall(r'"([^"]*)"', row[2])).split()
        yield NAMES.get(name, name), types


def main() -> int:
    if not transformers.__version__.startswith("5.24."):
        print(f"transformers {transformers.__version__}")
        return 77
    expected = {
        kind: SAME.get(name, name) for kind, name in TOKENIZER_MAPPING_NAMES.items() if name
    }
    found = {}
    classes = []
    for name, types in rows(pathlib.Path(sys.argv[1]).read_text()):
        classes.append(name)
        found |= dict.fromkeys(types, name)
    faults = [
        f"{kind}: expected {expected.get(kind)}, but the table has {found.get(kind)}"
        for kind in sorted(expected.keys() | found.keys())
        if found.get(kind)
        != (expected[kind] if expected.get(kind) in classes else OTHER if kind in expected else None)
    ]
    print("\n".join(faults) or f"{len(found)} model types")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
