#!/usr/bin/env python3
"""Checks the Markdown files: their links, and the code that they show.

    blocks.py links ROOT
    blocks.py generate OUT.cpp PAGE...
    blocks.py run PAGE PROGRAM BIN LIBRARY GOLDEN

The C++ blocks of a page make one function, in their order, with their includes
before it; `generate` writes the functions of all pages. `run` takes an empty
folder and runs in it first the page's Python blocks, as one script, then that
function, then its shell blocks and the commands after `$ ` in `console` blocks,
as one script. All must succeed, and every block marked `text` or `diff`, and
what a `console` block shows, must be in what they print, up to white space;
`[...]` stands for anything, and in a `console` block numbers may differ.

An HTML comment that begins with the language (`<!-- cpp`) is a block that
readers do not see. Nothing that they see may need its names: C++ of this kind is
in braces, and checks what the block before it has computed; Python of this kind
is a script of its own, which runs first and makes the files that a reader has.

A block after `<!-- file NAME -->` is a file of that folder. A block after
`<!-- not run: REASON -->` is left out; one of a language that is not known here is
an error.

The programs of BIN and the Python of this script come first on PATH; `scripts`
is there, $SOURCE is the folder of the page, $GOLDEN that of the unpacked golden
files, and $LIBRARY our library. The environment is that of torchrun with one
process. $HOME is the empty folder; torch_attention in it is an installation, if
$PREFIX names one.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"^(?:<!-- (?P<skip>not run)\b[^>]*-->\n+|<!-- file (?P<file>\S+) -->\n+)?"
    r"(?:```(?P<shown>\w+)\n(?P<code>.*?)^```$"
    r"|<!-- (?P<hidden>cpp|python|sh)\n(?P<hidden_code>.*?)^-->$)",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
SOURCE = re.compile(
    r"`(?:\./)?((?:benchmarks|cmake|examples|include|scripts|src|tests)/[\w./-]+)`"
)

LANGUAGES = {"cmake", "console", "cpp", "diff", "python", "sh", "text"}
# Numbers that a console does not print the same each time.
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?")

# For blocks that readers do not see.
PRELUDE = """\
#include <c10/util/Exception.h>

#include <iostream>
#include <stdexcept>
#include <string>

/// Prints the error that a block shows.
template <typename Function>
void fails(const Function& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    std::cout << error.what_without_backtrace() << '\\n';
    return;
  }
  throw std::runtime_error("expected an error");
}
"""


@dataclass
class Block:
    language: str
    code: str
    line: int
    file: str | None
    hidden: bool


def all_blocks(page: Path) -> Iterator[Block]:
    """Yields those that are not left out."""
    text = page.read_text()
    for match in FENCE.finditer(text):
        language = match["shown"] or match["hidden"]
        line = text.count("\n", 0, match.end())
        if match["skip"]:
            continue
        if language not in LANGUAGES:
            sys.exit(f"{page}:{line}: neither run nor marked: a block {language}")
        code = match["code"] if match["shown"] else match["hidden_code"]
        yield Block(language, code, line, match["file"], not match["shown"])


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    for block in all_blocks(page):
        if block.language in languages and not block.file:
            yield block


# --- Links -------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Returns the anchors of the headings, as GitHub makes them."""
    result: set[str] = set()
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for heading in re.findall(r"^#+ +(.*?) *$", text, flags=re.M):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 1
        unique = anchor
        while unique in result:
            unique = f"{anchor}-{number}"
            number += 1
        result.add(unique)
    return result


