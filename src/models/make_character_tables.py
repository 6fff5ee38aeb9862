#!/usr/bin/env python3
"""Writes character_kinds.cpp and character_changes.cpp: what the tokenizer of
BERT does to each character.

    pip install tokenizers==0.23.3
    ./make_character_tables.py

The tables are read off Hugging Face's `tokenizers`, whose parts go by different
versions of Unicode, so that no library of Unicode gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

from tokenizers import normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)
# Marks that stand for combining classes, in canonical order: each has its own.
CLASS_MARKS = [
    0x334, 0x16FF0, 0x93C, 0x3099, 0x94D, 0x5B0, 0x5B1, 0x5B2, 0x5B3, 0x5B4,
    0x5B5, 0x5B6, 0x5B7, 0x5B8, 0x5B9, 0x5BB, 0x5BC, 0x5BD, 0x5BF, 0x5C1,
    0x5C2, 0xFB1E, 0x64B, 0x64C, 0x64D, 0x618, 0x619, 0x61A, 0x651, 0x652,
    0x670, 0x711, 0xC55, 0xC56, 0xE38, 0xE48, 0xEB8, 0xEC8, 0xF71, 0xF72,
    0xF74, 0x321, 0x1DCE, 0x31B, 0x1DFA, 0x316, 0x59A, 0x302E, 0x1D16D, 0x5AE,
    0x301, 0x315, 0x35C, 0x35D, 0x345,
]  # fmt: skip

clean = normalizers.BertNormalizer(
    clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False
).normalize_str
fold = normalizers.BertNormalizer(
    clean_text=True, handle_chinese_chars=False, strip_accents=True, lowercase=True
).normalize_str
strip = normalizers.BertNormalizer(
    clean_text=True, handle_chinese_chars=False, strip_accents=True, lowercase=False
).normalize_str
lower = normalizers.BertNormalizer(
    clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=True
).normalize_str
ideographs = normalizers.BertNormalizer(
    clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False
).normalize_str
nfd = normalizers.NFD().normalize_str


def is_punctuation(c: int) -> bool:
    text = f"a{chr(c)}b"
    return len(pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)) == 3


def combining_class(c: int) -> int:
    """Returns a number that orders marks as their combining classes do."""
    mark, first, last = chr(c), chr(CLASS_MARKS[0]), chr(CLASS_MARKS[-1])
    if nfd(mark + first)[0] == mark and nfd(last + mark)[0] == last:
        # Neither moves: it has no class, or is one of the two itself.
        return {CLASS_MARKS[0]: 1, CLASS_MARKS[-1]: len(CLASS_MARKS)}.get(c, 0)
    # A mark moves before those of higher classes.
    return 1 + sum(
        other != c and nfd(mark + chr(other)) == chr(other) + mark
        for other in CLASS_MARKS
    )


def runs(points: Iterable[int]) -> Iterator[list[int]]:
    """Splits ascending numbers into runs of neighbours."""
    run: list[int] = []
    for c in points:
        if run and c != run[-1] + 1:
            yield run
            run = []
        run.append(c)
    if run:
        yield run


def print_items(items: Iterable[str], indent: int) -> None:
    line = " " * (indent - 1)
    for item in items:
        if len(line) + len(item) + 2 > 80:
            print(line)
            line = " " * (indent - 1)
        line += f" {item},"
    print(line)


def print_table(comment: str, kind: str, name: str, items: Iterable[str]) -> None:
    print(f"\n// {comment}")
    print(f"const std::vector<{kind}>& {name}() {{")
    print(f"  static const std::vector<{kind}> table = {{")
    print_items(items, indent=6)
    print("  };\n  return table;\n}")


def print_part(comment: str, items: Iterable[str]) -> None:
    print(f"      // {comment}\n      {{")
    print_items(items, indent=10)
    print("      },")


def print_ranges(comment: str, name: str, holds: Callable[[int], bool]) -> None:
    found = runs(c for c in CODE_POINTS if holds(c))
    print_table(
        comment,
        "CodePointRange",
        name,
        (f"{{{run[0]:#x}, {run[-1]:#x}}}" for run in found),
    )


def shifts(folded: dict[int, int]) -> Iterator[tuple[int, int, int, int]]:
    """Takes out what is moved by one distance: (first, last, step, distance)."""
    for step in (1, 2):
        for first in sorted(folded):
            if first not in folded:
                continue
            distance = folded[first] - first
            last = first
            while folded.get(last + step) == last + step + distance:
                last += step
            if (last - first) // step >= 3:
                for c in range(first, last + 1, step):
                    del folded[c]
                yield first, last, step, distance


cleaned = {c: clean(chr(c)) for c in CODE_POINTS}
stripped = {c: strip(chr(c)) for c in CODE_POINTS}
lowered = {c: lower(chr(c)) for c in CODE_POINTS}


def is_accent(c: int) -> bool:
    return bool(cleaned[c]) and not stripped[c]


def print_kinds() -> None:
    # Among decomposed characters only accents have a class: their first part's.
    classes = {
        c: combining_class(ord(nfd(chr(c))[0]))
        for c in CODE_POINTS
        if is_accent(c) or nfd(chr(c)) == chr(c)
    }
    print_ranges("Characters that are removed.", "removed_characters", lambda c: not cleaned[c])
    print_ranges("White space.", "space_characters", lambda c: cleaned[c] == " ")
    print_ranges("Words of their own.", "punctuation", is_punctuation)
    print_ranges(
        "Words of their own as well, if the tokenizer says so.",
        "ideographs",
        lambda c: len(ideographs(chr(c))) == 3,
    )
    print_ranges(
        "Accents, which are removed, and over which other marks may move.",
        "accents",
        lambda c: is_accent(c) and classes[c] > 0,
    )
    print_ranges(
        "Accents over which no other marks move.",
        "fixed_accents",
        lambda c: is_accent(c) and classes[c] == 0,
    )
    stay = [c for c, order in classes.items() if order and stripped[c]]
    print_table(
        "Marks that stay, and the order that they are brought into.",
        "MarkOrder",
        "mark_orders",
        (
            f"{{{run[0]:#x}, {run[-1]:#x}, {order}}}"
            for order in sorted(set(classes.values()))
            for run in runs(c for c in stay if classes[c] == order)
        ),
    )


def print_map(comment: str, name: str, results: dict[int, str]) -> None:
    changed = {
        c: results[c]
        for c in CODE_POINTS
        if results[c] not in ("", cleaned[c]) and c not in HANGUL
    }
    single = {c: ord(text) for c, text in changed.items() if len(text) == 1}
    print(f"\n// {comment}")
    print(f"const CharacterMap& {name}() {{")
    print("  static const CharacterMap map = {")
    print_part(
        "by distance",
        (
            f"{{{first:#x}, {last:#x}, {step}, {distance}}}"
            for first, last, step, distance in sorted(shifts(single))
        ),
    )
    values: list[int] = []
    starts: list[str] = []
    for run in runs(sorted(single)):
        starts.append(f"{{{run[0]:#x}, {len(values)}}}")
        values += [single[c] for c in run]
    starts.append(f"{{0x110000, {len(values)}}}")
    print_part("the others: runs of characters, and where their values begin", starts)
    print_part("their values", (f"{value:#x}" for value in values))
    print_part(
        "characters that become several; zeros fill up",
        (
            f"{{{c:#x}, {{{', '.join(hex(ord(x)) for x in text.ljust(3, chr(0)))}}}}}"
            for c, text in sorted(changed.items())
            if len(text) > 1
        ),
    )
    print("  };\n  return map;\n}")


def print_changes() -> None:
    for c in CODE_POINTS:
        assert fold(chr(c)) == "".join(lower(x) for x in stripped[c]), hex(c)
    print_map("Letters without accents.", "stripped_characters", stripped)
    print_map("Lower case.", "lowered_characters", lowered)


def write(name: str, print_tables: Callable[[], None]) -> None:
    with open(Path(__file__).parent / name, "w") as file, redirect_stdout(file):
        print("// Made by make_character_tables.py: do not edit.\n")
        print("#include <models/character_tables.h>\n")
        print("// clang-format off")
        print("namespace torch_attention::models {")
        print_tables()
        print("\n} // namespace torch_attention::models")


if __name__ == "__main__":
    write("character_kinds.cpp", print_kinds)
    write("character_changes.cpp", print_changes)
