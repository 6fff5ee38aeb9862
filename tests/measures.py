"""Measures of the sources that reviews asked for, each with its bound.

    python tests/measures.py ROOT

A bound is raised only with a reason in the commit; it is lowered by whoever
gets below it.
"""

import ast
import pathlib
import re
import sys

# Words that only this project used, and the field's: CONTRIBUTING.md.
PRIVATE_WORDS = (
    "anew",
    "bends",
    "by turns",
    "careful",
    "of_call",
    "pass forward",
    "pass backward",
    "rotation_of",
    "unbend",
)

# Lists of data.
TABLES = {
    "lowered_characters",
    "models",
    "stripped_characters",
}

# How comments begin that only make sense after another one.
BORROWED_SUBJECT = r"The same|Does the same|Those that|As above"
# More of them, which only the library's sources still have.
MORE_BORROWED = rf"{BORROWED_SUBJECT}|Those|What|Of|Whether"

# Texts and comments: braces in them are no code.
NO_CODE = re.compile(
    r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*.*?\*/', re.S
)

# A call of nlohmann's parser, not of our `Json`.
LIBRARY_PARSE = re.compile(r"(?<!\bJson)::(sax_)?parse\(")


def functions(text):
    """Yields name and number of lines between the braces of each function."""
    code = NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)
    opened = []
    for brace in re.finditer(r"[{}]", code):
        if brace.group(0) == "{":
            opened.append(brace.start())
            continue
        begin = opened.pop()
        # Functions end at the left margin; so do types and namespaces.
        if code[brace.start() - 1] != "\n":
            continue
        head = re.split(r"[;{}]|^#.*$", code[:begin], flags=re.M)[-1]
        name = re.search(r"([\w:~]+)\s*\(", head)
        if name and not re.match(r"\s*(namespace|enum|class|struct|union)\b", head):
            yield name.group(1), code.count("\n", begin, brace.start()) - 1


def python_functions(text):
    """Yields name and number of lines after `def` of each function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.end_lineno - node.lineno


def functions_of(file, text):
    return python_functions(text) if file.endswith(".py") else functions(text)


def count_lines(files, pattern):
    return sum(
        1 for text in files.values() for line in text.split("\n") if re.search(pattern, line)
    )


def comments_beginning(words):
    """Returns the pattern of a C++ or Python comment that begins with them."""
    return rf'^\s*(//[/!]?<?|#|""") ?({words})\b'


def read_sources(root, folders, endings=(".h", ".cpp")):
    """Returns the text of each source by its path from `root`."""
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for folder in folders
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in endings
    }


def count_files(folder):
    """Returns the number of files, without those that Python compiled."""
    return sum(path.is_file() and path.suffix != ".pyc" for path in folder.rglob("*"))


def main():
    root = pathlib.Path(sys.argv[1])
    cpp = read_sources(root, ("include", "src", "examples", "benchmarks", "tests"))
    python = read_sources(root, ("tests", "scripts", "benchmarks", "examples", "python"), (".py",))
    files = cpp | python
    ours = {name: text for name, text in files.items() if name.startswith(("include/", "src/"))}
    others = {name: text for name, text in files.items() if name not in ours}
    modules = {
        name: text
        for name, text in ours.items()
        if name.startswith(("include/torch_attention/nn/", "src/nn/"))
    }
    heart = dict(functions(files["src/nn/modules/multi_head_attention.cpp"]))
    longest = max(
        (lines, f"{name} in {file}")
        for file, text in files.items()
        for name, lines in functions_of(file, text)
        if name not in TABLES
    )
    largest = max((text.count("\n"), name) for name, text in files.items())
    models = [
        text
        for name, text in files.items()
        if re.match(r"(src/(?!weights/)|examples/|benchmarks/).*\.cpp$", name)
    ]
    measures = [
        ("lines of MultiHeadAttention::forward", heart["MultiHeadAttentionImpl::forward"], 25),
        ("lines of MultiHeadAttention::decode", heart["MultiHeadAttentionImpl::decode_view"], 25),
        (f"lines of the longest function, {longest[1]}", longest[0], 80),
        (f"lines of the longest file, {largest[1]}", largest[0], 600),
        (
            "comments that begin with another one's subject",
            count_lines(ours, comments_beginning(BORROWED_SUBJECT))
            + count_lines(others, comments_beginning(MORE_BORROWED)),
            0,
        ),
        (
            "lines with private words",
            # This file lists them.
            count_lines(files | {"tests/measures.py": ""}, rf"(?i)\b({'|'.join(PRIVATE_WORDS)})\b"),
            0,
        ),
        (
            "lines of modules about processes that split them",
            count_lines(modules, r"(?i)split(?!_heads|_qkv)"),
            25,
        ),
        (
            "JSON readers: files in src that call nlohmann's parser",
            sum(
                "nlohmann/json.hpp" in text and bool(LIBRARY_PARSE.search(text))
                for name, text in files.items()
                if name.startswith("src/")
            ),
            1,
        ),
        (
            "files with a block of Llama's kind",
            # Not those that only have a table of names.
            sum(
                "post_attention_layernorm" in text and "register_module" in text
                for text in models
            ),
            1,
        ),
        ("implementations of WordPiece", sum('"##"' in text for text in models), 1),
        ("files in tests/golden", count_files(root / "tests/golden"), 150),
    ]
    failed = 0
    for name, value, bound in measures:
        fails = value > bound
        failed += fails
        print(f"{'FAILED' if fails else 'ok':7} {value:6} <= {bound:6}  {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
