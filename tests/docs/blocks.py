#!/usr/bin/env python3
"""Checks the Markdown files: their links, and the code that they show.

    blocks.py links ROOT
    blocks.py generate OUT.cpp PAGE...
    blocks.py run PAGE PROGRAM BIN SCRIPTS

The C++ blocks of a page make one function, in their order, with their includes
before it; `generate` writes the functions of all pages. `run` takes an empty
folder and runs in it first the page's Python blocks, then that function, then
those shell blocks that only call torch-attention. All must succeed, and every
block marked `text` must be in what they print, up to white space; `[...]`
stands for anything.

An HTML comment that begins with the language (`<!-- cpp`) is a block that
readers do not see. A block after `<!-- not run -->` is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"^(?P<skip><!-- not run -->\n+)?"
    r"(?:```(?P<shown>\w+)\n(?P<code>.*?)^```$"
    r"|<!-- (?P<hidden>cpp|python|sh)\n(?P<hidden_code>.*?)^-->$)",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
SOURCE = re.compile(
    r"`(?:\./)?((?:benchmarks|cmake|examples|include|scripts|src|tests)/[\w./-]+)`"
)

PRELUDE = """\
#include <torch/torch.h>

#include <torch_attention/torch_attention.h>

#include <iostream>
#include <stdexcept>
#include <string>

using namespace torch_attention;

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


def blocks(page: Path, language: str) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        kind = match["shown"] or match["hidden"]
        code = match["code"] if match["shown"] else match["hidden_code"]
        if kind == language and not match["skip"]:
            yield Block(kind, code, text.count("\n", 0, match.end()))


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


def generate(out: Path, pages: list[Path]) -> int:
    includes: list[str] = []
    functions: list[str] = []
    calls: list[str] = []
    for page in pages:
        body: list[str] = []
        for block in blocks(page, "cpp"):
            lines = block.code.splitlines()
            includes += [line for line in lines if line.startswith("#include")]
            code = [line for line in lines if not line.startswith("#include")]
            body.append(f"  // line {block.line} of {page.name}")
            body += [f"  {line}".rstrip() for line in code]
        name = function_name(page)
        functions.append("\n".join([f"void {name}() {{", *body, "}"]))
        calls.append(f'  if (page == "{name}") return {name}(), 0;')
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


def is_shown(text: str, output: str) -> bool:
    pattern = ".*?".join(
        re.escape(squeezed(part)) for part in text.split("[...]")
    )
    return re.search(pattern, output) is not None


def run(page: Path, program: str, tools: str, scripts: str) -> int:
    env = dict(os.environ)
    env["PATH"] = f"{tools}{os.pathsep}{env['PATH']}"
    env["PYTHONPATH"] = scripts
    # Where a page's hidden Python takes files from.
    env["GOLDEN"] = str(Path(__file__).resolve().parents[1] / "golden")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output = ""
        python = "\n".join(block.code for block in blocks(page, "python"))
        if python:
            output += run_command([sys.executable, "-c", python], folder, env)
        if any(blocks(page, "cpp")):
            command = [program, function_name(page)]
            output += run_command(command, folder, env)
        for block in blocks(page, "sh"):
            lines = block.code.strip().splitlines()
            if all(line.startswith("torch-attention ") for line in lines):
                command = ["bash", "-ec", block.code]
                output += run_command(command, folder, env)
        output = squeezed(output.replace(name + "/", ""))
        missing = [
            f"{page}:{block.line}: not in the output:\n{block.code}"
            for block in blocks(page, "text")
            if not is_shown(block.code, output)
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