def dead_links(page: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for target in LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        if not path.exists():
            yield f"{page}: no file {target}"
        elif anchor and anchor not in anchors(path):
            yield f"{page}: no heading {target}"


def absent_sources(page: Path, root: Path) -> Iterator[str]:
    """Yields a line for each file that the page names and that is not there."""
    for name in SOURCE.findall(page.read_text()):
        if not (root / name).exists():
            yield f"{page}: no file {name}"


def check_links(root: Path) -> int:
    pages = [
        page
        for page in sorted(root.rglob("*.md"))
        if not {"build", ".venv", "out"} & set(page.relative_to(root).parts)
    ]
    dead = [line for page in pages for line in dead_links(page)]
    dead += [line for page in pages for line in absent_sources(page, root)]
    print("\n".join(dead) or f"{len(pages)} pages: all links are good")
    return 1 if dead else 0


# --- Code --------------------------------------------------------------------


def function_name(page: Path) -> str:
    """Returns a name that tells benchmarks/README.md from README.md."""
    name = f"page_{page.parent.name}_{page.stem}"
    return re.sub(r"\W", "_", name).lower()


def is_include(line: str) -> bool:
    return line.startswith("#include")


def function_of(page: Path) -> str:
    """Returns the function of a page's C++ blocks."""
    result = [f"void {function_name(page)}() {{"]
    for block in blocks(page, "cpp"):
        lines = [line for line in block.code.splitlines() if not is_include(line)]
        if block.hidden:
            lines = ["{", *lines, "}"]
        result.append(f"  // line {block.line} of {page.name}")
        result += [f"  {line}".rstrip() for line in lines]
    return "\n".join([*result, "}"])


def includes_of(page: Path) -> list[str]:
    """Returns the includes of a page, which has to show one of ours."""
    result: list[str] = []
    shown = ""
    for block in blocks(page, "cpp"):
        result += filter(is_include, block.code.splitlines())
        shown += "" if block.hidden else block.code
    if shown and "#include <torch_attention/" not in shown:
        sys.exit(f"{page}: its C++ shows no #include of the library")
    return result


def generate(out: Path, pages: list[Path]) -> int:
    includes = [line for page in pages for line in includes_of(page)]
    functions = [function_of(page) for page in pages]
    names = [function_name(page) for page in pages]
    calls = [f'  if (page == "{name}") return {name}(), 0;' for name in names]
    text = "\n".join(
        [
            *dict.fromkeys(includes),
            PRELUDE,
            "\n\n".join(functions),
            "\nint main(int, char** argv) {",
            "  const std::string page = argv[1];",
            *calls,
            "  return 1;",
            "}\n",
        ]
    )
    out.write_text(text)
    return 0


def run_command(command: list[str], folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    print(done.stdout, end="")
    if done.returncode:
        sys.exit(f"exit status {done.returncode} of {command[0]}")
    return done.stdout


def squeezed(text: str) -> str:
    return " ".join(text.split())


def pattern_of(text: str) -> str:
    parts = text.split("[...]")
    return ".*?".join(re.escape(squeezed(part)) for part in parts)


def is_shown(block: Block, output: str) -> bool:
    if block.language != "console":
        return re.search(pattern_of(block.code), output) is not None
    lines = block.code.splitlines()
    shown = [line for line in lines if not line.startswith("$ ")]
    pattern = pattern_of(NUMBER.sub("0", "\n".join(shown)))
    return re.search(pattern, NUMBER.sub("0", output)) is not None


def shell_script(page: Path) -> str:
    """Returns the shell blocks and the commands of consoles."""
    parts = []
    for block in blocks(page, "sh", "console"):
        lines = block.code.splitlines()
        if block.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        parts.append("\n".join(lines))
    return "\n".join(parts)


def one_process() -> dict[str, str]:
    """Returns the variables that torchrun would set for one process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": "0",
        "WORLD_SIZE": "1",
    }


def run_python(page: Path, folder: Path, env: dict[str, str]) -> str:
    """Runs the hidden blocks, which may import from `scripts`, then the others."""
    output = ""
    imports = {"PYTHONPATH": str(folder / "scripts")}
    for hidden, more in ((True, imports), (False, {})):
        code = [b.code for b in blocks(page, "python") if b.hidden == hidden]
        if code:
            command = [sys.executable, "-c", "\n".join(code)]
            output += run_command(command, folder, env | more)
    return output


def run(page: Path, program: str, tools: str, library: str, golden: str) -> int:
    root = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = dict(os.environ) | one_process()
        python_bin = os.path.dirname(sys.executable)
        env["PATH"] = os.pathsep.join([tools, python_bin, env["PATH"]])
        env["SOURCE"] = str(page.resolve().parent)
        env["GOLDEN"] = golden
        env["LIBRARY"] = library
        env["HOME"] = name
        (folder / "scripts").symlink_to(root / "scripts")
        if "PREFIX" in env:
            (folder / "torch_attention").symlink_to(env["PREFIX"])
        for block in all_blocks(page):
            if block.file:
                file = folder / block.file
                file.parent.mkdir(exist_ok=True)
                file.write_text(block.code)
        output = run_python(page, folder, env)
        if any(blocks(page, "cpp")):
            command = [program, function_name(page)]
            output += run_command(command, folder, env)
        script = shell_script(page)
        if script:
            command = ["bash", "-euo", "pipefail", "-c", script]
            output += run_command(command, folder, env)
        output = squeezed(output.replace(name + "/", ""))
        missing = [
            f"{page}:{block.line}: not in the output:\n{block.code}"
            for block in blocks(page, "text", "diff", "console")
            if not is_shown(block, output)
        ]
    print("\n".join(missing))
    return 1 if missing else 0


def main(arguments: list[str]) -> int:
    action, *rest = arguments
    if action == "links":
        return check_links(Path(rest[0]))
    if action == "generate":
        return generate(Path(rest[0]), [Path(page) for page in rest[1:]])
    return run(Path(rest[0]), *rest[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
